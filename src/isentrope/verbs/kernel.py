"""`isentrope kernel`: blocks of the Fisher kernel, their structure and their spectrum.

results.json        by block: structure, spectrum, block model, clusters; truncations of UU; of EU
                    and FU singular values, δH₁ in the kernel form and what truncations predict;
                    of UU and FU δH₁ by class of pairs
structure.parquet, block_model.parquet, truncations.parquet     the same as tables
UU/  EU/  FU/  EE/  kernel.safetensors, rows.parquet, columns.parquet
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.fisher.truncation import Prediction, truncation_table
from isentrope.policy.gradient import weighted_gradient
from isentrope.results.kernel import (
    BlockRecord,
    SecondOrder,
)
from isentrope.results.results import KernelResult
from isentrope.system.files import remove_empty
from isentrope.system.progress import Progress
from isentrope.verbs.kernel_block import UNEQUAL, Block, sequence_weights, tiles_of
from isentrope.verbs.prepare import Prepared


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
    x = sequence_weights(ready)
    if section.second_order and x is None:
        raise ValueError(f"fisher_kernel.second_order expands in responses, but {UNEQUAL}")
    found_in: dict[str, Block] = {}
    records: dict[str, BlockRecord] = {}
    tables: dict[str, list[pd.DataFrame]] = {}
    warnings: list[str] = []
    with progress.bar(KernelResult.verb) as report:
        for name in dict.fromkeys(section.blocks):
            report(len(found_in), len(section.blocks), name)
            block = found_in[name] = Block(ready, name)
            records[name] = block.describe()
            warnings += [f"{name}: {sentence}" for sentence in block.warnings]
            for of, table in block.tables.items():
                tables.setdefault(of, []).append(table.assign(block=name))
    joined = {of: pd.concat(parts) for of, parts in tables.items()}
    second, K2 = _second_order(ready, x) if x is not None and section.second_order else (None, None)
    truncated: dict[str, Prediction] | None = None
    if "UU" in found_in:
        rows = found_in["UU"].truncations()
        if isinstance(rows, str):
            warnings.append(f"No truncations: {rows}")
        else:
            joined["truncations"] = truncation_table(rows)
            truncated = rows

    def save(folder: Path) -> None:
        if (tiles := tiles_of(ready)) is not None and tiles.exists():
            shutil.rmtree(tiles)
            remove_empty([tiles.parent])
        for block, found in found_in.items():
            found.K.save(folder / block)
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


def _second_order(ready: Prepared, x: Tensor) -> tuple[SecondOrder, Tensor]:
    """K₂ on E, and δH₂ of the SGD step along U's gradient: by K₂, and by nested forward mode."""
    policy, E, U, weights = ready.policy, ready.E, ready.U, ready.step.token_weights
    K2 = second_order_kernel(policy, E, U, gradients=ready.gradients)
    direction = weighted_gradient(policy, U, weights)
    nested = second_order_change(policy, E, direction, confidence=ready.estimator.confidence)
    return SecondOrder(float(x @ K2 @ x / 2), nested), K2
