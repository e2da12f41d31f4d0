"""A verb is one dataclass: its fields are its options, and the command line needs nothing else."""

import inspect
import json
from dataclasses import dataclass, fields
from typing import Annotated

import pytest
import typer
from typer import Option
from typer.testing import CliRunner

import isentrope as ise
from isentrope import Result
from isentrope.cli.call import add_to
from isentrope.cli.commands import COMMANDS, CONFIG_COMMANDS
from isentrope.commands.command import Sets
from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import Verb
from tests.tiny_checkpoint import settings

COUNT = Verb("count", table="sequences")


@pytest.fixture
def app(monkeypatch):
    """A command line with a verb that is declared here, and one of the library."""
    kinds = {name: getattr(ise, f"{name.title()}Result") for name in ("measure", "influence")}
    monkeypatch.setattr("isentrope.results.result.KINDS_OF_RESULTS", kinds)  # all are imported now

    @dataclass(frozen=True, kw_only=True)
    class CountResult(Result, verb=COUNT):
        responses: int

        @classmethod
        def printed(cls, results):
            for result in results:
                yield f"{result.responses} responses"

    @dataclass(frozen=True, kw_only=True)
    class Count(OnCheckpoints):
        """Count the responses of both batches."""

        name = COUNT.name
        verb = COUNT

        size: Annotated[int | None, Option(help="Prompts of E."), Sets("batch_config.B_E")] = None

        @classmethod
        def analyse(cls, ready):
            return CountResult(**vars(ready.header), responses=len(ready.E) + len(ready.U))

    app = typer.Typer(rich_markup_mode=None)
    add_to(app, [Count, *COMMANDS[-1:]])
    return app


def test_a_verb_of_one_class_runs_with_its_option_and_writes_its_result(app, tiny, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings(tiny)))
    arguments = ["count", str(config), "--size", "8", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*arguments, "--set", "batch_config.allow_overlap=true"])
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "run" / "measurements").iterdir()
    result = Result.load(folder)
    assert (folder.name, result.batches.B_E) == ("count_step_4", 8)
    assert f"{result.responses} responses\n" in done.stdout
    assert done.stdout.endswith(f"Wrote {folder}\n")


def test_the_help_of_a_verb_is_its_docstring_and_its_fields(app):
    text = CliRunner().invoke(app, ["count", "--help"]).output
    assert "Count the responses of both batches." in text
    assert "--size" in text


@pytest.mark.parametrize("verb", [*COMMANDS, *CONFIG_COMMANDS], ids=lambda verb: verb.name)
def test_a_verb_says_what_its_options_are_and_how_it_runs(verb):
    for option in fields(verb):
        infos = option.type.__metadata__
        assert any(getattr(info, "help", None) for info in infos), option
    assert not inspect.isabstract(verb)
    assert {"run", "shown"} <= {name for base in verb.__mro__[:-2] for name in vars(base)}
