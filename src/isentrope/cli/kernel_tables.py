"""Blocks of the Fisher kernel as tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from isentrope.attribution.fisher.pair_classes import HELD_OUT
from isentrope.attribution.fisher.structure import Relation
from isentrope.attribution.fisher.truncation import Prediction
from isentrope.cli.attribution_tables import measured, print_lines
from isentrope.cli.layout import Column, print_table
from isentrope.nouns.estimate import Estimate
from isentrope.results.kernel import (
    BlockRecord,
    ClusterRecord,
    PairClassRecord,
)
from isentrope.results.results import KernelResult
from isentrope.system.formatting import TERMINAL

bounds, _number = TERMINAL.interval, TERMINAL.number


def print_kernel(console: Console, result: KernelResult, _: Path) -> None:
    """Print the structure of each block, its spectrum and the truncations."""
    name = result.policy.name
    for block, record in result.blocks.items():
        of = f"{name}, {block}"
        if record.structure is not None:
            _print_structure(console, of, record.structure)
        lines = [f"{of}: {record.rows} x {record.columns}", *_block_lines(record)]
        print_lines(console, lines, [])
        if record.pair_classes is not None:
            _print_pair_classes(console, of, record.pair_classes)
        if record.clusters is not None and record.clusters.parts is not None:
            _print_clusters(console, of, record.clusters.parts)
        if record.predictions is not None:
            _print_truncations(console, of, "on the rows", record.predictions)
    if result.truncations is not None:
        _print_truncations(console, name, "on U", result.truncations)
    print_lines(console, [], result.warnings)


def _block_lines(record: BlockRecord) -> list[str]:
    lines = []
    if record.same_less_other_prompt:
        difference = _difference(record.same_less_other_prompt)
        lines.append(f"  difference   same less other prompts: {difference}")
    if record.spectrum is not None:
        nulls = [f"{null.name} {_number(null.effective_rank)}" for null in record.spectrum.nulls]
        above = [null.above for null in record.spectrum.nulls if null.name == "observed norms"]
        lines.append(
            f"  spectrum     effective rank {measured(record.spectrum.effective_rank)} "
            f"(null: {', '.join(nulls)})"
            + "".join(f"; {k} eigenvalues above those of observed norms" for k in above)
        )
    if (singular := record.singular) is not None:
        null = "" if singular.null is None else f" (null: {_number(singular.null.effective_rank)})"
        above = "" if singular.null is None else f"; {singular.null.above} above the null's"
        rank = measured(singular.effective_rank)
        lines.append(f"  singular     values of effective rank {rank}{null}{above}")
    if record.delta_h is not None:
        two = measured(record.delta_h.kernel), measured(record.delta_h.forward_mode)
        lines.append(
            f"  δH₁          of the gradient, −Σ wA E[(S−S̄)K] = {two[0]}; by forward mode on the "
            f"same responses {two[1]} {record.delta_h.kernel.unit}"
        )
    if record.held_out:
        lines.append(f"  pairs        {HELD_OUT}")
    if record.block_model is not None:
        model = record.block_model
        parts = [f"{k.replace('_', ' ')} {measured(model[k])}" for k in _SHARES if model.get(k)]
        lines.append(f"  |K|² by      {', '.join(parts)}")
    if record.clusters is not None:
        agreement = measured(record.clusters.prompt_agreement)
        lines.append(f"  clusters     agree with prompts to {agreement} (adjusted Rand index)")
    if record.sketch is not None:
        error = measured(record.sketch.error)
        lines.append(f"  sketch       {record.sketch.dimension}: error {error}")
    return lines


def _difference(estimates: Mapping[str, Estimate]) -> str:
    """One number each, with its own interval."""
    parts = [
        f"{name.replace('_', ' ')} {_number(x.value)} {bounds(x.ci_low, x.ci_high)}"
        for name, x in estimates.items()
        if name != "mean"
    ]
    return ", ".join(parts)


_SHARES = ("diagonal", "same_prompt", "constant", "low_rank", "rest")


def _print_structure(console: Console, title: str, structure: Mapping[str, Relation]) -> None:
    columns = [
        Column("relation", list(structure), left=True),
        Column("entries", [str(row.entries) for row in structure.values()], rank=3),
    ]
    for name, rank in {"mean": 0, "spread": 2, "mean_cosine": 0, "rms_cosine": 1}.items():
        cells = [measured(getattr(row, name)) for row in structure.values()]
        columns.append(Column(name.replace("_", " "), cells, rank))
    print_table(console, f"{title}: pairs", columns)


def _print_truncations(
    console: Console, name: str, where: str, rows: Mapping[str, Prediction]
) -> None:
    """Totals and correlations; a ratio of two totals would depend on the size of the batch."""
    columns = [Column("truncation", list(rows), left=True)]
    headings = {"total": "δH₁ per η", "pearson": "Pearson", "spearman": "Spearman"}
    for rank, (column, heading) in enumerate(headings.items()):
        cells = [measured(getattr(row, column)) for row in rows.values()]
        columns.append(Column(heading, cells, rank))
    print_table(console, f"{name}: δH₁ {where} by a truncated kernel, by response of U", columns)


def _print_pair_classes(console: Console, name: str, rows: Mapping[str, PairClassRecord]) -> None:
    columns = [
        Column("pairs", [x.replace("_", " ") for x in rows], left=True),
        Column("their part of all", [_number(row.fraction) for row in rows.values()], 1),
        Column("δH₁ of it", [measured(row.contribution) for row in rows.values()]),
        Column("if all were such", [measured(row.per_pair) for row in rows.values()], 2),
        Column("falls as", [row.falls_as for row in rows.values()], 1, left=True),
    ]
    print_table(console, f"{name}: δH₁ per sequence and η by class of pairs", columns)


def _print_clusters(console: Console, name: str, parts: Sequence[ClusterRecord]) -> None:
    columns = [
        Column("cluster", [str(k) for k in range(len(parts))]),
        Column("responses", [str(part.members) for part in parts]),
        Column("mean reward", [_number(part.reward) for part in parts], 1),
        Column("Σ wA", [_number(part.weight) for part in parts], 2),
        Column("δH₁ per η", [measured(part.delta_h) for part in parts]),
    ]
    print_table(console, f"{name}: responses of U that move the rows alike", columns)
