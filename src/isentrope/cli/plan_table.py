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
from isentrope.verbs.printed import Column, Table

ROUGH = "Times are right within a factor of about two; memory is of the longest responses."


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
    large = [plan for plan in plans if not plan.fits]
    for plan in large:
        say(
            f"{plan.verb} of {plan.checkpoint} does not fit: it takes {gigabytes(plan.peak)}, and "
            f"there are {gigabytes(plan.memory)}. {plan.cure}",
            err,
        )
    if large:
        raise typer.Exit(1)


def _print(out: Console, plan: Plan) -> None:
    columns = [
        Column("stage", "name", left=True),
        Column("memory", lambda stage: gigabytes(stage.peak)),
        Column("time", lambda stage: _time(stage.seconds)),
    ]
    print_table(out, Table(f"{plan.verb} of {plan.checkpoint}", plan.stages, columns))
    terms = ", ".join(f"{name} {gigabytes(size)}" for name, size in plan.held.items())
    say(f"  held    {terms}", out)
    say(
        f"  peak    {gigabytes(plan.peak)} ({plan.largest[1]}, with {gigabytes(plan.libraries)} "
        f"for Python and its libraries) of {gigabytes(plan.memory)}",
        out,
    )
    if plan.seconds is not None:
        say(f"  time    {_time(plan.seconds)}\n", out)
    if plan.not_run is not None:
        say(f"  This is not all: no pass is in it, since {plan.not_run}.\n", out)


def _time(seconds: float) -> str:
    if seconds < 1:
        return "< 1 s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _document(plan: Plan) -> dict[str, object]:
    held = [{"name": name, "size": size} for name, size in plan.held.items()]
    found = {"held": held, "peak": plan.peak, "fits": plan.fits, "seconds": plan.seconds}
    return {**asdict(plan), **found, "cure": None if plan.fits else plan.cure}
