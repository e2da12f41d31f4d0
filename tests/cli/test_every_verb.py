"""Every verb is explained: a line of help, and its command on a page."""

import re

import pytest
import typer

from isentrope.cli.commands import MEASURING
from isentrope.cli.main import app
from isentrope.results import tables
from isentrope.results.verbs import VERBS as FACTS
from tests.docs.pages import every_command

VERBS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_sentence_of_help_that_fits_a_line_of_80_columns(verb):
    assert re.fullmatch(r"[A-Z].{,63}\.", VERBS[verb].help or "")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_on_a_page(verb):
    pages = "a command on a page of docs/, such as docs/commands.md"
    assert any(c.program == "isentrope" and c.words[1] == verb for c in every_command()), pages


def test_the_facts_of_a_verb_that_measures_are_known_and_the_rows_of_its_table():
    assert list(MEASURING) == list(FACTS), "VERBS of src/isentrope/results/verbs.py"
    without_rows = {verb.table for verb in FACTS.values()} - set(tables.ROWS)
    assert without_rows == set(), "ROWS of src/isentrope/results/tables.py"
