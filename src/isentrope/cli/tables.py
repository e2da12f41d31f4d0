"""Tables on the screen: branches, findings of `check`, evaluations and plans."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from isentrope.checks import Finding
from isentrope.cli.console import Results, out, say, say_written, show
from isentrope.nouns.estimate import Estimate
from isentrope.planning.plan import Plan
from isentrope.runs.branch_effects import START
from isentrope.runs.branch_study import UNCHANGED
from isentrope.runs.evaluation_folder import EvaluatedRow, EvaluationResult
from isentrope.system.formatting import MISSING, gigabytes, known, sizes_in_words
from isentrope.verbs.printed import Column, Printed, Table

if TYPE_CHECKING:  # they import trl
    from isentrope.verbs.branch import Branched
    from isentrope.verbs.evaluate import Evaluated

_HEADS = {"entropy_per_token": "h", "reward": "reward"}


def printed_branches(branched: Branched) -> Printed:
    """A row per setting: its difference from unchanged, and the change over the branch."""
    repeats = branched.effects[0].estimate.n
    of = f"{repeats} repeat{'s' if repeats > 1 else ''}"
    for start in branched.starts:
        steps = start.until - start.step
        title = (
            f"{start.name}, {steps} step{'s' if steps > 1 else ''} on: differences from unchanged, "
            f"mean of {of}; h in nats per token"
        )
        found = {
            (e.setting, e.quantity, e.against): e.estimate
            for e in branched.effects
            if e.checkpoint == start.name
        }
        settings = list(dict.fromkeys(setting for setting, *_ in found))
        yield Table(title, settings, list(_columns(found)))
    if repeats == 1:
        yield "  note  One repeat has no interval: --repeats 3 or more gives one."


def _columns(found: Mapping[tuple[str, str, str], Estimate]) -> Iterator[Column]:
    def cell(
        write: Callable[[Estimate | None], str], quantity: str, against: str
    ) -> Callable[[str], str]:
        return lambda setting: write(found.get((setting, quantity, against)))

    yield Column("setting", _short, left=True)
    for quantity, head in _HEADS.items():
        yield Column(f"Δ{head}", cell(_value, quantity, UNCHANGED))
        yield Column(f"95 %, {head}", cell(_interval, quantity, UNCHANGED), rank=1)
        yield Column(f"{head} since start", cell(_both, quantity, START), rank=2)


def _short(setting: str) -> str:
    """The names of keys without their sections, one a line."""
    return "\n".join(part.partition(".")[2] or part for part in setting.split())


def _value(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else f"{estimate.value:+.2g}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or math.isnan(estimate.ci_low):
        return MISSING
    return f"[{estimate.ci_low:.2g}, {estimate.ci_high:.2g}]"


def _both(estimate: Estimate | None) -> str:
    return f"{_value(estimate)} {_interval(estimate)}"


MARKS = {True: "[green]ok[/green]", False: "[red]FAIL[/red]", None: "[dim]-[/dim]"}


def print_findings(
    out: Results,
    err: Console,
    by_checkpoint: dict[str, list[Finding]],
    sound: str = "Can be measured.",
) -> None:
    """Print a table per checkpoint, and a sentence where no check failed.

    The first screen has the number of the checks that passed, and rows for the others.

    Raises:
        Exit: With status 1, if a check failed.
    """
    for name, findings in by_checkpoint.items():
        if out.room < math.inf and (passed := sum(f.passed is True for f in findings)):
            of = f"{passed} of {len(findings)}"
            say(f"{name}: {of} checks passed; --details says what each has seen.", out)
            findings = [f for f in findings if not f.passed]
        if not findings:
            continue
        table = RichTable(title=name, title_justify="left")
        for column in ("", "check", "what was seen, and what to do"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            advice = f"\n[bold]{escape(finding.advice)}[/bold]" if finding.advice else ""
            seen = escape(finding.detail) + advice
            table.add_row(MARKS[finding.passed], escape(finding.name), seen)
        out.print(table)
    broken = sum(f.passed is False for findings in by_checkpoint.values() for f in findings)
    if broken:
        err.print(f"{broken} checks failed.", style="red")
        raise typer.Exit(1)
    out.conclude(sound)


COLUMNS = {
    "reward": "reward",
    "format": "format",
    "response_length": "length",
    "truncated": "cut",
    "entropy_per_sequence": "ℋ",
    "entropy_per_token": "h",
    "forking_entropy": "forking h",
}
"""Metrics on the screen besides pass@k; the rest is in the file."""


def print_evaluated(evaluated: Evaluated) -> None:
    """Print the table of an evaluation, and where all of it is."""
    show(out, printed_evaluation(evaluated.results))
    say_written(evaluated.table)


def printed_evaluation(results: Sequence[EvaluationResult]) -> Printed:
    """The table of an evaluation, and what limits its numbers."""
    yield evaluation_table(results)
    every = [e for result in results for row in result.rows for e in row.metrics.values() if e]
    for sentence in dict.fromkeys(s for estimate in every for s in estimate.warnings):
        yield f"  note  {sentence}"


def evaluation_table(results: Sequence[EvaluationResult]) -> Table:
    """A row per checkpoint and decoding, with the metrics that have a value somewhere."""
    rows = [(result.checkpoint, row) for result in results for row in result.rows]
    given = [name for name, estimate in rows[0][1].metrics.items() if estimate]
    passes = [name for name in given if name.startswith("pass_at_")]
    shown = {name: name.replace("_at_", "@") for name in passes[:1] + passes[1:][-1:]}
    shown |= {name: title for name, title in COLUMNS.items() if name in given}
    if all(_number(row, "reward") == _number(row, "pass_at_1") for _, row in rows):
        shown.pop("reward", None)  # right or wrong, and nothing else
    title = (
        f"{results[0].dataset}, {results[0].split}: {rows[0][1].n_prompts} prompts, "
        "± standard error; ℋ and h in nats per sequence and per token"
    )
    columns = [
        Column("checkpoint", itemgetter(0), left=True),
        Column("decoding", lambda row: row[1].decoding, left=True),
    ]
    if any(row.group for _, row in rows):
        columns.append(Column("group", lambda row: row[1].group, left=True))
        columns.append(Column("prompts", lambda row: row[1].n_prompts, 1))
    columns += [
        Column(heading, lambda row, name=name: _measured(row[1].metrics[name]), _RANKS.get(name, k))
        for k, (name, heading) in enumerate(shown.items())
    ]
    return Table(title, rows, columns)


_RANKS = {"entropy_per_token": 1, "response_length": 2, "reward": 2}
"""What is kept before the others besides the first metric; those come by their order."""


def _number(row: EvaluatedRow, name: str) -> float | None:
    estimate = row.metrics.get(name)
    return None if estimate is None else known(estimate.value)


def _measured(estimate: Estimate | None) -> str:
    if estimate is None or known(estimate.value) is None:
        return MISSING
    error = MISSING if known(estimate.se) is None else f"{estimate.se:.1g}"
    return f"{estimate.value:.3g}±{error}"


ROUGH = "Times are right within a factor of about two; memory is of the longest responses."


def print_plans(out: Results, err: Console, plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print plans, and whether they fit.

    Args:
        out: Where to.
        err: Where it is said what does not fit.
        plans: One a verb.
        as_json: Whether to print JSON.

    Raises:
        Exit: With status 1, if one does not fit.
    """
    if as_json:
        out.conclude(json.dumps([_document(plan) for plan in plans], indent=1))
    else:
        show(out, _printed(plans))
        out.conclude(ROUGH)
    large = [plan for plan in plans if not plan.fits]
    for plan in large:
        say(
            f"{plan.verb} of {plan.checkpoint} does not fit: it takes {gigabytes(plan.peak)}, and "
            f"there are {gigabytes(plan.memory)}. {plan.cure}",
            err,
        )
    if large:
        raise typer.Exit(1)


