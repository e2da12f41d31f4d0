"""A study of branches, on the screen: one table per checkpoint."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from isentrope.cli.console import say
from isentrope.cli.layout import Column, print_table
from isentrope.formatting import TERMINAL
from isentrope.pipelines.branch import Branched
from isentrope.runs.branch_effects import START, Effect
from isentrope.runs.branch_study import UNCHANGED, Start

_HEADS = {"entropy_per_token": "Δh", "reward": "Δreward"}


def print_branches(console: Console, branched: Branched) -> None:
    """Print a row per setting: changes over the branch, and their differences from unchanged."""
    for start in branched.starts:
        mine = {
            (e.setting, e.quantity, e.against): e
            for e in branched.effects
            if e.checkpoint == start.name
        }
        settings = list(dict.fromkeys(setting for setting, _, _ in mine))
        columns = [Column("setting", [escape(s) for s in settings], left=True)]
        for quantity, head in _HEADS.items():
            for against, words, rank in ((START, head, 1), (UNCHANGED, f"{head} − unchanged", 0)):
                cells = [_cell(mine.get((s, quantity, against))) for s in settings]
                columns.append(Column(words, cells, rank=rank))
        print_table(console, _title(start, branched.effects[0].estimate.n), columns)
    if branched.effects[0].estimate.n == 1:
        say("  note  One repeat has no interval: --repeats 3 or more gives one.", console)


def _title(start: Start, repeats: int) -> str:
    steps = start.until - start.step
    return (
        f"{start.name}: {steps} step{'s' if steps > 1 else ''} from there, mean of {repeats} "
        f"repeat{'s' if repeats > 1 else ''} \\[95 % interval]; h in nats per token"
    )


def _cell(effect: Effect | None) -> str:
    if effect is None:
        return "–"
    found = effect.estimate
    value = f"{found.value:+.3g}"
    ends = TERMINAL.interval(found.ci_low, found.ci_high)
    return escape(value if ends == "–" else f"{value} {ends}")
