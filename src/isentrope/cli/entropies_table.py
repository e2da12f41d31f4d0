"""What `isentrope entropies` prints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from isentrope.cli.attribution_tables import bounds, measured, print_lines
from isentrope.cli.layout import Column, print_table
from isentrope.results.results import EntropiesResult

WORDS = {
    "per_token": "per token",
    "micro_batch_means": "mean of micro-batches",
    "response_means": "mean of responses",
    "per_response": "per response",
    "surprisal": "surprisal",
    "sampler_surprisal": "surprisal, sampler's",
    "sampler_entropy": "per token, sampler's",
    "without_end": "without end tokens",
    "finished": "finished responses",
    "top_tokens": "top 20 % of tokens",
    "temperature_1": "temperature 1",
    "truncated": "after top-k and top-p",
    "bfloat16": "in bfloat16",
}


def print_entropies(console: Console, result: EntropiesResult, _: Path) -> None:
    """Print value and difference to the exact one of each definition, and which was logged."""
    rows = result.rows
    columns = [
        Column("on", [row.batch for row in rows], left=True),
        Column("definition", [WORDS[row.definition] for row in rows], left=True),
        Column("value", [f"{row.value.value:.5g} ± {row.value.se:.1g}" for row in rows]),
        Column(
            "95 % interval", [bounds(row.value.ci_low, row.value.ci_high) for row in rows], rank=1
        ),
        Column("minus exact", [measured(row.difference) for row in rows]),
    ]
    if result.logged is not None:
        columns.append(Column("logged", ["yes" if row.agrees else "" for row in rows]))
    title = f"{result.policy.name}: entropies in nats; the first row is exact"
    last = sum(row.batch == "E" for row in rows) - 1
    print_table(console, title, columns, sections={last})
    lines = ["  E, U         E is unfiltered, from this policy; U is the update batch"]
    if result.logged is None:
        lines.append("  logged       no value: give --logged, or a trainer_state.json that has it")
    else:
        same = [f"{WORDS[row.definition]} on {row.batch}" for row in rows if row.agrees]
        lines.append(
            f"  logged       {result.logged:.6g} ({result.logged_from}) agrees within errors with "
            f"{', '.join(same) or 'none of these'}"
        )
    print_lines(console, lines, result.warnings)
