"""What `isentrope variance` prints."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from isentrope.cli.attribution_tables import measured, print_lines
from isentrope.cli.layout import Column, print_table
from isentrope.estimators.variance import CERTAIN
from isentrope.nouns.estimate import Estimate
from isentrope.results.results import VarianceResult

_WORDS = {"entropy": "entropy at θ", "first_order": "ηδH₁", "delta_h": "ΔH(η)"}


def print_variance(console: Console, result: VarianceResult, _: Path) -> None:
    """Print value, variance and prompts needed of every estimator, and what a response costs."""
    rows = [
        (
            _WORDS[quantity],
            name,
            measured(of.estimate),
            measured(of.variance_ratio),
            _needed(of.prompts_needed),
            "" if of.design_effect is None else measured(of.design_effect),
        )
        for quantity, by_method in result.methods.items()
        for name, of in by_method.items()
    ]
    cells = list(zip(*rows, strict=True))
    wanted = f"prompts for {100 * result.wanted_error:g} %"
    columns = [
        Column("quantity", cells[0], left=True),
        Column("estimator", cells[1], left=True),
        Column("value", cells[2]),
        Column("variance ÷ prefix", cells[3], rank=1),
        Column(wanted, cells[4]),
    ]
    grouped = result.batches.E.sequences > result.batches.E.prompt_draws
    if grouped:
        columns.append(Column("design effect", cells[5]))
    title = f"{result.policy.name}: errors at η = {result.eta:g}"
    print_table(console, title, columns)
    parts = ", ".join(f"{name} {1e3 * x:.3g}" for name, x in result.seconds.items())
    lines = [f"  ms/response  {parts}"]
    if grouped:
        lines.append("  design effect  variance ÷ that of as many prompts with one response each")
    if not all(row[4][:1].isdigit() for row in rows):
        lines.append(
            f"  no size      the value is within {CERTAIN:g} errors of 0, which gives a lower "
            "bound at most, or its weights are not trusted"
        )
    print_lines(console, lines, result.warnings)


def _needed(prompts: Estimate) -> str:
    """360 [200, 900], or "200 or more", or nothing; without an interval there is no number."""
    low, high = prompts.ci_low, prompts.ci_high
    if not math.isfinite(low):
        return ""
    if not (math.isfinite(prompts.value) and math.isfinite(high)):
        return f"{_size(low)} or more"
    return escape(f"{_size(prompts.value)} [{_size(low)}, {_size(high)}]")


def _size(prompts: float) -> str:
    """Rounded up at the second digit: a size to plan with."""
    unit = 10 ** max(math.floor(math.log10(prompts)) - 1, 0) if prompts >= 1 else 1
    return f"{math.ceil(prompts / unit) * unit}"
