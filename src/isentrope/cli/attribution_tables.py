"""Attributions as tables on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from isentrope.attribution.influence.reliability import LISTED, printed_reliability
from isentrope.cli.class_tables import class_lines, measured, print_classes
from isentrope.cli.console import say
from isentrope.cli.layout import Column, print_table
from isentrope.estimators.tail import LIGHT_TAILS
from isentrope.nouns.estimate import Estimate, t_quantile
from isentrope.results.attributions import MomentumRecord, SharesRecord
from isentrope.results.results import AuditResult, InfluenceResult, NoiseResult
from isentrope.system.formatting import TERMINAL, known

bounds, _number = TERMINAL.interval, TERMINAL.number

PARTS = ("momentum", "decay", "gradient")


def print_influence(console: Console, result: InfluenceResult, _: Path) -> None:
    """Print the budget, who moved the entropy most, and how reliable that is."""
    name, entropy, reward = result.policy.name, result.entropy, result.reward
    kind = "tokens" if "tokens" in result.tables else "sequences"
    share = known(result.listed_share.get(kind))
    _print_most(console, result.tables[kind], kind, name, share)
    print_classes(console, name, result.classes)
    lines = [f"{name}: δH₁ {measured(entropy.total)} {entropy.unit}, on {result.measured_on}"]
    parts = [f"{part} {measured(getattr(entropy, part))}" for part in PARTS]
    lines.append(
        f"  of which     {', '.join(parts)}; they sum to the total to {entropy.closure:.1e}"
    )
    if reward is not None:
        parts = [
            f"{part} {measured(getattr(reward, part))}"
            for part in ("total", "momentum", "gradient")
        ]
        lines.append(f"  reward       {', '.join(parts)} {reward.unit}")
    if result.past is not None:
        lines += past_lines(result.past)
    if result.shares is not None:
        lines.append(_shares(result.shares))
    lines += class_lines(result.classes)
    lines.append(_reliability(result.reliability))
    if share is not None:
        lines.append(
            f"  listed       delta_h x {share:.2f}, the share of the largest {kind} that is not "
            f"noise; {kind}.parquet has what was measured"
        )
    lines.append(f"  by           {result.how}; {_errors(result)}")
    print_lines(console, lines, result.warnings)


LATEST = 5
"""Past updates that are printed one by one."""


def past_lines(past: MomentumRecord) -> list[str]:
    """The momentum by past update: the latest, the others together, and what is left."""
    parts = [f"step_{step.step} {measured(step.delta_h)}" for step in past.steps[:LATEST]]
    if others := past.steps[LATEST:]:
        total = _number(sum(step.delta_h.value for step in others))
        parts.append(f"{len(others)} earlier ones {total}")
    if past.before is not None:
        parts.append(f"before step_{past.steps[-1].step} {measured(past.before.delta_h)}")
    parts.append(f"not attributed {_number(past.not_attributed.delta_h.value)}")
    lines = [f"  momentum     by past update: {', '.join(parts)}"]
    if past.half is not None:
        lines.append(f"  half of it   is of the last {past.half} updates")
    return lines


def _shares(shares: SharesRecord) -> str:
    """Another population than the budget's: the sum is named first, and is not the gradient's."""
    named = {
        "self": shares.itself,
        "same prompt": shares.same_prompt,
        "other prompt": shares.other_prompt,
    }
    parts = [f"{name} {measured(x)}" for name, x in named.items() if x is not None]
    return (
        f"  shares       on other responses, {shares.measured_on}: the gradient's part is "
        f"{measured(shares.gradient)} there, of which {', '.join(parts)}"
    )


def _reliability(estimates: Mapping[str, Estimate]) -> str:
    text = ", ".join(f"{of} {_number(printed_reliability(r))}" for of, r in estimates.items())
    return f"  reliability  rank correlation with an infinite E, about: {text}"


def _errors(result: InfluenceResult) -> str:
    """What ± is, and what it is multiplied by."""
    df = result.groups - 1
    if df < 1:
        return "values alone, without errors"
    confidence = result.estimator.confidence
    return (
        f"± is one se from {result.groups} groups of prompts, {df} degrees of freedom: multiply "
        f"by {t_quantile(df, confidence):.2f} for {confidence * 100:g} %"
    )


_LISTED_COLUMNS = {
    "tokens": {"sequence": 3, "position": 4, "text": 0, "s": 5, "H": 2, "advantage": 1},
    "sequences": {"sequence": 0, "key": 4, "length": 3, "reward": 2, "advantage": 1},
}
"""Columns beside the sizes, and their ranks (`layout`)."""


def _print_most(
    console: Console, table: pd.DataFrame, kind: str, name: str, share: float | None
) -> None:
    """Print the tokens (or sequences) that lower entropy most, and those that raise it most.

    Args:
        console: Where to.
        table: One row per token.
        kind: "tokens" or "sequences".
        name: Of the checkpoint.
        share: λ of the listed sizes (`influence.reliability`), None where it is not known; the
            normal posterior of a size x with error se is λ x ± √λ se.
    """
    order = table.sort_values("delta_h")
    some = pd.concat([order.head(LISTED[0]), order.iloc[max(LISTED[0], len(order) - LISTED[1]) :]])
    if share is not None:
        some["delta_h"], some["delta_h_se"] = (
            share * some["delta_h"],
            share**0.5 * some["delta_h_se"],
        )
    columns = [
        Column(column, [_cell(x) for x in some[column]], rank)
        for column, rank in _LISTED_COLUMNS[kind].items()
    ]
    for rank, size in enumerate(c for c in ("delta_h", "delta_j") if c in table):
        pairs = zip(some[size], some[f"{size}_se"], strict=True)
        cells = [f"{_number(x)} ± {_number(se, 1)}" for x, se in pairs]
        columns.append(Column(f"{size} ± se", cells, rank))
    title = f"{name}: {kind} that move entropy most, per unit η"
    print_table(console, title, columns, sections=[LISTED[0] - 1])


def print_noise(console: Console, result: NoiseResult, _: Path) -> None:
    """Print every noise scale with its interval."""
    rows = [
        (of, name.replace("_", " "), measured(x), bounds(x.ci_low, x.ci_high), x.unit)
        for of, scales in result.scales.items()
        for name, x in scales.items()
    ]
    cells = list(zip(*rows, strict=True)) or [()] * 5
    columns = [
        Column("of", cells[0], left=True),
        Column("quantity", cells[1], left=True),
        Column("value", cells[2]),
        Column("interval", cells[3], rank=1),
        Column("unit", cells[4], rank=2, left=True),
    ]
    print_table(console, f"{result.policy.name}: noise", columns)
    print_lines(console, [f"  intervals    {LIGHT_TAILS}"], result.warnings)


def print_audit(console: Console, result: AuditResult, _: Path) -> None:
    """Print correlations, sign agreement and overlaps of every proxy."""
    for of, record in (("tokens", result.tokens), ("sequences", result.sequences)):
        proxies = record.proxies
        names = list(dict.fromkeys(name for row in proxies.values() for name in row))
        shown = [n for n in names if n.split("@")[0] in _AUDITED]
        title = f"{result.policy.name}: {record.items} {of}, proxies against influence"
        columns = [Column("proxy", list(proxies), left=True)]
        for rank, name in enumerate(shown):
            cells = [measured(row.get(name)) for row in proxies.values()]
            columns.append(Column(name.replace("_", " "), cells, rank))
        print_table(console, title, columns)
    print_classes(console, result.policy.name, result.classes)
    lines = [*class_lines(result.classes), _reliability(result.reliability)]
    print_lines(console, lines, result.warnings)


_AUDITED = ("pearson", "spearman", "sign_agreement", "overlap")


def print_lines(console: Console, lines: Iterable[str], warnings: Iterable[str]) -> None:
    """Print lines of text, then what limits the use of the numbers."""
    for line in [*lines, *(f"  note         {sentence}" for sentence in warnings)]:
        say(line, console)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return escape(repr(value)[1:-1])
    return str(value) if isinstance(value, (int, np.integer)) else _number(value)
