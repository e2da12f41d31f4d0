"""What cannot be written is refused before any work is done."""

import pytest

from isentrope.config.io import load_config
from isentrope.results.verbs import MEASURE, NOISE
from isentrope.runs.folder import folder_name, require_writable
from isentrope.system.errors import FileError
from isentrope.verbs.check import check
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings


def test_a_folder_is_looked_at_before_work(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"file: It is not a directory. Choose another --out"):
        require_writable(tmp_path / "file" / "run", "--out")
    require_writable(tmp_path / "new" / "run", "--out")
    asked = settings(tiny, output={"directory": str(tmp_path / "file" / "run")})
    with pytest.raises(FileError, match="is not a directory"):
        check(load_config(asked))
    logs = {"output_directory": str(tmp_path / "file")}
    with pytest.raises(FileError, match=r"detailed_logging\.output_directory"):
        run_verb(MEASURE, load_config(settings(tiny, detailed_logging=logs)))


def test_a_noise_scale_of_three_groups_is_refused_before_sampling(tiny):
    with pytest.raises(ValueError, match=r"four prompt groups or more, and .*B_U is 3"):
        run_verb(NOISE, load_config(settings(tiny)))


@pytest.mark.parametrize("text", ["../../x", "a/b", "tasks/mine.py:task", "..\\x"])
def test_a_name_from_data_cannot_leave_its_folder(text, tmp_path):
    assert (tmp_path / folder_name(text)).resolve().parent == tmp_path.resolve()
