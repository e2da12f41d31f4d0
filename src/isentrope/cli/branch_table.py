"""A study of branches, on the screen: one table per checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from isentrope.cli.console import say
from isentrope.cli.layout import print_table
from isentrope.nouns.estimate import Estimate
from isentrope.runs.branch_effects import START, Effect
from isentrope.runs.branch_study import UNCHANGED, Start
from isentrope.system.formatting import MISSING
from isentrope.verbs.branch import Branched
from isentrope.verbs.printed import Column, Table

Cell = Callable[[str], str]
"""From a setting to its cell."""
_HEADS = {"entropy_per_token": "h", "reward": "reward"}


def print_branches(console: Console, branched: Branched) -> None:
    """Print a row per setting: its difference from unchanged, and the change over the branch."""
    repeats = branched.effects[0].estimate.n
    for start in branched.starts:
        of_start = [e for e in branched.effects if e.checkpoint == start.name]
        settings = list(dict.fromkeys(effect.setting for effect in of_start))
        columns = list(_columns(of_start))
        print_table(console, Table(_title(start, repeats), settings, columns))
    if repeats == 1:
        say("  note  One repeat has no interval: --repeats 3 or more gives one.", console)


def _columns(found: Sequence[Effect]) -> Iterator[Column]:
    by_place = {(e.setting, e.quantity, e.against): e.estimate for e in found}

    def cell(write: Callable[[Estimate | None], str], quantity: str, against: str) -> Cell:
        return lambda setting: write(by_place.get((setting, quantity, against)))

    yield Column("setting", _short, left=True)
    for quantity, head in _HEADS.items():
        yield Column(f"Δ{head}", cell(_value, quantity, UNCHANGED))
        yield Column(f"95 %, {head}", cell(_interval, quantity, UNCHANGED), rank=1)
        yield Column(f"{head} since start", cell(_both, quantity, START), rank=2)


def _title(start: Start, repeats: int) -> str:
    steps = start.until - start.step
    on = f"{steps} step{'s' if steps > 1 else ''}"
    of = f"{repeats} repeat{'s' if repeats > 1 else ''}"
    return f"{start.name}, {on} on: differences from unchanged, mean of {of}; h in nats per token"


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
