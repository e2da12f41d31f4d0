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

Pairs i = j bias the double sum. Without them it is the U-statistic (T4c), and so is each truncation
but the diagonal, which consists of them:

    δH₁ = n/(n − 1) · Σ_{i≠j} e_i K_ij x_j

Errors are the delete-one-prompt jackknife: rows and columns of a prompt are deleted together, S̄ is
the mean over the responses that are left, and sums are scaled back to the size of the whole batch.
In 600 simulated batches of 30 prompts nominal 95 % intervals of the sums covered 92 to 95 %, those
of ratios and correlations 95 to 99 %.

"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import delete_one, estimate_table
from isentrope.attribution.fisher.square import SquareKernel, oversample, ritz_pairs
from isentrope.attribution.mid_ranks import tied
from isentrope.nouns.estimate import Estimate

LEADING_COUNTS = (1, 2, 5, 10, 20)
"""Numbers of leading eigenpairs, or singular triplets; those above the kernel's are omitted."""

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


def truncation_table(rows: Mapping[str, Prediction]) -> pd.DataFrame:
    """A table with one row per truncation and quantity.

    Args:
        rows: By the name of the truncation.

    Returns:
        Columns truncation, quantity, value, se, ci_low, ci_high, prompts.
    """
    return estimate_table(
        ({"truncation": name, "quantity": quantity}, estimate)
        for name, row in rows.items()
        for quantity, estimate in vars(row).items()
    )


def truncations(
    kernel: SquareKernel,
    logprobs: Tensor,
    x: Tensor,
    leading_counts: Sequence[int] = LEADING_COUNTS,
) -> dict[str, Prediction]:
    """Compare each truncation of K with the full double sum.

    Args:
        kernel: K of the update batch with itself.
        logprobs: (n,) S, nats.
        x: (n,) w_i A_i, the weight of each response in the step.
        leading_counts: Numbers of leading eigenpairs.

    Returns:
        "diagonal", "same_prompt", "block model", "rank 1", ..., and "full" at last.
    """
    leading_counts = [count for count in leading_counts if count <= len(kernel)]
    e = (logprobs.mean() - logprobs) / len(kernel)
    values, vectors = torch.linalg.eigh(kernel.matrix)
    values = values.flip(0)
    start = vectors.flip(1)[:, : oversample(max(leading_counts, default=0))]

    def influences(kernel: SquareKernel, e: Tensor, x: Tensor, *pairs: Tensor) -> Tensor:
        """(m, n) influences x_j Σ_{i≠j} e_i M_ij n/(n − 1), one row per truncation M."""
        matrix = kernel.matrix
        n = len(x)
        (values, vectors) = pairs
        leading = [(vectors[:, :r] * values[:r]) @ vectors[:, :r].T for r in leading_counts]
        truncated = [matrix * kernel.pairs.same, kernel.fit(), *leading, matrix]
        rows = [n / (n - 1) * ((e @ m) * x - e * m.diagonal() * x) for m in truncated]
        return torch.stack([e * kernel.diagonal * x, *rows])

    by_deletion: list[Tensor] = []
    for keep, reduced in kernel.deletions():
        centred = e[keep] - e[keep].mean()
        pairs = ritz_pairs(reduced.matrix, start[keep])
        by_deletion.append(influences(reduced, centred, x[keep], *pairs))

    def errors(statistic: Tensor, unit: str) -> Estimate:
        return delete_one(statistic[0], statistic[1:], len(by_deletion), unit)

    names = [
        "diagonal",
        "same_prompt",
        "block model",
        *(f"rank {r}" for r in leading_counts),
        "full",
    ]
    full = influences(kernel, e, x, values, start)
    return predictions(names, [full, *by_deletion], errors, "nats per sequence and unit η", power=2)


def predictions(
    names: Sequence[str],
    influences: Sequence[Tensor],
    errors: Callable[[Tensor, str], Estimate],
    unit: str,
    power: int = 1,
) -> dict[str, Prediction]:
    """What truncations predict, from the influences of the responses.

    Args:
        names: Of the m truncations, the full one last.
        influences: (m, n) one row per truncation; then the same without each unit, (m, fewer).
        errors: Makes an estimate of a statistic (1 + P,), whole and without each unit, and of its
            unit.
        unit: Of the totals.
        power: Of the number of responses that totals grow with.

    Returns:
        One per truncation.
    """
    n = influences[0].shape[1]
    statistics = torch.stack([_statistics(x, (n / x.shape[1]) ** power) for x in influences])
    rows: dict[str, Prediction] = {}
    for name, of_name in zip(names, statistics.unbind(2), strict=True):
        total, ratio, *correlations = of_name.unbind(1)  # (1 + P,) each
        sums = errors(total, unit), errors(ratio, "of the full sum")
        rows[name] = Prediction(*sums, *(_correlation(x, errors) for x in correlations))
    if rows["full"].total.covers(0.0):
        none = {"ci_low": math.nan, "ci_high": math.nan, "warnings": (_NO_TARGET,)}
        for name in names[:-1]:
            rows[name] = replace(rows[name], ratio=replace(rows[name].ratio, **none))
    return rows


def _statistics(influences: Tensor, scale: float) -> Tensor:
    """(4, m) total times a scale, ratio, Pearson and Spearman of each row against the last."""
    from scipy.stats import rankdata  # half a second of imports

    totals = influences.sum(1)
    row_ranks = torch.from_numpy(rankdata(tied(influences.numpy()), axis=1))
    return torch.stack(
        [scale * totals, totals / totals[-1], *map(_correlations, (influences, row_ranks))]
    )


def _correlations(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    squares = centred.square().sum(1)
    return ((centred @ centred[-1]) / (squares * squares[-1]).sqrt()).clamp(-1, 1)


def _correlation(statistic: Tensor, errors: Callable[[Tensor, str], Estimate]) -> Estimate:
    """A correlation whose interval is made on Fisher's z = artanh r and transformed back."""
    plain = errors(statistic, "correlation")
    if math.isnan(plain.value):
        return replace(plain, warnings=(_CONSTANT,))
    if not bool((statistic.abs() < 1 - 1e-12).all()):
        return plain
    z = errors(statistic.atanh(), "z")
    return replace(plain, ci_low=math.tanh(z.ci_low), ci_high=math.tanh(z.ci_high))
