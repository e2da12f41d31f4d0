"""`isentrope kernel`: blocks of the Fisher kernel, their structure and their spectrum.

results.json        by block: structure, spectrum, block model, clusters; truncations of UU; of EU
                    and FU singular values, δH₁ in the kernel form and what truncations predict;
                    of UU and FU δH₁ by class of pairs
structure.parquet, block_model.parquet, truncations.parquet     the same as tables
UU/  EU/  FU/  EE/  kernel.safetensors, rows.parquet, columns.parquet
"""

from pathlib import Path

import pandas as pd
from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.fisher.truncation import truncation_table
from isentrope.policy.gradient import weighted_gradient
from isentrope.results.attributions import SecondOrder
from isentrope.results.results import KernelResult
from isentrope.system.progress import progress
from isentrope.verbs.answerable import require_shares
from isentrope.verbs.kernel_block import UNEQUAL, Block, weights_of_update
from isentrope.verbs.prepare import Prepared


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
    require_shares(section.blocks, ready.config.analysis.share_responses)
    x = weights_of_update(ready)
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
            for kind, table in block.tables.items():
                tables.setdefault(kind, []).append(table.assign(block=name))
    joined = {kind: pd.concat(parts) for kind, parts in tables.items()}
    second: SecondOrder | None = None
    K2: Tensor | None = None
    if x is not None and section.second_order:
        policy = ready.policy
        E = ready.E
        K2 = second_order_kernel(policy, E, ready.U, gradients=ready.gradients)
        sgd = weighted_gradient(policy, ready.U, ready.step.token_weights)
        nested = second_order_change(policy, E, sgd, confidence=ready.config.estimator.confidence)
        second = SecondOrder(float(x @ K2 @ x / 2), nested)
    truncated = blocks["UU"].truncations() if "UU" in blocks else None
    if isinstance(truncated, str):
        warnings.append(f"No truncations: {truncated}")
        truncated = None
    if truncated is not None:
        joined["truncations"] = truncation_table(truncated)

    kernels = {name: block.K for name, block in blocks.items()}  # not the policy of a block

    def save(folder: Path) -> None:
        for name, kernel in kernels.items():
            kernel.save(folder / name)
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
