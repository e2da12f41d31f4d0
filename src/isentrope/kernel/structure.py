"""The structure of a Fisher kernel by relation of its sequences (T7), with errors over prompts.

    K_ij = Σ_α P_α ∂_αS(t_i) ∂_αS(t_j),     cos_ij = K_ij / √(K_ii K_jj)

The pairs of a kernel fall into relations: a sequence with itself (diagonal), with another response
to the same prompt draw (same_prompt), with a response to another prompt (cross_prompt). The mean of
a relation is a U-statistic over prompts, a ratio of sums over pairs; its error is the delete-one-
prompt jackknife, which forgets a prompt's rows and columns together,

    θ̂_(p) = (Σ − Σ_touching p) / (# − #_touching p),     SE² = (P − 1)/P · Σ_p (θ̂_(p) − θ̄)²

and needs row and column sums only. Where the true mean is zero and stays zero given either sequence
(a degenerate U-statistic), this SE is too large, by up to √2, never too small on average.
A sequence with K_ii = 0 has no cosine: it is left out of cosines, counted and reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope.estimate import Estimate

KERNEL_UNIT = "nats per unit of η·w·A"
"""What K is in: a step on t' moves log π(t) by η K(t, t') w A(t')."""

_NO_ERROR = (
    "It rests on so few prompts that without one of them no pair is left: no error is given."
)


@dataclass(frozen=True)
class Relation:
    """The pairs of one relation.

    Attributes:
        entries: Number of entries of K that it is the mean of; both K_ij and K_ji, except that in
            right/wrong the row is the right one.
        mean: Mean of K_ij over them.
        spread: Standard deviation of K_ij over them.
        mean_cosine: Mean of cos_ij; None where no cosine is known.
        rms_cosine: √ of the mean of cos_ij²; None where no cosine is known.
    """

    entries: int
    mean: Estimate
    spread: Estimate
    mean_cosine: Estimate | None
    rms_cosine: Estimate | None


@dataclass(frozen=True)
class KernelStructure:
    """A kernel's relations.

    Attributes:
        relations: By name: "diagonal", "same_prompt", "cross_prompt", and where it is known which
            responses are right, "same_prompt right/right" and so on. One without a pair is absent.
        n_prompts: Number of prompts, of rows and columns together.
        zero_rows: Positions of sequences whose score vector is zero (rows, where rows and columns
            differ).
        warnings: What was left out, and why.
    """

    relations: Mapping[str, Relation]
    n_prompts: int
    zero_rows: tuple[int, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> Relation:
        return self.relations[name]

    def to_frame(self) -> Any:
        """A pandas table, one row a relation and quantity.

        Returns:
            Columns relation, quantity, entries, value, se, ci_low, ci_high, prompts.
        """
        import pandas as pd

        rows = []
        for name, relation in self.relations.items():
            for quantity in ("mean", "spread", "mean_cosine", "rms_cosine"):
                found = getattr(relation, quantity)
                if found is not None:
                    head = {"relation": name, "quantity": quantity, "entries": relation.entries}
                    rows.append(head | estimate_columns(found))
        return pd.DataFrame(rows)


class PromptPairs:
    """Rows and columns of a kernel by prompt: sums over pairs, whole and without each prompt.

    Vectors of length 1 + P hold a statistic of everything and then of everything but prompt p.
    """

    def __init__(self, row_prompt: Tensor, column_prompt: Tensor) -> None:
        """Number the prompts.

        Args:
            row_prompt: (n,) int64 prompt of each row.
            column_prompt: (m,) int64 prompt of each column.
        """
        units, place = torch.cat([row_prompt, column_prompt]).unique(return_inverse=True)
        self.n_prompts = len(units)
        self.rows, self.columns = place[: len(row_prompt)], place[len(row_prompt) :]
        self.same = self.rows[:, None] == self.columns[None]  # (n, m)

    def _touching(self, values: Tensor) -> Tensor:
        """(P,) the sum of (n, m) values over rows or columns of each prompt, each entry once."""
        total = torch.zeros(self.n_prompts, dtype=torch.float64)
        total.index_add_(0, self.rows, values.sum(1) - (values * self.same).sum(1))
        return total.index_add_(0, self.columns, values.sum(0))

    def sums(self, values: Tensor) -> Tensor:
        """Sums of (n, m) values.

        Args:
            values: (n, m), zero where a pair does not count.

        Returns:
            (1 + P,) float64.
        """
        values = values.to(torch.float64)
        whole = values.sum()
        return torch.cat([whole[None], whole - self._touching(values)])

    def means(self, values: Tensor, mask: Tensor) -> Tensor:
        """Means of (n, m) values over the pairs of a mask.

        Args:
            values: (n, m).
            mask: (n, m) bool.

        Returns:
            (1 + P,) float64; NaN where no pair is left.
        """
        counts = self.sums(mask).round()
        return self.sums(values * mask) / torch.where(counts > 0, counts, torch.nan)

    def estimate(self, statistic: Tensor, mask: Tensor, unit: str) -> Estimate:
        """A statistic of the pairs of a mask, with its jackknife error.

        Degrees of freedom come from the side, rows or columns, on which fewer prompts take part.

        Args:
            statistic: (1 + P,), whole and without each prompt.
            mask: (n, m) bool, the pairs it rests on; other prompts do not enter the error.
            unit: Its unit.

        Returns:
            The estimate.
        """
        taking_part = self._touching(mask.to(torch.float64)) > 0.5
        sides = [self.rows[mask.any(1)], self.columns[mask.any(0)]]
        n = min(len(side.unique()) for side in sides)
        return delete_one(statistic[0], statistic[1:][taking_part], n, unit)


def delete_one(value: Tensor, deleted: Tensor, n: int, unit: str) -> Estimate:
    """The delete-one jackknife.

    Args:
        value: The statistic, a scalar.
        deleted: (P,) the statistic without each unit in turn.
        n: Number of units for the degrees of freedom.
        unit: Unit of the statistic.

    Returns:
        The estimate; no interval, and a sentence why, where some deletion leaves nothing.
    """
    known = n > 1 and bool(deleted.isfinite().all())
    around_mean = deleted - deleted.mean()
    se = ((1 - 1 / len(deleted)) * around_mean.square().sum()).sqrt() if known else torch.nan
    warnings = () if known else (_NO_ERROR,)
    options: dict[str, Any] = {"unit": unit, "method": "jackknife over prompts"}
    return Estimate.from_standard_error(float(value), float(se), n, **options, warnings=warnings)


def estimate_columns(estimate: Estimate) -> dict[str, Any]:
    """The columns value, se, ci_low, ci_high and prompts of a table."""
    names = ("value", "se", "ci_low", "ci_high")
    return {name: getattr(estimate, name) for name in names} | {"prompts": estimate.n}


def kernel_structure(
    matrix: Tensor, prompt_index: Tensor, right: Tensor | None = None, *, rounding: float = 1e-6
) -> KernelStructure:
    """Means, spreads and cosines of a square kernel by relation.

    Args:
        matrix: (n, n) K of one batch with itself.
        prompt_index: (n,) prompt draw of each sequence, the independent unit.
        right: (n,) bool, whether a response is right; splits same_prompt and cross_prompt further.
        rounding: Relative rounding error of the entries, see `require_kernel`.

    Returns:
        The structure.

    Raises:
        ValueError: If the matrix is no kernel, sizes differ or there is one prompt only.
    """
    matrix, prompt_index = require_kernel(matrix, prompt_index, rounding=rounding)
    pairs = PromptPairs(prompt_index, prompt_index)
    masks = relation_masks(pairs)
    if right is not None:
        right = torch.as_tensor(right, dtype=torch.bool)
        if right.shape != prompt_index.shape:
            raise ValueError(f"right has shape {tuple(right.shape)} for {len(matrix)} sequences.")
        masks |= _by_rightness(masks, right)
    norms = matrix.diagonal()
    return _structure(matrix, pairs, masks, (norms, norms))


def cross_structure(
    matrix: Tensor,
    row_prompt: Tensor,
    column_prompt: Tensor,
    row_diagonal: Tensor | None = None,
    column_diagonal: Tensor | None = None,
) -> KernelStructure:
    """Means and spreads of a rectangular block, such as E × U, for same and other prompts.

    Args:
        matrix: (n, m) K of a batch with another one.
        row_prompt: (n,) prompt of each row.
        column_prompt: (m,) prompt of each column, numbered as in `row_prompt`; see
            `shared_identities`.
        row_diagonal: (n,) K_ii of the rows; cosines need both diagonals.
        column_diagonal: (m,) K_jj of the columns.

    Returns:
        The structure; "same_prompt" is absent where the sides share no prompt.

    Raises:
        ValueError: If sizes differ, a number is not finite or one diagonal is missing.
    """
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    rows, columns = torch.as_tensor(row_prompt), torch.as_tensor(column_prompt)
    if matrix.shape != (*rows.shape, *columns.shape) or matrix.ndim != 2:
        raise ValueError(
            f"A block of shape {tuple(matrix.shape)} does not fit {tuple(rows.shape)} row prompts "
            f"and {tuple(columns.shape)} column prompts."
        )
    _require_finite(matrix)
    pairs = PromptPairs(rows, columns)
    masks = {"same_prompt": pairs.same, "cross_prompt": ~pairs.same}
    norms = None
    if (row_diagonal is None) != (column_diagonal is None):
        raise ValueError("Cosines need row_diagonal and column_diagonal; one of them is missing.")
    if row_diagonal is not None and column_diagonal is not None:
        given = (row_diagonal, column_diagonal)
        norms = tuple(torch.as_tensor(x, dtype=torch.float64) for x in given)
        if tuple(len(x) for x in norms) != tuple(matrix.shape):
            raise ValueError(f"The diagonals must have the lengths {tuple(matrix.shape)}.")
    return _structure(matrix, pairs, masks, norms)


def shared_identities(
    rows: Sequence[str] | Sequence[Tensor], columns: Sequence[str] | Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Number the prompts of two batches alike.

    Args:
        rows: Prompt keys, or token ids, of each row.
        columns: The same of each column.

    Returns:
        ((n,), (m,)) int64, equal where the prompts are.
    """
    numbers: dict[Any, int] = {}
    keys = [x if isinstance(x, str) else tuple(x.tolist()) for x in (*rows, *columns)]
    found = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
    return found[: len(rows)], found[len(rows) :]


def relation_masks(pairs: PromptPairs) -> dict[str, Tensor]:
    """Which entries of a square kernel make up each relation.

    Args:
        pairs: Of a batch with itself.

    Returns:
        (n, n) bool masks "diagonal", "same_prompt" and "cross_prompt".
    """
    diagonal = torch.eye(len(pairs.same), dtype=torch.bool)
    return {
        "diagonal": diagonal,
        "same_prompt": pairs.same & ~diagonal,
        "cross_prompt": ~pairs.same,
    }


def cosines(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """K_ij / √(K_ii K_jj).

    Args:
        matrix: (n, m) block of a kernel.
        rows: (n,) K_ii of its rows.
        columns: (m,) K_jj of its columns.

    Returns:
        (n, m), zero in the rows and columns of sequences with K_ii = 0.
    """
    inverse = [torch.where(x > 0, x, torch.inf).rsqrt() for x in (rows, columns)]
    return matrix * inverse[0][:, None] * inverse[1]


def require_kernel(
    matrix: Tensor, prompt_index: Tensor, *, rounding: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Check that a matrix is the kernel of a batch of at least two prompts.

    Args:
        matrix: (n, n), symmetric and positive semi-definite up to rounding.
        prompt_index: (n,) prompt draw of each sequence.
        rounding: How far entries may be off, relative to the largest (symmetry) and to the trace
            (negative eigenvalues). A kernel whose rows were held in bfloat16 or int8 needs more.

    Returns:
        The matrix as float64, made symmetric, and the prompts as int64.

    Raises:
        ValueError: If it is not; the sentence says by how much.
    """
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    prompt_index = torch.as_tensor(prompt_index)
    if matrix.ndim != 2 or len(matrix) != matrix.shape[1]:
        raise ValueError(
            f"A kernel of a batch with itself is square; this one is {tuple(matrix.shape)}. "
            "For an E × U block use cross_structure."
        )
    if prompt_index.shape != matrix.shape[:1] or prompt_index.is_floating_point():
        raise ValueError(
            f"prompt_index must be {len(matrix)} integers, one a row of the kernel; it has shape "
            f"{tuple(prompt_index.shape)} and type {prompt_index.dtype}."
        )
    _require_finite(matrix)
    off, size = float((matrix - matrix.T).abs().max()), float(matrix.abs().max())
    if off > rounding * size:
        raise ValueError(
            f"The kernel is not symmetric: entries differ from their mirror images by up to "
            f"{off:.3g}, the largest entry is {size:.3g}. Pass rounding= if that is rounding."
        )
    if len(prompt_index.unique()) < 2:
        raise ValueError(
            "All sequences belong to one prompt: there is no cross-prompt relation and no error "
            "over prompts. Give a batch of two prompts or more."
        )
    matrix = (matrix + matrix.T) / 2
    _require_semidefinite(matrix, rounding)
    return matrix, prompt_index.to(torch.int64)


def _require_semidefinite(matrix: Tensor, rounding: float) -> None:
    slack = rounding * max(float(matrix.trace()), 0.0)
    shifted = matrix + slack * torch.eye(len(matrix))
    if bool(matrix.any()) and int(torch.linalg.cholesky_ex(shifted).info):
        lowest, highest = torch.linalg.eigvalsh(matrix)[[0, -1]].tolist()
        raise ValueError(
            f"A kernel is a Gram matrix and has no negative eigenvalues; this one has {lowest:.3g} "
            f"(largest {highest:.3g}). Pass rounding= if that is rounding."
        )


def _require_finite(matrix: Tensor) -> None:
    if not bool(matrix.isfinite().all()):
        raise ValueError(f"{int((~matrix.isfinite()).sum())} entries of the kernel are not finite.")


def _by_rightness(masks: Mapping[str, Tensor], right: Tensor) -> dict[str, Tensor]:
    row, wrong = right[:, None], ~right
    kinds = {
        "right/right": row & right,
        "right/wrong": row & wrong,
        "wrong/wrong": wrong[:, None] & wrong,
    }
    return {
        f"{name} {kind}": masks[name] & mask
        for name in ("same_prompt", "cross_prompt")
        for kind, mask in kinds.items()
    }


def _structure(
    matrix: Tensor,
    pairs: PromptPairs,
    masks: Mapping[str, Tensor],
    norms: tuple[Tensor, ...] | None,
) -> KernelStructure:
    cosine, known = None, torch.ones_like(pairs.same)
    zero_rows: tuple[int, ...] = ()
    warnings = [f"{name}: no such pair." for name, mask in masks.items() if not bool(mask.any())]
    if norms is not None:
        rows, columns = norms
        cosine = cosines(matrix, rows, columns)
        known = (rows > 0)[:, None] & (columns > 0)[None]
        zero_rows = tuple((rows <= 0).nonzero().flatten().tolist())
        zeros = max(len(zero_rows), int((columns <= 0).sum()))
        if zeros:
            warnings.append(
                f"{zeros} sequences have a zero score vector (K_ii = 0), hence no cosine: they "
                "are left out of all cosines and kept in means and spreads."
            )
    relations = {
        name: _relation(matrix, cosine, pairs, mask, known)
        for name, mask in masks.items()
        if bool(mask.any())
    }
    return KernelStructure(relations, pairs.n_prompts, zero_rows, tuple(warnings))


def _relation(
    matrix: Tensor, cosine: Tensor | None, pairs: PromptPairs, mask: Tensor, known: Tensor
) -> Relation:
    mean, square = pairs.means(matrix, mask), pairs.means(matrix.square(), mask)
    spread = (square - mean.square()).clamp_min(0).sqrt()
    mean_cosine = rms = None
    both = mask & known
    if cosine is not None and bool(both.any()):
        mean_cosine = pairs.estimate(pairs.means(cosine, both), both, "cosine")
        squares = pairs.means(cosine.square(), both)
        rms = pairs.estimate(squares.clamp_min(0).sqrt(), both, "cosine")
    return Relation(
        int(mask.sum()),
        pairs.estimate(mean, mask, KERNEL_UNIT),
        pairs.estimate(spread, mask, KERNEL_UNIT),
        mean_cosine,
        rms,
    )
