"""The part of δH₁ that truncations of a rectangular block, such as E × U, predict (T7).

    δH_j = x_j Σ_i e_i K_ij,     e_i = −(S_i − S̄)/n_E,     K replaced by

    same_prompt     entries within a prompt, where rows and columns share prompts
    rank r          the r leading singular triplets, K V_r V_rᵀ
    full            K

The prediction of each response of U by a truncation is compared with that of the full block. Errors
are those of deleting groups of prompts (`deletions`). S̄ is the mean over the rows that are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isentrope.attribution.fisher.block_model import oversample
from isentrope.attribution.fisher.deletions import Deletion, deletions, over_deletions
from isentrope.attribution.fisher.pair_classes import UNIT
from isentrope.attribution.fisher.truncation import RANKS, Prediction, predictions
from isentrope.nouns.estimate import Estimate


def block_truncations(
    matrix: Tensor,
    logprobs: Tensor,
    x: Tensor,
    row_prompt: Tensor,
    column_prompt: Tensor,
    ranks: Sequence[int] = RANKS,
) -> dict[str, Prediction]:
    """Compare each truncation of a block with the full double sum.

    Args:
        matrix: (n, m) K of E with U.
        logprobs: (n,) S of the rows, nats.
        x: (m,) w_j A_j, the weight of each response in the step.
        row_prompt: (n,) int64 prompt of each row.
        column_prompt: (m,) int64 prompt of each column, numbered as in `row_prompt`.
        ranks: Numbers of leading triplets.

    Returns:
        "same_prompt", where a prompt is shared, "rank 1", ..., and "full" at last.
    """
    ranks = [r for r in ranks if r <= min(matrix.shape)]
    same = row_prompt[:, None] == column_prompt
    shared = bool(same.any())
    names = [*(["same_prompt"] if shared else []), *(f"rank {r}" for r in ranks), "full"]
    _, vectors = torch.linalg.eigh(matrix.T @ matrix)
    start = vectors.flip(1)[:, : oversample(max(ranks, default=0))]
    whole = _influences(matrix, logprobs, x, same if shared else None, start, ranks)
    removed = deletions(row_prompt, column_prompt)

    def left(d: Deletion) -> Tensor:
        rest, kept = matrix[d.rows][:, d.columns], same[d.rows][:, d.columns] if shared else None
        vectors = _right_vectors(rest, start[d.columns])
        return _influences(rest, logprobs[d.rows], x[d.columns], kept, vectors, ranks)

    def errors(value: Tensor, deleted: Tensor, unit: str) -> Estimate:
        return over_deletions(float(value), deleted.tolist(), removed, unit)

    return predictions(names, whole, map(left, removed), errors, UNIT)


def _right_vectors(matrix: Tensor, start: Tensor) -> Tensor:
    """(m, r) leading right singular vectors of a block close to one whose vectors are known."""
    basis, _ = torch.linalg.qr(matrix.T @ (matrix @ start))
    _, _, rotation = torch.linalg.svd(matrix @ basis, full_matrices=False)
    return basis @ rotation.T


def _influences(
    matrix: Tensor,
    S: Tensor,
    x: Tensor,
    same: Tensor | None,
    vectors: Tensor,
    ranks: Sequence[int],
) -> Tensor:
    """(rows, m) δH_j of every truncation, the full one last; `same` None: no same_prompt row."""
    e = -(S - S.mean()) / len(S)
    full = e @ matrix
    along = (full @ vectors)[:, None] * vectors.T  # (r, m)
    rows = [] if same is None else [e @ (matrix * same)]
    rows += [along[:r].sum(0) for r in ranks]
    return torch.stack([*rows, full]) * x
