"""Classes of tokens and sequences as tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from isentrope.attribution.influence.classes import Classes
from isentrope.cli.layout import Column, print_table
from isentrope.nouns.estimate import Estimate
from isentrope.results.criterion import is_it_all
from isentrope.system.formatting import MISSING, TERMINAL, known


def print_classes(console: Console, name: str, classes: Mapping[str, Classes]) -> None:
    """Print the table of the tokens' classes; without one, that of the sequences."""
    of = "tokens" if "tokens" in classes else "sequences"
    if of not in classes:
        return
    rows = classes[of].parts
    columns = [
        Column("class", list(rows), left=True),
        Column(of, [f"{row.members:.0f}" for row in rows.values()], 2),
        Column("δH ± se", [measured(row.delta_h) for row in rows.values()]),
        Column("of the fall", [_interval(row.fall) for row in rows.values()], 1),
        Column("share of δH", [_interval(row.share_h) for row in rows.values()], 3),
    ]
    if all(row.delta_j is not None for row in rows.values()):
        columns.append(Column("δJ ± se", [measured(row.delta_j) for row in rows.values()], 4))
        columns.append(Column("share of δJ", [_interval(r.share_j) for r in rows.values()], 5))
    print_table(console, f"{name}: classes of {of}, per unit η", columns)


def class_lines(classes: Mapping[str, Classes]) -> list[str]:
    """Where classes are split, and whether the published criterion is the whole story."""
    found = classes.get("tokens", classes.get("sequences"))
    if found is None:
        return []
    ends = ", ".join(f"{name} {TERMINAL.number(x)}" for name, x in found.thresholds.items())
    lines = [f"  classes      split at {ends}"]
    sentence = is_it_all(found, TERMINAL)
    return [*lines, f"  criterion    {sentence}"] if sentence else lines


def measured(estimate: Estimate | None) -> str:
    """A number with its standard error, as short as it can be, such as "-2.24 ± 0.1"."""
    return MISSING if estimate is None else TERMINAL.with_error(estimate.value, estimate.se)


def _interval(estimate: Estimate | None) -> str:
    """Value and interval; no value without an interval, because a share of noise has no meaning."""
    if estimate is None or known(estimate.ci_low) is None:
        return MISSING
    ends = TERMINAL.interval(estimate.ci_low, estimate.ci_high)
    return f"{TERMINAL.number(estimate.value)} {ends}"
