"""`isentrope kernel`: blocks of the Fisher kernel, their structure and their spectrum.

results.json        by block: structure, spectrum, block model, clusters; truncations of UU; of EU
                    and FU singular values, δH₁ in the kernel form and what truncations predict;
                    of UU and FU δH₁ by class of pairs
structure.parquet, block_model.parquet, truncations.parquet     the same as tables
UU/  EU/  FU/  EE/  kernel.safetensors, rows.parquet, columns.parquet
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.fisher.block_model import block_model
from isentrope.attribution.fisher.clusters import Clustering, cluster_sequences
from isentrope.attribution.fisher.kernel import FisherKernel, fisher_kernel
from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.fisher.spectrum import Eigenvalues
from isentrope.attribution.fisher.truncation import Prediction, Truncations, truncations
from isentrope.attribution.gradients.gram import gram_plan
from isentrope.attribution.gradients.sketch import sketched_kernel
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.saved import fields_of
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score
from isentrope.results.kernel import (
    BlockRecord,
    ClustersRecord,
    SecondOrder,
    SketchRecord,
    SpectrumRecord,
)
from isentrope.results.results import KernelResult
from isentrope.system.files import remove_empty
from isentrope.system.progress import Progress
from isentrope.verbs.influence import fresh_responses
from isentrope.verbs.kernel_block import (
    UNEQUAL,
    cluster_count,
    describe_pairs,
    sequence_weights,
)
from isentrope.verbs.prepare import Prepared

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
    if "FU" in section.blocks and not ready.analysis.share_responses:
        raise ValueError(_NO_FRESH)
    if section.second_order and sequence_weights(ready) is None:
        raise ValueError(f"fisher_kernel.second_order expands in responses, but {UNEQUAL}")
    kernels: dict[str, FisherKernel] = {}
    records: dict[str, BlockRecord] = {}
    tables: dict[str, list[pd.DataFrame]] = {"structure": [], "block_model": []}
    warnings: list[str] = []
    blocks = list(dict.fromkeys(section.blocks))
    with progress.bar("kernel") as report:
        for done, block in enumerate(blocks):
            report(done, len(blocks), block)
            E, U = _sides(ready, block)
            K = kernels[block] = _block(ready, block, E, U)
            fields, of_block, sentences = _describe(ready, K, (E, U))
            of_pairs, also = describe_pairs(ready, K, E, E if U is None else U)
            records[block] = BlockRecord(**fields, **of_pairs)
            warnings += [f"{block}: {sentence}" for sentence in (*sentences, *also)]
            for name, table in of_block.items():
                tables[name].append(table.assign(block=block))
    joined = {name: pd.concat(parts) for name, parts in tables.items() if parts}
    second, K2 = _second_order(ready) if section.second_order else (None, None)
    truncated: dict[str, Prediction] | None = None
    if "UU" in kernels:
        rows = _truncations(ready, kernels["UU"])
        if isinstance(rows, str):
            warnings.append(f"No truncations: {rows}")
        else:
            joined["truncations"] = rows.to_frame()
            truncated = {**rows.by_name}

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


_NO_FRESH = (
    "The block FU is of fresh responses to U's prompts, whose own and same-prompt pairs have parts "
    "of δH₁: set analysis.share_responses to their number per prompt. On other prompts than U's, "
    "all of δH₁ is coupling between different sequences."
)


def _sides(ready: Prepared, block: str) -> tuple[Rollouts, Rollouts | None]:
    """Rows and columns of a block; None for the rows themselves."""
    E, U = ready.batches.E, ready.batches.U
    if block == "FU":
        return fresh_responses(ready.sampler, U, ready.analysis.share_responses), U
    return {"UU": (U, None), "EE": (E, None), "EU": (E, U)}[block]


def _block(ready: Prepared, block: str, E: Rollouts, U: Rollouts | None) -> FisherKernel:
    n_right = None if U is None else len(U)
    plan = gram_plan(ready.policy, len(E), n_right, ready.gradients.storage)
    log.info("%s: %s", block, plan)
    return fisher_kernel(
        ready.policy,
        E,
        U,
        preconditioner=ready.step.preconditioner if ready.kernel.preconditioned else None,
        gradients=ready.gradients,
        diagonals=True,
        folder=_tiles(ready),
    )


def _tiles(ready: Prepared) -> Path | None:
    """Where finished tiles wait for a run that was killed, if its folder is named."""
    folder = ready.run_folder
    return None if folder is None else folder / "tiles" / ready.subject.name


def _describe(
    ready: Prepared, K: FisherKernel, sides: tuple[Rollouts, Rollouts | None]
) -> tuple[dict[str, Any], dict[str, pd.DataFrame], list[str]]:
    """Fields of a block's record, tables, and what limits them."""
    section, seed, warnings = ready.kernel, ready.sampler.data.seed, []
    fields: dict[str, Any] = {"rows": len(K.rows), "columns": len(K.columns)}
    fields["zero_rows"] = tuple(K.zero_rows)
    if section.sketch is not None:
        E, U = sides
        sketched = sketched_kernel(
            ready.policy,
            E,
            U,
            section.sketch,
            preconditioner=ready.step.preconditioner if section.preconditioned else None,
            seed=seed,
            exact=K.matrix,
            backend=ready.gradients.backend,
        )
        fields["sketch"] = SketchRecord(section.sketch, sketched.error)
    if K.zero_rows:
        warnings.append(f"{len(K.zero_rows)} responses have a zero row: no parameter moves them.")
    if K.rows["prompt"].nunique() < 2:
        return fields, {}, [*warnings, "There is one prompt only, so there is no structure."]
    rewarded = K.symmetric and not K.rows["reward"].isna().any()
    structure = K.structure(section.right_above if rewarded else None)
    fields["structure"] = dict(structure.relations)
    fields["same_less_other_prompt"] = dict(structure.differences)
    tables = {"structure": structure.to_frame()}
    warnings += [x for x in structure.warnings if K.symmetric or x != "same_prompt: no such pair."]
    if not K.symmetric:
        return fields, tables, warnings
    spectrum = K.spectrum(seed=seed)
    rank = min(section.rank, len(K.rows))
    fitted = block_model(K.square, rank=rank)
    tables["block_model"] = fitted.to_frame()
    fields["block_model"] = {"a": fitted.a, "b": fitted.b, "c": fitted.c, **fitted.explained}
    fields["spectrum"] = SpectrumRecord(
        **fields_of(Eigenvalues, spectrum),
        leading_carriers=tuple(spectrum.carriers(0)),
        norm_outliers=tuple(spectrum.norm_outliers()),
    )
    if count := cluster_count(ready, len(K.rows) - len(K.zero_rows)):
        clusters = cluster_sequences(K.square, count=count)
        fields["clusters"] = ClustersRecord(**fields_of(Clustering, clusters))
        warnings += clusters.warnings
    return fields, tables, [*warnings, *spectrum.warnings]


