"""How each verb is run: its settings read, its pipeline called, its results printed.

Pipelines that load a trainer or figures are given by dotted names, so that other verbs start fast.
"""

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name as load
from typing import Any

from isentrope.cli.commands import Command
from isentrope.cli.console import err, out, say, say_written, show
from isentrope.cli.tables import (
    print_findings,
    print_plans,
    printed_evaluation,
)
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import dump_config, load_config
from isentrope.results.verbs import MEASURE, VERBS
from isentrope.system.processes import rank
from isentrope.system.progress import Progress
from isentrope.verbs.kinds import KINDS, defaults, intention, load_any
from isentrope.verbs.loop import run_verb


def measuring(verb: Command, config: str, overrides: Sequence[str]) -> None:
    """Analyse each checkpoint by a measuring verb, and print what was found."""
    of = VERBS[verb.name]
    with Progress(err):
        figure = load(of.figure[0]) if of.figure else None
        run = run_verb(of, load_config(config, overrides), figure)
    if rank() > 0:
        return
    folders, printed = list(run.measurements.values()), load(of.printed)
    if of.together:
        show(out, printed(run.results))
    else:
        for result, folder in zip(run.results, folders, strict=True):
            show(out, printed(result, folder), result.warnings)
    for folder in folders[:-1]:
        say(f"Wrote {folder}")
    say_written(folders[-1])


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
    module = f"isentrope.verbs.{verb.name}"
    with Progress(err):
        if config is None:
            go_on = load(f"{module}:{'branch' if resume is None else 'resume'}")
            made = go_on(resume or start, overrides)
        else:
            made = load(f"{module}:{verb.name}")(load_config(config, overrides, KINDS[verb.name]))
    if rank() > 0:
        return
    if verb.name == "sft":
        say(f"Loss of the last step: {made.loss:.4f} nats per token")
        for name, share in made.adherence.items():
            if share is not None:
                say(f"Greedy on held-out prompts, {name}: {share}")
    say_written(made.model if verb.name == "sft" else made)


def evaluating_checkpoints(verb: Command, config: str, overrides: Sequence[str]) -> None:
    """Evaluate checkpoints, and print a row for each."""
    with Progress(err):
        run = load("isentrope.verbs.evaluate:evaluate_checkpoints")
        evaluated = run(load_config(config, overrides, EvaluateConfig))
    if rank() == 0:
        show(out, printed_evaluation(evaluated.results))
        say_written(evaluated.table)


def checking(verb: Command, config: str, overrides: Sequence[str], replay: bool) -> None:
    """Check or replay, and print a table of findings per checkpoint.

    Raises:
        FileNotFoundError: If there is neither a folder nor a file.
    """
    if not Path(config).exists():
        raise FileNotFoundError(
            f"There is nothing at {config}: give the folder of a checkpoint, or a configuration "
            "(a YAML file) that names one by checkpoint.checkpoint_path."
        )
    run = load("isentrope.verbs.replay:replay" if replay else "isentrope.verbs.check:check")
    source = {"checkpoint": {"checkpoint_path": config}} if Path(config).is_dir() else config
    with Progress(err):
        findings = run(load_config(source, overrides))
    if rank() == 0:
        sound = "The step is the one taken." if replay else "Can be measured."
        print_findings(out, err, findings, sound)


def planning(
    verb: Command, config: str, overrides: Sequence[str], as_json: bool, **options: Any
) -> None:
    """Plan, and print a table a verb."""
    plans = load("isentrope.verbs.plan:plan")(config, overrides, **options)
    print_plans(out, err, plans, as_json=as_json)


def converting(verb: Command, **given: str) -> None:
    """Convert a checkpoint, and print what it holds and what to do next."""
    made = load("isentrope.checkpoint.convert.write:convert")(**given)
    states = (
        "no optimizer state, so that no step can be computed"
        if made.parameters is None
        else f"the optimizer's state of {made.parameters} parameters"
    )
    say(f"{made.layout}: {made.tensors} weights, and {states}.")
    say_written(made.folder)
    say(f"Next: isentrope check {made.folder}")


def reporting(verb: Command, **given: Any) -> None:
    """Write a report, and print its sentences."""
    report = load("isentrope.reports.report:write_report")(**given)
    for title, sentences in (("", report.claims), ("\nNot in the report:\n", report.missing)):
        if sentences:
            say(title + "\n".join(f"- {sentence}" for sentence in sentences))
    say("")
    say_written(report.page)


def demonstrating(verb: Command, **sizes: Any) -> None:
    """Run every verb in turn, each with its own tables, and print the verdict."""
    with Progress(err):
        claims = load("isentrope.cli.demo:demo")(**sizes)
    for i, claim in enumerate(claims, 1):
        out.conclude(f"{i}. {claim}")


def showing(
    verb: Command, overrides: Sequence[str], config: str | None = None, kind: str | None = None
) -> None:
    """Print the settings as YAML, with what each does.

    Raises:
        ValueError: If both a configuration and a verb are given.
    """
    if config and kind:
        raise ValueError(f"{config} says itself which verb it is for: omit --for.")
    loaded = load_any(config, overrides) if config else defaults(kind or MEASURE.name, overrides)
    out.conclude(dump_config(loaded, comments=True).rstrip())


def validating(verb: Command, config: str, overrides: Sequence[str]) -> None:
    """Print what a configuration would do."""
    say(f"{config} is valid: {intention(load_any(config, overrides))}.")
