"""What is judged before the libraries load accepts each file that the work itself reads."""

from pathlib import Path

import pytest

from isentrope.config.io import load_config
from isentrope.system.errors import FileError

TEXTS = {
    "blank lines.jsonl": '\n{"prompt": "1+1=", "answer": "2"}\n\n{"prompt": "2+2=", "answer": "4"}',
    "Windows.jsonl": '{"prompt": "1+1=", "answer": "2"}\r\n{"prompt": "1+2=", "answer": "3"}\r\n',
    "Excel.csv": "\ufeffanswer,prompt\n2,1+1=\n3,1+2=\n",
}


def require_files(folder, name):
    (folder / "mine.py").write_text("def right(completions, answer):\n    return [1.0]\n")
    data = {"dataset_name": f"{folder}/mine.py:right", "dataset_path": str(folder / name)}
    config = load_config({"checkpoint": {"checkpoint_path": "step_4"}, "batch_config": data})
    config.batch_config.require_files("batch_config")


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_can_be_read_is_not_refused_early(tmp_path, name):
    (tmp_path / name).write_text(TEXTS[name], encoding="utf-8", newline="")
    require_files(tmp_path, name)


def test_a_line_that_is_no_json_is_named_with_its_file(tmp_path):
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n')
    with pytest.raises(ValueError) as refused:  # noqa: PT011 — its words are below
        require_files(tmp_path, "broken.jsonl")
    assert "broken.jsonl, line 1 cannot be read" in str(refused.value)


def test_the_lines_of_a_file_are_read_once_until_it_changes(tmp_path, monkeypatch):
    file = tmp_path / "Windows.jsonl"
    file.write_text(TEXTS[file.name])
    read = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: [read.append(path), read_bytes(path)][1])
    require_files(tmp_path, file.name)
    require_files(tmp_path, file.name)
    assert read.count(file) == 1
    file.write_text('{"prompt": "1+1=", "answer": ')
    with pytest.raises(FileError):
        require_files(tmp_path, file.name)