_SILENT = "no response has a weight in the step, which is momentum and decay alone."
_FEW = "U has fewer than three prompts, and errors are over prompts."


def _second_order(ready: Prepared) -> tuple[SecondOrder, Tensor]:
    """K₂ on E, and δH₂ of the SGD step along U's gradient: by K₂, and by nested forward mode."""
    policy, E, U, weights = ready.policy, ready.batches.E, ready.batches.U, ready.step.token_weights
    x = sequence_weights(ready)
    assert x is not None  # find_kernel has asked
    K2 = second_order_kernel(policy, E, U, gradients=ready.gradients)
    direction = weighted_gradient(policy, U, weights)
    nested = second_order_change(policy, E, direction, confidence=ready.estimator.confidence)
    return SecondOrder(float(x @ K2 @ x / 2), nested), K2


def _truncations(ready: Prepared, K: FisherKernel) -> Truncations | str:
    """How much of δH₁ on U each truncation predicts, self pairs left out; or why none does."""
    U, x = ready.batches.U, sequence_weights(ready)
    if x is None:
        return UNEQUAL
    if not bool(x.any()):
        return _SILENT
    if U.n_prompts < 3:
        return _FEW
    surprisal = -score(ready.policy, U).logprobs.sum(1)
    e = (surprisal - surprisal.mean()) / len(U)
    return truncations(K.square, e, x, self_pairs=False)
