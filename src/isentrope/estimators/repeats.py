"""Means over repeats: their error over repeats, and over the prompts that they share (T11)."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isentrope.estimators.ratio import Sign, interval_of_ratio
from isentrope.nouns.freedom import t_quantile


def ratio_of_means(
    tops: Sequence[float],
    bottoms: Sequence[float],
    shared: Tensor,
    *,
    freedom: float,
    confidence: float,
    sign: Sign,
) -> tuple[float, float, float, float]:
    """Mean of a over mean of b, from N ≥ 2 repeats (a_r, b_r), with Fieller's interval.

    A mean of the ratios a_r/b_r has no expectation where b_r may pass zero.

    Args:
        tops: a_r.
        bottoms: b_r.
        shared: (2, 2) covariance of the two means that more repeats do not reduce.
        freedom: Degrees of freedom of `shared`.
        confidence: Nominal coverage.
        sign: Of what the interval is.

    Returns:
        Value a/b, its error, and the ends as of `interval_of_ratio`; NaN where the error is.
    """
    pairs = torch.tensor([[*tops], [*bottoms]], dtype=torch.float64)
    n = len(tops)
    a, b = pairs.mean(1).tolist()
    repeats = pairs.cov() / n
    x = a / b if b else math.inf
    along = torch.tensor([1.0, -x if b else 0.0], dtype=torch.float64)
    update, evaluation = (float((along @ c @ along).clamp_min(0)) for c in (repeats, shared))
    t = t_of_two_errors(update**0.5, evaluation**0.5, n, freedom, confidence)
    se = (update + evaluation) ** 0.5 / abs(b) if b else math.inf
    ends = interval_of_ratio(a, b, repeats + shared, t, sign=sign)
    return x, se, *((math.nan, math.nan) if math.isnan(se) else ends)


def t_of_two_errors(
    update: float, evaluation: float, n: int, freedom: float, confidence: float = 0.95
) -> float:
    """Quantile for the sum of two variances, each known from its own number of draws.

    Args:
        update: Error over repeats.
        evaluation: Error over prompts.
        n: Repeats, 2 or more.
        freedom: Degrees of freedom of the error over prompts.
        confidence: Nominal coverage.

    Returns:
        The factor from the whole error to half of an interval, √(Σ (t SE)²) over the whole error
        with each error's own quantile; 0 without an error. Satterthwaite's degrees of freedom
        cover .90 where two repeats have half of the variance.
    """
    total = math.hypot(update, evaluation)
    if not total > 0:
        return 0.0
    of_update = t_quantile(n - 1, confidence) * update
    of_evaluation = t_quantile(freedom, confidence) * evaluation
    return math.hypot(of_update, of_evaluation) / total


def mean_over_repeats(
    values: Sequence[float], evaluation: float, freedom: float, confidence: float = 0.95
) -> tuple[float, float, float, float]:
    """A mean over repeats that are evaluated on the same prompts.

    Args:
        values: One per repeat.
        evaluation: Error of their mean over prompts.
        freedom: Its degrees of freedom.
        confidence: Nominal coverage.

    Returns:
        The mean, its error, half of its interval (`t_of_two_errors`), and its error over repeats;
        from one repeat no errors.
    """
    repeats = torch.tensor(values, dtype=torch.float64)
    n = len(repeats)
    update = float(repeats.std()) / math.sqrt(n) if n > 1 else math.nan
    se = math.hypot(update, evaluation)
    half = t_of_two_errors(update, evaluation, n, freedom, confidence) * se
    return float(repeats.mean()), se, half, update
