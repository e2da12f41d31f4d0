"""Plans as tables on the screen, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.console import Console

from isentrope.cli.console import say
from isentrope.cli.layout import print_table
from isentrope.planning.plan import Plan, gigabytes
from isentrope.planning.stages import Stage
from isentrope.verbs.printed import Column, Table

ROUGH = "Times are rough: a factor of two or three either way; memory is of the longest responses."


def print_plans(out: Console, err: Console, plans: Sequence[Plan], *, as_json: bool) -> None:
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
        say(json.dumps([_document(plan) for plan in plans], indent=1), out)
    else:
        for plan in plans:
            _print(out, plan)
        say(ROUGH, out)
    for plan in plans:
        if not plan.fits:
            say(
                f"{plan.verb} of {plan.checkpoint} does not fit: it takes {gigabytes(plan.peak)}, "
                f"and there are {gigabytes(plan.memory)}. {plan.cure}",
                err,
            )
    if not all(plan.fits for plan in plans):
        raise typer.Exit(1)


def _print(out: Console, plan: Plan) -> None:
    columns = [
        Column("stage", "name", left=True),
        Column("memory", lambda stage: gigabytes(stage.peak)),
        Column("largest terms", _terms, left=True),
        Column("time", lambda stage: _time(plan, stage)),
    ]
    print_table(out, Table(f"{plan.verb} of {plan.checkpoint}", plan.stages, columns))
    say(
        f"  peak    {gigabytes(plan.peak)} ({plan.largest.name}, with {gigabytes(plan.libraries)} "
        f"for Python and its libraries) of {gigabytes(plan.memory)}\n",
        out,
    )


def _terms(stage: Stage) -> str:
    largest = sorted(stage.terms, key=lambda term: -term.size)[:2]
    return "\n".join(f"{term.name} {gigabytes(term.size)}" for term in largest)


def _time(plan: Plan, stage: Stage) -> str:
    if plan.rate is None:
        return "-"
    seconds = plan.rate.seconds(stage.work)
    if seconds < 1:
        return "< 1 s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _document(plan: Plan) -> dict[str, object]:
    seconds = None if plan.rate is None else [plan.rate.seconds(s.work) for s in plan.stages]
    document = asdict(plan) | {"peak": plan.peak, "fits": plan.fits, "seconds": plan.seconds}
    for k, stage in enumerate(document["stages"]):
        stage["peak"] = plan.stages[k].peak
        stage["seconds"] = None if seconds is None else seconds[k]
    return document
