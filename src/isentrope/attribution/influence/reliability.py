"""How well an E of this size ranks, and by how much listed values are overestimated (T6).

E's groups are split in two equal halves at random. r is the mean Spearman correlation between the
influences that the two halves give. With k the number of times a half goes into E (2, or more where
an odd group is left over), Spearman and Brown give the correlation of E with another E of its size,
whose root is the correlation with an infinite E:

    ρ = k r/(1 + (k − 1) r),     rank correlation with an infinite E ≈ √ρ

The ratio of signal to noise of one group is r/((1 − r) h), with h groups in a half. The logarithm
of it is jackknifed over groups, which gives the interval of √ρ. The error of this E differs from
that of an average E, so the variance counts `VARIANCES` times.

The largest values of a list are selected partly by their errors. Take the sum of the values that
one half lists, measured by the other half, over the same sum measured by the first half: this is
the share that is real at half the size. The same formula converts it to the size of E:

    λ½ = Σ_listed sign(x_A) x_B / Σ_listed |x_A|,     λ = k λ½/(1 + (k − 1) λ½)

λ x is the expected size of a listed x. Both hold on average over batches E; for one small E they
vary. λ is of the whole list, and its largest member may be real to more than λ. So the error of a
printed size holds what was taken away:

    SE² = se² + ((1 − λ) x)²
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from isentrope.attribution.mid_ranks import tied
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile

RELIABILITY_UNIT = "rank correlation with an infinite E"

LEAST_CORRELATION = 1e-3
"""Correlation of halves that stands for one that is not positive."""

VARIANCES = 3
"""Variances of the estimate in that of its distance from the correlation of this E: simulated."""

LISTED = (8, 4)
"""Number of the most negative and of the most positive values in a printed list."""

SPLITS = 20
"""Random splits of E's groups."""

MIN_PROMPTS = 128
"""Prompts of E below which √ρ itself varies by more than about .02 from one E to the next."""


def split_half(by_group: Tensor) -> float:
    """Mean rank correlation between the two halves of a batch.

    Args:
        by_group: (G, m) what each group contributes to each of m influences.

    Returns:
        The correlation of two halves; NaN with one group, or where nothing varies.
    """
    from scipy.stats import rankdata  # half a second of imports

    halves = list(chain.from_iterable(_halves(by_group)))
    if not halves:
        return math.nan
    half_ranks = torch.from_numpy(rankdata(tied(torch.stack(halves).numpy()), axis=-1))
    pairs = torch.corrcoef(half_ranks).diagonal(1)[::2]  # of each half with the other of its split
    return float(pairs.mean())


def rank_correlation(by_group: Tensor, prompts: int, confidence: float = 0.95) -> Estimate:
    """Rank correlation of a table of influences with that of an infinite E, about.

    Args:
        by_group: (G, m) what each group contributes to each of m influences.
        prompts: Independent prompts of E, all groups together.
        confidence: Nominal coverage of the interval.

    Returns:
        √ρ; 0 where the halves do not agree, NaN with one group. It has no interval there, nor with
        two groups. Of a small E it carries a warning.
    """
    r = split_half(by_group)
    groups = len(by_group)
    value = math.sqrt(max(of_whole(r, groups), 0.0)) if r == r else r
    caution = (
        f"With {prompts} prompts in E the rank correlation with an infinite E is correct on "
        f"average over such batches, and uncertain for this one: that takes {MIN_PROMPTS} prompts."
    )
    warnings = (caution,) if prompts < MIN_PROMPTS and r == r else ()
    nan = math.nan
    method = "split halves of E"
    estimate = Estimate(value, nan, nan, nan, prompts, RELIABILITY_UNIT, method, warnings=warnings)
    if groups < 3 or not value > 0:
        return estimate
    without = [torch.cat((by_group[:g], by_group[g + 1 :])) for g in range(groups)]
    logs = torch.tensor(
        [_log_signal(split_half(part), groups - 1) for part in without], dtype=torch.float64
    )
    deviation = math.sqrt(VARIANCES * (groups - 1) * float(logs.var(correction=0)))
    half = t_quantile(groups - 1, confidence) * deviation
    of_E = _log_signal(r, groups) + math.log(groups)
    ends = torch.tensor([of_E - half, of_E + half], dtype=torch.float64)
    low, high = ends.sigmoid().sqrt().tolist()
    se = value * (1 - value**2) / 2 * deviation
    return replace(estimate, se=se, ci_low=min(low, value), ci_high=max(high, value))


def _log_signal(half: float, groups: int) -> float:
    """Log of the signal over the noise of one group, from the correlation of halves."""
    r = min(max(half, LEAST_CORRELATION), 1 - LEAST_CORRELATION**2)
    return math.log(r / (1 - r)) - math.log(groups // 2)


def of_whole(half: float, groups: int) -> float:
    """Spearman and Brown: a correlation between halves, at the size of the whole.

    Args:
        half: r, or λ½.
        groups: G, of which a half has G // 2.

    Returns:
        k r/(1 + (k − 1) r), at most 1; 0 where r is not positive.
    """
    k = groups / (groups // 2)
    return min(k * half / (1 + (k - 1) * half), 1.0) if half > 0 else 0.0


def listed_share(by_group: Tensor) -> float:
    """The share of the listed sizes to expect from an infinite E.

    Args:
        by_group: (G, m) what each group contributes to each of m influences.

    Returns:
        λ, between 0 and 1; NaN with one group, or where all influences are zero.
    """
    above = below = 0.0
    for first, second in _halves(by_group):
        for chosen_by, measured in ((first, second), (second, first)):
            order = chosen_by.argsort()
            low = min(LISTED[0], len(order))
            high = max(low, len(order) - LISTED[1])
            listed = torch.cat((order[:low], order[high:]))
            above += float((chosen_by[listed].sign() * measured[listed]).sum())
            below += float(chosen_by[listed].abs().sum())
    return of_whole(above / below, len(by_group)) if below > 0 else math.nan


def shrunk_size(size: float, error: float, share: float) -> tuple[float, float]:
    """A listed size as it is printed, with its error.

    Args:
        size: x as measured.
        error: Its standard error se.
        share: λ of its list.

    Returns:
        λ x, and √(se² + ((1 − λ) x)²).
    """
    return share * size, math.hypot(error, (1 - share) * size)


def _halves(by_group: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(m,) sums over two random halves of the groups; an odd group is omitted."""
    groups, m = by_group.shape
    half = groups // 2
    generator = torch.Generator().manual_seed(0)
    for _ in range(SPLITS if half and m > 1 else 0):
        order = torch.randperm(groups, generator=generator)
        yield by_group[order[:half]].sum(0), by_group[order[half : 2 * half]].sum(0)
