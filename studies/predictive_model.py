"""A model of the kernel that predicts pairs it was not fitted on: class means and a low rank (T7).

    M_ij ≈ m[relation of i and j, classes of i and j] + Σ_{k≤r} φ_ik φ_jk s_k

M is a kernel or its cosines. Means are of the pairs of each relation (diagonal, same prompt, other
prompts) and each pair of classes, such as correct and incorrect. The low rank of new sequences is
Nyström's: with R = M − m, the leading eigenpairs (μ_k, u_k) of R on the fitted sequences, and the
measured block C of R between new and fitted ones,

    R_new ≈ C U μ⁻¹ Uᵀ Cᵀ

which is exact where R has rank r and the fitted sequences span it. So of m new and n fitted
sequences the m² pairs are predicted from m n: means alone need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isentrope.attribution.fisher.square import SquareKernel

Key = tuple[str, int, int]


@dataclass(frozen=True)
class PredictiveModel:
    """A fitted model.

    Attributes:
        means: By (relation, class, class) with the smaller class first.
        values: (r,) μ_k, the largest magnitude first.
        vectors: (n, r) u_k over the fitted sequences.
        prompts: (n,) prompt of each fitted sequence.
        classes: (n,) class of each.
    """

    means: Mapping[Key, float]
    values: Tensor
    vectors: Tensor = field(repr=False)
    prompts: Tensor = field(repr=False)
    classes: Tensor = field(repr=False)

    def class_means(self, prompts: Tensor, classes: Tensor) -> Tensor:
        """The first part of the prediction, from prompts and classes alone.

        Args:
            prompts: (m,) prompt of each sequence.
            classes: (m,) class of each.

        Returns:
            (m, m); 0 for a relation and classes that the fitted sequences did not have.
        """
        out = torch.zeros(len(prompts), len(prompts), dtype=torch.float64)
        for key, mask in _masks(prompts, classes).items():
            out[mask] = self.means.get(key, 0.0)
        return out

    def predict(self, prompts: Tensor, classes: Tensor, block: Tensor) -> Tensor:
        """Both parts.

        Args:
            prompts: (m,) prompt of each new sequence, none of them fitted.
            classes: (m,) class of each.
            block: (m, n) measured M between new and fitted sequences.

        Returns:
            (m, m) prediction of M among the new sequences.

        Raises:
            ValueError: If a prompt was fitted, or the block has another shape.
        """
        if bool(torch.isin(prompts, self.prompts).any()):
            raise ValueError("A new sequence belongs to a prompt of the fit: split by prompts.")
        if block.shape != (len(prompts), len(self.prompts)):
            raise ValueError(
                f"The block has shape {tuple(block.shape)} for {len(prompts)} new and "
                f"{len(self.prompts)} fitted sequences."
            )
        known = torch.zeros(len(prompts), len(self.prompts), dtype=torch.float64)
        for a in classes.unique().tolist():
            for b in self.classes.unique().tolist():
                mask = (classes == a)[:, None] & (self.classes == b)
                known[mask] = self.means.get(("cross_prompt", min(a, b), max(a, b)), 0.0)
        features = (block - known) @ self.vectors
        return self.class_means(prompts, classes) + (features / self.values) @ features.T


def fit_predictive_model(
    matrix: Tensor, prompts: Tensor, classes: Tensor, *, rank: int, rounding: float = 1e-6
) -> PredictiveModel:
    """Fit class means and the leading eigenpairs of the rest.

    Args:
        matrix: (n, n) kernel of one batch with itself, or its cosines.
        prompts: (n,) int64 prompt of each sequence.
        classes: (n,) int64 class of each sequence, such as 1 for a correct response.
        rank: r, 0 to n.
        rounding: Relative rounding error of the entries, see `SquareKernel.of`.

    Returns:
        The model.

    Raises:
        ValueError: If the matrix is not a kernel, sizes differ, or the rank is out of range.
    """
    matrix = SquareKernel.of(matrix, prompts, rounding=rounding).matrix
    if classes.shape != prompts.shape:
        raise ValueError(f"classes has shape {tuple(classes.shape)} for {len(matrix)} sequences.")
    if not 0 <= rank <= len(matrix):
        raise ValueError(f"rank must lie between 0 and n = {len(matrix)}, got {rank}.")
    masks = _masks(prompts, classes)
    means = {key: float(matrix[mask].mean()) for key, mask in masks.items()}
    rest = matrix.clone()
    for key, mask in masks.items():
        rest[mask] -= means[key]
    values, vectors = torch.linalg.eigh(rest)
    order = values.abs().argsort(descending=True)[:rank]
    return PredictiveModel(means, values[order], vectors[:, order], prompts, classes)


def _masks(prompts: Tensor, classes: Tensor) -> dict[Key, Tensor]:
    """The entries of each relation and pair of classes, without empty ones."""
    same = prompts[:, None] == prompts
    own = torch.eye(len(prompts), dtype=torch.bool)
    relations = {"diagonal": own, "same_prompt": same & ~own, "cross_prompt": ~same}
    low, high = torch.minimum(classes[:, None], classes), torch.maximum(classes[:, None], classes)
    labels = classes.unique().tolist()
    masks = {
        (name, a, b): mask & (low == a) & (high == b)
        for name, mask in relations.items()
        for a in labels
        for b in labels
        if a <= b
    }
    return {key: mask for key, mask in masks.items() if bool(mask.any())}
