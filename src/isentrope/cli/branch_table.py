"""A study of branches, on the screen: one table per checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from isentrope.cli.console import say
from isentrope.cli.layout import Column, print_table
from isentrope.nouns.estimate import Estimate
from isentrope.runs.branch_effects import START, Effect
from isentrope.runs.branch_study import UNCHANGED, Start
from isentrope.verbs.branch import Branched

_HEADS = {"entropy_per_token": "h", "reward": "reward"}


def print_branches(console: Console, branched: Branched) -> None:
    """Print a row per setting: its difference from unchanged, and the change over the branch."""
    repeats = branched.effects[0].estimate.n
    for start in branched.starts:
        of_start = [e for e in branched.effects if e.checkpoint == start.name]
        print_table(console, _title(start, repeats), _columns(of_start))
    if repeats == 1:
        say("  note  One repeat has no interval: --repeats 3 or more gives one.", console)


def _columns(found: Sequence[Effect]) -> list[Column]:
    by_place = {(e.setting, e.quantity, e.against): e.estimate for e in found}
    settings = list(dict.fromkeys(e.setting for e in found))
    columns = [Column("setting", [escape(_short(s)) for s in settings], left=True)]
    for quantity, head in _HEADS.items():
        own, apart = (
            [by_place.get((s, quantity, against)) for s in settings]
            for against in (START, UNCHANGED)
        )
        columns += [
            Column(f"Δ{head}", [_value(x) for x in apart]),
            Column(f"95 %, {head}", [_interval(x) for x in apart], rank=1),
            Column(f"{head} since start", [f"{_value(x)} {_interval(x)}" for x in own], rank=2),
        ]
    return columns


def _title(start: Start, repeats: int) -> str:
    steps = start.until - start.step
    on = f"{steps} step{'s' if steps > 1 else ''}"
    of = f"{repeats} repeat{'s' if repeats > 1 else ''}"
    return f"{start.name}, {on} on: differences from unchanged, mean of {of}; h in nats per token"


def _short(setting: str) -> str:
    """The names of keys without their sections, one a line."""
    return "\n".join(part.partition(".")[2] or part for part in setting.split())


def _value(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:+.2g}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or math.isnan(estimate.ci_low):
        return "–"
    return escape(f"[{estimate.ci_low:.2g}, {estimate.ci_high:.2g}]")
