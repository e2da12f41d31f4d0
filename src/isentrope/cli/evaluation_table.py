"""Evaluations as a table on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from rich.console import Console

from isentrope.cli.console import out, say, say_written
from isentrope.cli.layout import print_table
from isentrope.nouns.estimate import Estimate
from isentrope.runs.evaluation_result import EvaluatedRow, EvaluationResult
from isentrope.system.formatting import MISSING, known
from isentrope.verbs.evaluate import Evaluated
from isentrope.verbs.printed import Column, Table

COLUMNS = {
    "reward": "reward",
    "format": "format",
    "response_length": "length",
    "truncated": "cut",
    "entropy_per_sequence": "ℋ",
    "entropy_per_token": "h",
    "forking_entropy": "forking h",
}
"""Metrics on the screen besides pass@k; the rest is in the file."""


def print_evaluation(console: Console, results: Sequence[EvaluationResult]) -> None:
    """Print the table of an evaluation, and what limits its numbers."""
    print_rows(console, results)
    every = [e for result in results for row in result.rows for e in row.metrics.values() if e]
    for sentence in dict.fromkeys(s for estimate in every for s in estimate.warnings):
        say(f"  note  {sentence}", console)


def print_evaluated(evaluated: Evaluated) -> None:
    """Print the table of an evaluation, and where all of it is."""
    print_evaluation(out, evaluated.results)
    say_written(evaluated.table)


def print_rows(console: Console, results: Sequence[EvaluationResult]) -> None:
    """Print a row per checkpoint and decoding, with the metrics that have a value somewhere."""
    rows = [(result.checkpoint, row) for result in results for row in result.rows]
    given = [name for name, estimate in rows[0][1].metrics.items() if estimate]
    passes = [name for name in given if name.startswith("pass_at_")]
    shown = {name: name.replace("_at_", "@") for name in passes[:1] + passes[1:][-1:]}
    shown |= {name: title for name, title in COLUMNS.items() if name in given}
    if all(_value(row, "reward") == _value(row, "pass_at_1") for _, row in rows):
        shown.pop("reward", None)  # right or wrong, and nothing else
    title = (
        f"{results[0].dataset}, {results[0].split}: {rows[0][1].n_prompts} prompts, "
        "± standard error; ℋ and h in nats per sequence and per token"
    )
    columns = [
        Column("checkpoint", itemgetter(0), left=True),
        Column("decoding", lambda row: row[1].decoding, left=True),
    ]
    columns += [
        Column(heading, lambda row, name=name: _measured(row[1].metrics[name]), _RANKS.get(name, k))
        for k, (name, heading) in enumerate(shown.items())
    ]
    print_table(console, Table(title, rows, columns))


_RANKS = {"entropy_per_token": 1, "response_length": 2, "reward": 2}
"""What is kept before the others besides the first metric; those come by their order."""


def _value(row: EvaluatedRow, name: str) -> float | None:
    estimate = row.metrics.get(name)
    return None if estimate is None else known(estimate.value)


def _measured(estimate: Estimate | None) -> str:
    if estimate is None or known(estimate.value) is None:
        return MISSING
    error = MISSING if known(estimate.se) is None else f"{estimate.se:.1g}"
    return f"{estimate.value:.3g}±{error}"
