"""What `isentrope kernel` prints: the structure of each block, its spectrum and truncations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from isentrope.attribution.fisher.pair_classes import HELD_OUT
from isentrope.attribution.fisher.truncation import Prediction
from isentrope.results.kernel import BlockRecord
from isentrope.results.results import KernelResult
from isentrope.verbs.printed import KEY, Column, Printed, Table, ends, named, number, text

_SHARES = ("diagonal", "same_prompt", "constant", "low_rank", "rest")

_STRUCTURE = (
    Column("relation", KEY, left=True),
    Column("entries", "entries", 3),
    Column("mean", "mean"),
    Column("spread", "spread", 2),
    Column("mean cosine", "mean_cosine"),
    Column("rms cosine", "rms_cosine", 1),
)
_PAIR_CLASSES = (
    Column("pairs", KEY, left=True),
    Column("their part of all", "fraction", 1),
    Column("δH₁ of it", "contribution"),
    Column("if all were such", "per_pair", 2),
    Column("falls as", "falls_as", 1, left=True),
)
_CLUSTERS = (
    Column("cluster", KEY),
    Column("responses", "members"),
    Column("mean reward", "reward", 1),
    Column("Σ wA", "weight", 2),
    Column("δH₁ per η", "delta_h"),
)
_TRUNCATIONS = (  # no ratio of two totals, which would depend on the size of the batch
    Column("truncation", KEY, left=True),
    Column("δH₁ per η", "total"),
    Column("Pearson", "pearson", 1),
    Column("Spearman", "spearman", 2),
)


def printed_kernel(result: KernelResult, _: Path) -> Printed:
    """The blocks, then what truncations of the kernel of U predict."""
    for block, record in result.blocks.items():
        yield from _block(f"{result.policy.name}, {block}", record)
    if result.truncations is not None:
        yield _truncations(result.policy.name, "on U", result.truncations)


def _block(of: str, record: BlockRecord) -> Printed:
    if record.structure is not None:
        yield Table(f"{of}: pairs", record.structure, _STRUCTURE)
    yield f"{of}: {record.rows} x {record.columns}"
    yield from _lines(record)
    if record.pair_classes is not None:
        rows = {name.replace("_", " "): row for name, row in record.pair_classes.items()}
        yield Table(f"{of}: δH₁ per sequence and η by class of pairs", rows, _PAIR_CLASSES)
    if record.clusters is not None and record.clusters.parts is not None:
        title = f"{of}: responses of U that move the rows alike"
        yield Table(title, record.clusters.parts, _CLUSTERS)
    if record.predictions is not None:
        yield _truncations(of, "on the rows", record.predictions)


def _truncations(name: str, where: str, rows: Mapping[str, Prediction]) -> Table:
    title = f"{name}: δH₁ {where} by a truncated kernel, by response of U"
    return Table(title, rows, _TRUNCATIONS)


def _lines(record: BlockRecord) -> Iterator[str]:
    if record.same_less_other_prompt:
        parts = [
            f"{name.replace('_', ' ')} {number(x.value)} {ends(x)}"
            for name, x in record.same_less_other_prompt.items()
            if name != "mean"
        ]
        yield f"  difference   same less other prompts: {', '.join(parts)}"
    if (spectrum := record.spectrum) is not None:
        nulls = named({null.name: null.effective_rank for null in spectrum.nulls})
        above = [null.above for null in spectrum.nulls if null.name == "observed norms"]
        yield (
            f"  spectrum     effective rank {text(spectrum.effective_rank)} (null: {nulls})"
            + "".join(f"; {k} eigenvalues above those of observed norms" for k in above)
        )
    if (singular := record.singular) is not None:
        line = f"  singular     values of effective rank {text(singular.effective_rank)}"
        if (null := singular.null) is not None:
            line += f" (null: {number(null.effective_rank)}); {null.above} above the null's"
        yield line
    if (change := record.delta_h) is not None:
        yield (
            f"  δH₁          of the gradient, −Σ wA E[(S−S̄)K] = {text(change.kernel)}; by forward "
            f"mode on the same responses {text(change.forward_mode)} {change.kernel.unit}"
        )
    if record.held_out:
        yield f"  pairs        {HELD_OUT}"
    if (model := record.block_model) is not None:
        parts = {name.replace("_", " "): model.get(name) or None for name in _SHARES}
        yield f"  |K|² by      {named(parts)}"
    if record.clusters is not None:
        agreement = text(record.clusters.prompt_agreement)
        yield f"  clusters     agree with prompts to {agreement} (adjusted Rand index)"
    if record.sketch is not None:
        yield f"  sketch       {record.sketch.dimension}: error {text(record.sketch.error)}"
