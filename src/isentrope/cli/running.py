"""How each kind of verb is run: its settings read, its pipeline called, its results printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name as load
from typing import TYPE_CHECKING, Any

from isentrope.cli.commands import Command
from isentrope.cli.console import err, out, say, say_written, show
from isentrope.config.io import load_config
from isentrope.results.verbs import MEASURE, VERBS
from isentrope.runs.branch_study import BranchStudy
from isentrope.system.processes import rank
from isentrope.system.progress import Progress
from isentrope.verbs.kinds import KINDS, defaults, load_any
from isentrope.verbs.loop import run_verb

if TYPE_CHECKING:
    from isentrope.reports.report import Report
    from isentrope.trainers.convert.write import Converted
    from isentrope.verbs.sft import FineTuned


def measuring(verb: Command, config: str, overrides: Sequence[str]) -> None:
    """Analyse each checkpoint by a measuring verb, and print what was found."""
    of = VERBS[verb.name]
    settings = load_config(config, overrides)
    with Progress(err):
        run = run_verb(of, settings, load(of.figure[0]) if of.figure else None)
    if rank() > 0:
        return
    folders = run.measurements.values()
    if of.together:
        show(out, load(of.printed)(run.results))
    *others, last = folders
    for result, folder in zip(run.results, folders, strict=True):
        if not of.together:
            show(out, load(of.printed)(result, folder), result.warnings)
    for folder in others:
        say(f"Wrote {folder}")
    say_written(last)


def print_fine_tuned(fine_tuned: FineTuned) -> None:
    """Print what fine-tuning made."""
    say(f"Loss of the last step: {fine_tuned.loss:.4f} nats per token")
    for name, share in fine_tuned.adherence.items():
        if share is not None:
            say(f"Greedy on held-out prompts, {name}: {share}")
    say_written(fine_tuned.model)


def training(
    verb: Command,
    overrides: Sequence[str],
    config: str | None = None,
    resume: str | None = None,
    start: str | None = None,
) -> None:
    """Start a run, resume one or start at a checkpoint of one, and print what was made.

    Raises:
        ValueError: If none or several are given.
    """
    if sum(given is not None for given in (config, resume, start)) != 1:
        raise ValueError(
            "Give one of a CONFIG to start a run, --resume RUN to resume one, and, of train, "
            "--from CHECKPOINT to start a run at a checkpoint of another."
        )
    with Progress(err):
        if config is None:
            module, _, _ = verb.run.partition(":")
            go_on = load(f"{module}:{'branch' if resume is None else 'resume'}")
            made = go_on(resume or start, overrides)
        else:
            settings = load_config(config, overrides, KINDS[verb.name])
            made = load(verb.run)(settings)
    if rank() == 0:
        load(verb.show)(made)


def branching(
    verb: Command,
    folder: str,
    vary: Sequence[str] = (),
    changes: Sequence[str] = (),
    **sizes: Any,
) -> None:
    """Take branches, and print a table per checkpoint."""
    asked = BranchStudy(vary=vary, changes=changes, folder=Path(folder), **sizes)
    with Progress(err):
        branched = load(verb.run)(asked)
    if rank() == 0:
        show(out, load(verb.show)(branched))
        say_written(branched.table)


def checking(verb: Command, config: str, overrides: Sequence[str], replay: bool) -> None:
    """Check or replay, and print a table of findings per checkpoint."""
    run = load("isentrope.verbs.replay:replay" if replay else verb.run)
    source = {"checkpoint": {"checkpoint_path": config}} if Path(config).is_dir() else config
    with Progress(err):
        findings = run(load_config(source, overrides))
    if rank() == 0:
        sound = "The step is the one taken." if replay else "Can be measured."
        load(verb.show)(out, err, findings, sound)


def planning(
    verb: Command, config: str, overrides: Sequence[str], as_json: bool, **options: Any
) -> None:
    """Plan, and print a table a verb."""
    load(verb.show)(out, err, load(verb.run)(config, overrides, **options), as_json=as_json)


def run_at_once(verb: Command, **given: Any) -> None:
    """Do what is asked, and print what came of it."""
    load(verb.show)(load(verb.run)(**given))


def print_converted(made: Converted) -> None:
    """Print what a converted checkpoint holds, and what to do next."""
    states = (
        "no optimizer state, so that no step can be computed"
        if made.parameters is None
        else f"the optimizer's state of {made.parameters} parameters"
    )
    say(f"{made.layout}: {made.tensors} weights, and {states}.")
    say_written(made.folder)
    say(f"Next: isentrope check {made.folder}")


def print_report(report: Report) -> None:
    """Print the sentences of a report that was written."""
    for title, sentences in (("", report.claims), ("\nNot in the report:\n", report.missing)):
        if sentences:
            say(title + "\n".join(f"- {sentence}" for sentence in sentences))
    say("")
    say_written(report.page)


def demonstrating(verb: Command, **sizes: Any) -> None:
    """Run every verb in turn, each with its own tables, and print three sentences."""
    with Progress(err):
        story = load(verb.run)(**sizes)
    load(verb.show)(out, story)


def showing(
    verb: Command, overrides: Sequence[str], config: str | None = None, kind: str | None = None
) -> None:
    """Print the settings as YAML, with what each does.

    Raises:
        ValueError: If both a configuration and a verb are given.
    """
    if config and kind:
        raise ValueError(f"{config} says itself which verb it is for: leave --for away.")
    loaded = load_any(config, overrides) if config else defaults(kind or MEASURE.name, overrides)
    load(verb.show)(load(verb.run)(loaded, comments=True))


def print_text(text: str) -> None:
    """Print settings as they are."""
    out.conclude(text.rstrip())


def validating(verb: Command, config: str, overrides: Sequence[str]) -> None:
    """Print what a configuration would do."""
    loaded = load(verb.run)(config, overrides)
    say(f"{config} is valid: {load(verb.show)(loaded)}.")
