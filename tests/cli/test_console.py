"""Names and texts of other people cannot command the terminal."""

import json
import math
from io import StringIO

import pytest

from isentrope.cli.commands import COMMANDS
from isentrope.cli.console import Results, err, out, say, show
from isentrope.commands.command import Conclusion
from isentrope.nouns.columns import Column
from isentrope.results.answers.blocks import Table
from tests.command_line import call
from tests.golden.printed import everything

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
    done = call("report", folder, status=1)
    assert "\x1b" not in done.output
    assert r"x\x1b[2Jy" in done.output


@pytest.mark.parametrize("text", [":heart:", "[/b]", "[red]"])
def test_a_text_is_printed_as_it_is_and_not_as_markup_or_a_picture(text, capsys):
    show(out, [text, Table(text, [text], [Column("text", str)])])
    assert capsys.readouterr().out.count(text) == 3


def test_a_document_is_json_whatever_is_in_it(capsys):
    content = {"text": HOSTILE + "\x7f:heart:" + "x" * 200, "numbers": [1.5, None]}
    out.write_document(content | {"unknown": math.nan})
    assert json.loads(capsys.readouterr().out) == content | {"unknown": None}


def printed(room, capsys, width=80):
    """A verb's results on a screen of so many lines: rows, a long line, notes and conclusions."""
    with out.first_screen(room):
        for k in range(10):
            say(f"row {k}")
        say("x" * (2 * width - 1))
        show(out, ["  note  first", "  note  second", Conclusion("Wrote there")])
    return capsys.readouterr().out.splitlines()


def test_the_first_screen_ends_where_it_is_full_and_says_what_is_left_out(capsys, monkeypatch):
    monkeypatch.setattr(out, "width", 80)
    whole = printed(math.inf, capsys)
    assert len(whole) == 14
    assert printed(100, capsys) == whole
    more = "  more         --details prints the rest"
    with everything(out) as texts:
        assert printed(11, capsys) == [*whole[:10], "Wrote there", more]
    assert "".join(texts).splitlines() == [*whole, more]
    assert printed(4, capsys)[:5] == [*whole[:4], "Wrote there"]


@pytest.mark.parametrize(("room", "shown"), [(4, 0), (5, 5)])
def test_a_table_is_on_the_first_screen_with_a_row_or_not_at_all(room, shown, capsys, monkeypatch):
    monkeypatch.setattr(out, "width", 80)
    with out.first_screen(room):
        show(out, [Table("title", [1, 2], [Column("number", str)])])
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), "1" in "".join(lines[:-1])) == (shown + 1, bool(shown))


def test_a_note_is_broken_between_words_on_a_terminal_and_is_one_line_in_a_file():
    def lines(**options):
        stream = StringIO()
        show(
            Results(file=stream, width=40, **options),
            ["  note         " + " ".join(["seven77"] * 12)],
        )
        return stream.getvalue().splitlines()

    assert len(lines()) == 1
    broken = lines(force_terminal=True)
    assert len(broken) > 1
    assert {word for line in broken for word in line.split()} == {"note", "seven77"}


def test_every_verb_takes_details_and_leaves_room_for_conclusions():
    for verb in COMMANDS:
        assert "--details" in call(verb.name, "--help").output
        assert verb.room <= 21
