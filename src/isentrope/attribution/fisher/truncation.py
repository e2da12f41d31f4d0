"""The part of the first-order entropy change that truncations of the kernel predict (T7).

    δH₁ = Σ_ij e_i K_ij x_j,     e_i = −(S_i − S̄)/n,     x_j = w_j A_j        (gradient part, per
    η)

is the surprisal form (T4b) with the update batch in both roles; δH_j = x_j Σ_i e_i K_ij is the
influence of response j. A truncation replaces K by a simpler matrix:

    diagonal        K_ii only: each response affects only itself, the limit of Cui et al. (2025)
    same_prompt     entries within a prompt draw, the diagonal included
    block model     a I + b (same prompt) + c 11ᵀ, fitted by least squares
    rank r          the r leading eigenpairs of K
    full            K

Pairs i = j bias the double sum. Without them it is the U-statistic (T4c),

    δH₁ = n/(n − 1) · Σ_{i≠j} e_i K_ij x_j

Errors are the delete-one-prompt jackknife: rows and columns of a prompt are deleted together, e and
x of the others stay, and sums are scaled back to the size of the whole batch. Where Σ e = 0, S̄ was
the mean over this batch, and it is recomputed from the remaining responses. The double sum is a
product of four random factors and its tails are long: in 1000 simulated batches of 30 prompts
nominal 95 % intervals of the sums covered 87 to 90 %, those of ratios and correlations 92 to 97 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from isentrope.attribution.fisher.block_model import oversample, ritz_pairs
from isentrope.attribution.fisher.prompt_pairs import (
    delete_one,
    estimate_table,
)
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.ties import tied
from isentrope.nouns.estimate import Estimate

_NO_TARGET = (
    "The full sum is not distinguishable from zero, so a ratio to it has no interval; "
    "more prompts narrow the interval."
)
_CONSTANT = "The influences do not vary, so there is no correlation."


@dataclass(frozen=True)
class Prediction:
    """How much of δH₁ a truncation predicts.

    Attributes:
        total: Its double sum, δH₁ in nats per sequence and unit η.
        ratio: `total` over the full sum.
        pearson: Correlation over responses j of its influences with the full ones.
        spearman: The same of their ranks.
    """

    total: Estimate
    ratio: Estimate
    pearson: Estimate
    spearman: Estimate


@dataclass(frozen=True)
class Truncation(Prediction):
    """The prediction of one truncation.

    Attributes:
        name: "diagonal", "same_prompt", "block model", "rank 1", ..., "full".
        influences: (n,) its δH_j.
    """

    name: str
    influences: Tensor = field(repr=False)


@dataclass(frozen=True)
class Truncations:
    """All truncations of one kernel.

    Attributes:
        rows: One per truncation; the full kernel is the last.
        self_pairs: Whether pairs i = j are in the sums.
    """

    rows: tuple[Truncation, ...]
    self_pairs: bool

    @property
    def by_name(self) -> dict[str, Truncation]:
        """The rows by their names."""
        return {row.name: row for row in self.rows}

    def __getitem__(self, name: str) -> Truncation:
        return self.by_name[name]

    def to_frame(self) -> Any:
        """A pandas table, one row per truncation and quantity.

        Returns:
            Columns truncation, quantity, value, se, ci_low, ci_high, prompts.
        """
        return estimate_table(
            ({"truncation": row.name, "quantity": q}, getattr(row, q))
            for row in self.rows
            for q in ("total", "ratio", "pearson", "spearman")
        )


def truncations(
    kernel: SquareKernel,
    e: Tensor,
    x: Tensor,
    ranks: Sequence[int] = (1, 2, 5, 10, 20),
    *,
    self_pairs: bool = True,
) -> Truncations:
    """Compare each truncation of K with the full double sum.

    Args:
        kernel: K of the update batch with itself.
        e: (n,) −(S_i − S̄)/n, nats; S̄ any constant, or a function of the prompt.
        x: (n,) w_i A_i, the weight of each response in the step.
        ranks: Numbers of leading eigenpairs; those above n are omitted.
        self_pairs: False omits the pairs i = j from every sum and multiplies by n/(n − 1), except
            in the diagonal truncation, which consists of them and is compared unchanged.

    Returns:
        The table.

    Raises:
        ValueError: If sizes differ, or a rank is below one.
    """
    n = len(kernel)
    e, x = (_numbers(name, given, n) for name, given in (("e", e), ("x", x)))
    if any(rank < 1 for rank in ranks):
        raise ValueError(f"ranks must be 1 or more, got {list(ranks)}.")
    ranks = [rank for rank in ranks if rank <= n]
    centred = bool(e.sum().abs() <= 1e-9 * e.abs().sum())
    values, vectors = torch.linalg.eigh(kernel.matrix)
    start = oversample(max(ranks, default=0))
    pairs = (values.flip(0)[:start], vectors.flip(1)[:, :start])
    whole = _influences(kernel, e, x, pairs, ranks, self_pairs)  # (m, n)
    statistics = [truncation_statistics(whole, scale=1.0)]
    for kept, rest in kernel.deletions():
        left = e[kept] - e[kept].mean() if centred else e[kept]
        pairs_left = ritz_pairs(rest.matrix, pairs[1][kept])
        influences = _influences(rest, left, x[kept], pairs_left, ranks, self_pairs)
        statistics.append(truncation_statistics(influences, scale=(n / len(rest)) ** 2))
    names = ["diagonal", "same_prompt", "block model", *(f"rank {r}" for r in ranks), "full"]

    def errors(value: Tensor, deleted: Tensor, unit: str) -> Estimate:
        return delete_one(value, deleted, len(deleted), unit)

    rows = compared(names, whole, torch.stack(statistics), errors, _UNIT)
    return Truncations(rows, self_pairs)


_UNIT = "nats per sequence and unit η"


def _numbers(name: str, values: Tensor, n: int) -> Tensor:
    numbers = torch.as_tensor(values, dtype=torch.float64)
    if numbers.shape != (n,) or not bool(numbers.isfinite().all()):
        raise ValueError(
            f"{name} must be {n} finite numbers, one per row of the kernel; it has shape "
            f"{tuple(numbers.shape)} and {int((~numbers.isfinite()).sum())} that are not finite."
        )
    if not bool(numbers.any()):
        raise ValueError(f"All of {name} are zero: there is no entropy change to predict.")
    return numbers


def _influences(
    kernel: SquareKernel,
    e: Tensor,
    x: Tensor,
    eigenpairs: tuple[Tensor, Tensor],
    ranks: Sequence[int],
    self_pairs: bool,
) -> Tensor:
    """(m, n) influences x_j Σ_i e_i M_ij, one row per truncation M."""
    matrix, n = kernel.matrix, len(e)
    values, vectors = eigenpairs
    leading = [(vectors[:, :r] * values[:r]) @ vectors[:, :r].T for r in ranks]
    truncated = [matrix * kernel.pairs.same, kernel.fit(), *leading, matrix]
    own = e * kernel.diagonal * x
    rows = [(e @ m) * x for m in truncated]
    if not self_pairs:
        without = zip(rows, truncated, strict=True)
        rows = [n / (n - 1) * (row - e * m.diagonal() * x) for row, m in without]
    return torch.stack([own, *rows])


def truncation_statistics(influences: Tensor, scale: float) -> Tensor:
    """Total, ratio, Pearson and Spearman of each row against the last.

    Args:
        influences: (m, n), one row per truncation, the full one last.
        scale: Of the total.

    Returns:
        (4, m).
    """
    totals = influences.sum(1)
    ranks = torch.from_numpy(rankdata(tied(influences.numpy()), axis=1))
    return torch.stack(
        [scale * totals, totals / totals[-1], *map(_correlations, (influences, ranks))]
    )


def _correlations(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    lengths = centred.norm(dim=1)
    return ((centred @ centred[-1]) / (lengths * lengths[-1])).clamp(-1, 1)


Errors = Callable[[Tensor, Tensor, str], Estimate]
"""Makes an estimate of a statistic, (P,) the same without each unit, and its unit."""


def compared(
    names: Sequence[str], influences: Tensor, statistics: Tensor, errors: Errors, unit: str
) -> tuple[Truncation, ...]:
    """The rows of a table of truncations.

    Args:
        names: Of the m truncations, the full one last.
        influences: (m, n).
        statistics: (1 + P, 4, m) what `truncation_statistics` gives, whole and without each unit.
        errors: How their errors are made.
        unit: Of the totals.

    Returns:
        One row per truncation.
    """
    rows: list[Truncation] = []
    for k, name in enumerate(names):
        total, ratio, *correlations = statistics[:, :, k].unbind(1)  # (1 + P,) each
        sums = errors(total[0], total[1:], unit), errors(ratio[0], ratio[1:], "of the full sum")
        of_responses = (_correlation(x, errors) for x in correlations)
        rows.append(Truncation(*sums, *of_responses, name=name, influences=influences[k]))
    if not rows[-1].total.covers(0.0):
        return tuple(rows)
    none = {"ci_low": math.nan, "ci_high": math.nan, "warnings": (_NO_TARGET,)}
    return (*(replace(row, ratio=replace(row.ratio, **none)) for row in rows[:-1]), rows[-1])


def _correlation(statistic: Tensor, errors: Errors) -> Estimate:
    """A correlation whose interval is made on Fisher's z = artanh r and transformed back."""
    plain = errors(statistic[0], statistic[1:], "correlation")
    if math.isnan(plain.value):
        return replace(plain, warnings=(_CONSTANT,))
    if not bool((statistic.abs() < 1 - 1e-12).all()):
        return plain
    z = errors(statistic[0].atanh(), statistic[1:].atanh(), "z")
    return replace(plain, ci_low=math.tanh(z.ci_low), ci_high=math.tanh(z.ci_high))
