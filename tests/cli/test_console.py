"""Names and texts of other people cannot command the terminal."""

import pytest
from typer.testing import CliRunner

from isentrope.cli.console import err, say
from isentrope.cli.main import app

HOSTILE = "a\x1b]0;owned\x07\x1b[31mb\r\x9b2J\u202ec\td\ne"
SHOWN = r"a\x1b]0;owned\x1b[31mb\x9b2J\u202ec"


@pytest.mark.parametrize("write", [say, err.print, err.log])
def test_control_characters_are_shown_and_not_sent(write, capsys):
    write(HOSTILE)
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert not any(c in printed for c in "\x1b\x07\r\x9b\u202e")


def test_the_name_of_a_folder_is_escaped(tmp_path):
    folder = tmp_path / "x\x1b[2Jy"
    folder.mkdir()
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert r"x\x1b[2Jy" in done.output
