"""Every verb is explained: a line of help, and its command on a page."""

import re

import pytest
import typer

from isentrope.cli.main import app
from tests.docs.pages import every_command

VERBS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_sentence_of_help_that_fits_a_line_of_80_columns(verb):
    assert re.fullmatch(r"[A-Z].{,63}\.", VERBS[verb].help or "")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_on_a_page(verb):
    assert any(c.program == "isentrope" and c.words[1] == verb for c in every_command())
