"""What is judged before the libraries load accepts each file that the work itself reads."""

import pytest

from isentrope.sampling.tasks.requirements import require_task

TEXTS = {
    "blank lines.jsonl": '\n{"prompt": "1+1=", "answer": "2"}\n\n{"prompt": "2+2=", "answer": "4"}',
    "Windows.jsonl": '{"prompt": "1+1=", "answer": "2"}\r\n{"prompt": "1+2=", "answer": "3"}\r\n',
    "Excel.csv": "\ufeffanswer,prompt\n2,1+1=\n3,1+2=\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_can_be_read_is_not_refused_early(tmp_path, name):
    (tmp_path / name).write_text(TEXTS[name], encoding="utf-8", newline="")
    (tmp_path / "mine.py").write_text("def right(completions, answer):\n    return [1.0]\n")
    require_task(f"{tmp_path}/mine.py:right", str(tmp_path / name), {})


def test_a_line_that_is_no_json_is_named_with_its_file(tmp_path):
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n')
    (tmp_path / "mine.py").write_text("def right(completions, answer):\n    return [1.0]\n")
    with pytest.raises(ValueError, match=r"broken\.jsonl, line 1 cannot be read"):
        require_task(f"{tmp_path}/mine.py:right", str(tmp_path / "broken.jsonl"), {})
