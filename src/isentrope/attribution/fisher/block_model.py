"""The block model of a Fisher kernel, and what a low rank adds to it (T7).

    K_ij ≈ a 1{i = j} + b 1{same prompt, i ≠ j} + c + Σ_{k≤r} μ_k u_ki u_kj

Least squares over all entries: with m_d, m_s, m_c the means of the diagonal, of same-prompt and of
cross-prompt entries,  c = m_c,  b = m_s − m_c,  a = m_d − m_c. The low-rank part is the leading
eigenpairs, by magnitude, of the remainder. Of the squared Frobenius norm (not centred) the parts,
added in this order and each refitted, explain

    a I: n m_d²    b: n_s m_s²    c 11ᵀ: n_c m_c²    low rank: Σ_{k≤r} μ_k²       over |K|²_F

since the three masks do not overlap. Given a matrix of cosines the same function fits the cosines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import (
    KERNEL_UNIT,
    delete_one,
    estimate_table,
)
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.nouns.estimate import Estimate

FRACTION = "fraction of |K|²"


@dataclass(frozen=True)
class BlockModel:
    """A fitted block model.

    Attributes:
        a: On the diagonal, beyond c.
        b: Between responses to one prompt, beyond c; None where each prompt has one response.
        c: Between all.
        explained: Fraction of |K|²_F by part, in the order "diagonal", "same_prompt", "constant",
            "low_rank", "rest"; they sum to one. The interval of "low_rank" is slightly short: it
            covered 91 to 92 % in simulated batches of 24 prompts.
        fit: (n, n) the fitted a, b, c part.
        residual_values: (r,) μ_k, the largest magnitude first.
        residual_vectors: (n, r) u_k.
    """

    a: Estimate
    b: Estimate | None
    c: Estimate
    explained: dict[str, Estimate]
    fit: Tensor = field(repr=False)
    residual_values: Tensor
    residual_vectors: Tensor = field(repr=False)

    def to_frame(self) -> Any:
        """A pandas table, one row per coefficient or part.

        Returns:
            Columns quantity, value, se, ci_low, ci_high, prompts.
        """
        named = {"a": self.a, "b": self.b, "c": self.c}
        named |= {f"explained by {part}": share for part, share in self.explained.items()}
        return estimate_table(({"quantity": q}, e) for q, e in named.items())


def block_model(kernel: SquareKernel, *, rank: int = 5) -> BlockModel:
    """Fit a, b, c and a low rank, with jackknife errors over prompts.

    The fraction without one prompt is scaled to a batch of the same shape, so a deletion does not
    count as a smaller matrix.

    Args:
        kernel: K of one batch with itself, or its cosines.
        rank: r, at most n; 0 for none.

    Returns:
        The fit.

    Raises:
        ValueError: If the kernel is zero, or the rank is not in 0..n.
    """
    matrix, pairs, masks = kernel.matrix, kernel.pairs, kernel.masks
    if not 0 <= rank <= len(kernel):
        raise ValueError(f"rank must lie between 0 and n = {len(kernel)}, got {rank}.")
    if not float(matrix.trace()) > 0:
        raise ValueError("The kernel is zero: there is nothing to explain.")
    means, fit = kernel.means(matrix), kernel.fit()
    c = means["cross_prompt"]
    above = {name: pairs.estimate(mean - c, masks[name] | masks["cross_prompt"], KERNEL_UNIT)
             for name, mean in means.items() if name != "cross_prompt"}  # fmt: skip
    values, vectors = torch.linalg.eigh(matrix - fit)
    order = values.abs().argsort(descending=True)
    values, vectors = values[order], vectors[:, order]
    return BlockModel(
        a=above["diagonal"],
        b=above.get("same_prompt"),
        c=pairs.estimate(c, masks["cross_prompt"], KERNEL_UNIT),
        explained=_explained(kernel, means, values[:rank], vectors[:, : oversample(rank)]),
        fit=fit,
        residual_values=values[:rank],
        residual_vectors=vectors[:, :rank],
    )


def oversample(rank: int) -> int:
    """Number of eigenvectors to start `ritz_pairs` with for `rank` of them."""
    return 2 * rank + 10


def ritz_pairs(matrix: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Leading eigenpairs by magnitude of a matrix close to one whose eigenvectors are known.

    One power step and the Rayleigh–Ritz projection: enough after deleting a prompt, at n² r
    operations instead of n³. The eigenvalues are correct to second order in the change, but a
    deletion may also bring up a direction that was not among the leading ones, so start with more
    (`oversample`) than needed.

    Args:
        matrix: (n, n) symmetric.
        start: (n, r) approximate leading eigenvectors.

    Returns:
        (r,) eigenvalues, the largest magnitude first, and (n, r) unit vectors.
    """
    basis, _ = torch.linalg.qr(matrix @ start)
    values, rotation = torch.linalg.eigh(basis.T @ matrix @ basis)
    order = values.abs().argsort(descending=True)
    return values[order], basis @ rotation[:, order]


def _explained(
    kernel: SquareKernel, means: dict[str, Tensor], leading: Tensor, start: Tensor
) -> dict[str, Estimate]:
    _, square = kernel.norms()
    names = {"diagonal": "diagonal", "same_prompt": "same_prompt", "cross_prompt": "constant"}
    parts = {
        names[name]: int(kernel.masks[name].sum()) * mean.square() / square
        for name, mean in means.items()
    }
    low_rank = [leading.square().sum() / square[0]]
    for kept, rest in kernel.deletions():
        values, _ = ritz_pairs(rest.matrix - rest.fit(), start[kept])
        low_rank.append(values[: len(leading)].square().sum() / rest.matrix.square().sum())
    parts["low_rank"] = torch.stack(low_rank)
    parts["rest"] = 1 - torch.stack(list(parts.values())).sum(0)
    n = kernel.pairs.n_prompts
    return {name: delete_one(x[0], x[1:], n, FRACTION) for name, x in parts.items()}