def _printed(plans: Sequence[Plan]) -> Printed:
    sizes = (
        Column("memory", lambda of: gigabytes(of.peak)),
        Column("time", lambda of: _time(of.seconds)),
    )
    if len(plans) > 1:
        verbs = (Column("verb", "verb", left=True), *sizes)
        yield Table(f"Verbs of {plans[0].checkpoint}", plans, verbs)
    stages = (Column("stage", "name", left=True), *sizes)
    for plan in plans:
        yield Table(f"{plan.verb} of {plan.checkpoint}", plan.stages, stages)
        yield f"  held    {sizes_in_words(plan.held)}"
        yield (
            f"  peak    {gigabytes(plan.peak)} ({plan.largest[1]}, with "
            f"{gigabytes(plan.libraries)} for libraries) of {gigabytes(plan.memory)}"
        )
        if plan.seconds is not None:
            yield f"  time    {_time(plan.seconds)}\n"
        if plan.not_run is not None:
            yield f"  {plan.not_run}\n"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    if seconds < 1:
        return "< 1 s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _document(plan: Plan) -> dict[str, object]:
    held = [{"name": name, "size": size} for name, size in plan.held.items()]
    found = {"held": held, "peak": plan.peak, "fits": plan.fits, "seconds": plan.seconds}
    return {**asdict(plan), **found, "cure": None if plan.fits else plan.cure}
