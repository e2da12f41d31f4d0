"""`isentrope kernel`: blocks of the Fisher kernel, their structure and their spectrum.

results.json        by block: structure, spectrum, block model, clusters; truncations of UU
structure.parquet, block_model.parquet, truncations.parquet     the same as tables
UU/  EU/  EE/       kernel.safetensors, rows.parquet, columns.parquet
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.fisher.block_model import block_model
from isentrope.attribution.fisher.clusters import Clusters, cluster_sequences
from isentrope.attribution.fisher.kernel import FisherKernel, fisher_kernel
from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.fisher.spectrum import Spectrum
from isentrope.attribution.fisher.truncation import Truncations, truncations
from isentrope.attribution.gradients.gram import gram_plan
from isentrope.files import remove_empty
from isentrope.pipelines.prepare import Prepared
from isentrope.policy.scoring import score
from isentrope.progress import Progress
from isentrope.runs.kernel_records import (
    BlockRecord,
    ClustersRecord,
    NullRecord,
    RelationRecord,
    SecondOrder,
    SketchRecord,
    SpectrumRecord,
    TruncationRecord,
)
from isentrope.runs.results import KernelResult

log = logging.getLogger("isentrope")


def find_kernel(ready: Prepared, progress: Progress) -> KernelResult:
    """Compute the blocks of a checkpoint's kernel and look at them.

    Args:
        ready: The checkpoint, at the measuring precision.
        progress: Where to say how far it is.

    Returns:
        Structure, spectra and tables; the matrices go to folders of their own.

    Raises:
        ValueError: If K₂ is asked for and the step has no weight a response.
    """
    section = ready.kernel
    if section.second_order and _sequence_weights(ready) is None:
        raise ValueError(f"fisher_kernel.second_order expands in responses, but {_UNEQUAL}")
    kernels: dict[str, FisherKernel] = {}
    records: dict[str, BlockRecord] = {}
    tables: dict[str, list[pd.DataFrame]] = {"structure": [], "block_model": []}
    warnings: list[str] = []
    blocks = list(dict.fromkeys(section.blocks))
    with progress.bar("kernel") as report:
        for done, block in enumerate(blocks):
            report(done, len(blocks), block)
            K = kernels[block] = _block(ready, block)
            records[block], of_block, sentences = _describe(ready, K)
            warnings += [f"{block}: {sentence}" for sentence in sentences]
            for name, table in of_block.items():
                tables[name].append(table.assign(block=block))
    joined = {name: pd.concat(parts) for name, parts in tables.items() if parts}
    second, K2 = _second_order(ready) if section.second_order else (None, None)
    truncated = None
    if "UU" in kernels:
        rows = _truncations(ready, kernels["UU"])
        if isinstance(rows, str):
            warnings.append(f"No truncations: {rows}")
        else:
            joined["truncations"] = rows.to_frame()
            truncated = {
                row.name: TruncationRecord(row.total, row.ratio, row.pearson, row.spearman)
                for row in rows.rows
            }

    def save(folder: Path) -> None:
        if (tiles := _tiles(ready)) is not None:
            shutil.rmtree(tiles)
            remove_empty([tiles.parent])
        for block, K in kernels.items():
            K.save(folder / block)
        if K2 is not None:
            save_file({"matrix": K2.contiguous()}, folder / "second_order.safetensors")

    return KernelResult(
        **vars(ready.header),
        preconditioned=section.preconditioned,
        blocks=records,
        second_order=second,
        truncations=truncated,
        warnings=tuple(warnings),
        tables=joined,
        save_more=save,
    )


def _block(ready: Prepared, block: str) -> FisherKernel:
    E, U, step = ready.batches.E, ready.batches.U, ready.step
    sides = {"UU": (U, None), "EE": (E, None), "EU": (E, U)}[block]
    n_right = None if sides[1] is None else len(sides[1])
    plan = gram_plan(ready.policy, len(sides[0]), n_right, ready.gradients.storage)
    log.info("%s: %s", block, plan)
    return fisher_kernel(
        ready.policy,
        *sides,
        preconditioner=step.preconditioner if ready.kernel.preconditioned else None,
        gradients=ready.gradients,
        folder=_tiles(ready),
    )


def _tiles(ready: Prepared) -> Path | None:
    """Where finished tiles wait for a run that was killed, if its folder is named."""
    folder = ready.run_folder
    return None if folder is None else folder / "tiles" / ready.subject.name


def _describe(
    ready: Prepared, K: FisherKernel
) -> tuple[BlockRecord, dict[str, pd.DataFrame], list[str]]:
    section, seed, warnings = ready.kernel, ready.sampler.data.seed, []
    record = BlockRecord(len(K.rows), len(K.columns), tuple(K.zero_rows))
    if section.sketch is not None:
        error = K.sketch(section.sketch, seed).error
        record = replace(record, sketch=SketchRecord(section.sketch, error))
    if K.zero_rows:
        warnings.append(f"{len(K.zero_rows)} responses have a zero row: no parameter moves them.")
    if K.rows["prompt"].nunique() < 2:
        return record, {}, [*warnings, "There is one prompt only, so there is no structure."]
    rewarded = K.symmetric and not K.rows["reward"].isna().any()
    structure = K.structure(section.right_above if rewarded else None)
    relations = {
        name: RelationRecord(r.entries, r.mean, r.spread, r.mean_cosine, r.rms_cosine)
        for name, r in structure.relations.items()
    }
    differences = dict(structure.differences)
    record = replace(record, structure=relations, same_less_other_prompt=differences)
    tables = {"structure": structure.to_frame()}
    warnings += structure.warnings
    if not K.symmetric:
        return record, tables, warnings
    spectrum = K.spectrum(seed=seed)
    prompts = torch.tensor(K.rows["prompt"].to_numpy())
    rank = min(section.rank, len(K.rows))
    fitted = block_model(K.matrix, prompts, rank=rank, rounding=K.rounding)
    tables["block_model"] = fitted.to_frame()
    constants = {"a": fitted.a, "b": fitted.b, "c": fitted.c, **fitted.explained}
    record = replace(record, spectrum=_spectrum(spectrum), block_model=constants)
    count = min(section.clusters or ready.batches.U.n_prompts, len(K.rows) - len(K.zero_rows))
    if count >= 3:
        clusters = cluster_sequences(K.matrix, prompts, count=count, rounding=K.rounding)
        record = replace(record, clusters=_clusters(clusters))
        warnings += clusters.warnings
    return record, tables, [*warnings, *spectrum.warnings]


def _clusters(clusters: Clusters) -> ClustersRecord:
    return ClustersRecord(
        count=clusters.count,
        labels=tuple(clusters.labels.tolist()),
        order=tuple(clusters.order.tolist()),
        cophenetic_correlation=clusters.cophenetic_correlation,
        prompt_agreement=clusters.prompt_agreement,
    )


_UNEQUAL = (
    "the step weights the tokens of a response unequally, or their entropies too, so responses "
    "have no weight each that the kernel could be multiplied with."
)
_SILENT = "no response has a weight in the step, which is momentum and decay alone."
_FEW = "U has fewer than three prompts, and errors are over prompts."


def _spectrum(spectrum: Spectrum) -> SpectrumRecord:
    return SpectrumRecord(
        eigenvalues=tuple(spectrum.eigenvalues.tolist()),
        effective_rank=spectrum.effective_rank,
        shares={str(k): share for k, share in spectrum.shares.items()},
        fitted_dimension=spectrum.fitted_dimension,
        participation=tuple(spectrum.participation.tolist()),
        leading_carriers=tuple(spectrum.carriers(0)),
        norm_outliers=tuple(spectrum.norm_outliers()),
        nulls=tuple(NullRecord(**vars(null)) for null in spectrum.nulls),
    )


def _second_order(ready: Prepared) -> tuple[SecondOrder, Tensor]:
    """K₂ on E, and δH₂ of the SGD step along U's gradient: by K₂, and by nested forward mode."""
    policy, E, U, weights = ready.policy, ready.batches.E, ready.batches.U, ready.step.token_weights
    x = _sequence_weights(ready)
    assert x is not None  # find_kernel has asked
    K2 = second_order_kernel(policy, E, U, gradients=ready.gradients)
    direction = policy.weighted_gradient(U, weights)
    nested = second_order_change(policy, E, direction, confidence=ready.estimator.confidence)
    return SecondOrder(float(x @ K2 @ x / 2), nested), K2


def _sequence_weights(ready: Prepared) -> Tensor | None:
    """(n,) w_i A_i where the tokens of a response share it and entropies have no weight."""
    if ready.step.entropy_weights is not None:
        return None
    weights = ready.step.token_weights
    x = weights.gather(1, weights.abs().argmax(1, keepdim=True))[:, 0]
    return x if torch.equal(weights, x[:, None] * ready.batches.U.mask) else None


def _truncations(ready: Prepared, K: FisherKernel) -> Truncations | str:
    """How much of δH₁ on U each truncation predicts, self pairs left out; or why none does."""
    U, x = ready.batches.U, _sequence_weights(ready)
    if x is None:
        return _UNEQUAL
    if not bool(x.any()):
        return _SILENT
    if U.n_prompts < 3:
        return _FEW
    surprisal = -score(ready.policy, U).logprobs.sum(1)
    e = (surprisal - surprisal.mean()) / len(U)
    return truncations(K.matrix, e, x, U.prompt_index, self_pairs=False, rounding=K.rounding)
