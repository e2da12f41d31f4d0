"""`isentrope kernel`: blocks of the Fisher kernel, their structure and their spectrum.

results.json        by block: structure, spectrum, block model, clusters; truncations of UU; of EU
                    and FU singular values, δH₁ in the kernel form and what truncations predict;
                    of UU and FU δH₁ by class of pairs
structure.parquet, block_model.parquet, truncations.parquet     the same as tables
UU/  EU/  FU/  EE/  kernel.safetensors, rows.parquet, columns.parquet

The structure of each block, its spectrum and its truncations are printed too.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from safetensors.torch import save_file

from isentrope.attribution.fisher.pair_classes import HELD_OUT
from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.fisher.truncation import truncation_table
from isentrope.nouns.columns import KEY, Column, ends, text
from isentrope.policy.gradient import weighted_gradient
from isentrope.results.attributions import BlockRecord, SecondOrder
from isentrope.results.results import KernelResult
from isentrope.system.progress import progress
from isentrope.verbs.kernel_block import UNEQUAL, Block, weights_of_update
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.printed import Printed, Table, named, number

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
    checkpoint, truncated = result.policy.name, "by a truncated kernel, by response of U"
    for block, record in result.blocks.items():
        name = f"{checkpoint}, {block}"
        if record.structure is not None:
            yield Table(f"{name}: pairs", record.structure, _STRUCTURE)
        yield f"{name}: {record.rows} x {record.columns}"
        yield from _lines(record)
        pairs = {of.replace("_", " "): row for of, row in (record.pair_classes or {}).items()}
        parts, predictions = record.clusters and record.clusters.parts, record.predictions
        if pairs:
            yield Table(f"{name}: δH₁ per sequence and η by class of pairs", pairs, _PAIR_CLASSES)
        if parts:
            yield Table(f"{name}: responses of U that move the rows alike", parts, _CLUSTERS)
        if predictions:
            yield Table(f"{name}: δH₁ on the rows {truncated}", predictions, _TRUNCATIONS)
    if result.truncations is not None:
        yield Table(f"{checkpoint}: δH₁ on U {truncated}", result.truncations, _TRUNCATIONS)


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


def find_kernel(ready: Prepared) -> KernelResult:
    """Compute the blocks of a checkpoint's kernel and look at them.

    Args:
        ready: The checkpoint, at the measuring precision.

    Returns:
        Structure, spectra and tables; the matrices go to folders of their own.

    Raises:
        ValueError: If K₂ is asked for and the step has no weight a response.
    """
    section = ready.config.fisher_kernel
    if "FU" in section.blocks and not ready.analysis.share_responses:
        raise ValueError(_NO_FRESH)
    x, second, K2 = weights_of_update(ready), None, None
    if section.second_order and x is None:
        raise ValueError(f"fisher_kernel.second_order expands in responses, but {UNEQUAL}")
    blocks: dict[str, Block] = {}
    tables: dict[str, list[pd.DataFrame]] = {}
    warnings: list[str] = []
    with progress().bar(KernelResult.verb) as report:
        for name in dict.fromkeys(section.blocks):
            report(len(blocks), len(section.blocks), name)
            block = blocks[name] = Block(ready, name)
            warnings += [f"{name}: {sentence}" for sentence in block.warnings]
            for of, table in block.tables.items():
                tables.setdefault(of, []).append(table.assign(block=name))
    joined = {of: pd.concat(parts) for of, parts in tables.items()}
    if x is not None and section.second_order:
        policy, E, U = ready.policy, ready.E, ready.U
        K2 = second_order_kernel(policy, E, U, gradients=ready.gradients)
        sgd = weighted_gradient(policy, U, ready.step.token_weights)
        nested = second_order_change(policy, E, sgd, confidence=ready.estimator.confidence)
        second = SecondOrder(float(x @ K2 @ x / 2), nested)
    truncated = blocks["UU"].truncations() if "UU" in blocks else None
    if isinstance(truncated, str):
        warnings.append(f"No truncations: {truncated}")
        truncated = None
    if truncated is not None:
        joined["truncations"] = truncation_table(truncated)

    def save(folder: Path) -> None:
        for name, block in blocks.items():
            block.K.save(folder / name)
        if K2 is not None:
            save_file({"matrix": K2.contiguous()}, folder / "second_order.safetensors")

    return KernelResult(
        **vars(ready.header),
        preconditioned=section.preconditioned,
        blocks={name: block.record for name, block in blocks.items()},
        second_order=second,
        truncations=truncated,
        warnings=tuple(warnings),
        tables=joined,
        save_more=save,
    )


_NO_FRESH = (
    "The block FU is of fresh responses to U's prompts, whose own and same-prompt pairs have parts "
    "of δH₁: set analysis.share_responses to their number per prompt. On other prompts than U's, "
    "all of δH₁ is coupling between different sequences."
)
