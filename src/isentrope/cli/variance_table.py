"""What `isentrope variance` prints."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from isentrope.cli.attribution_tables import measured, print_lines
from isentrope.cli.layout import Column, print_table
from isentrope.runs.results import VarianceResult

_WORDS = {"entropy": "entropy at θ", "first_order": "ηδH₁", "delta_h": "ΔH(η)"}


def print_variance(console: Console, result: VarianceResult, _: Path) -> None:
    """Print value, variance and prompts needed of every estimator, and what a response costs."""
    rows = [
        (
            _WORDS[quantity],
            name,
            measured(of.estimate),
            measured(of.variance_ratio),
            "" if math.isnan(of.prompts_needed) else f"{math.ceil(of.prompts_needed)}",
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
    if not all(row[4] for row in rows):
        lines.append("  empty        the value may be 0, or its weights are not trusted")
    print_lines(console, lines, result.warnings)
