"""Importance weights before they are judged: moments, effective size, shape of the tail (T2)."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from torch import Tensor


def integrated(log_before: Tensor, moments: Tensor) -> tuple[float, float]:
    """ESS/n and the number of carriers, with each token integrated over the vocabulary.

    Args:
        log_before: (n, t) log W_ik, of the tokens before k.
        moments: (n, t, 2) second and fourth moment of the next factor, or (n, t, 1) the second.

    Returns:
        ESS/n between 0 and 1, and the number of carriers: infinite if no factor varies, NaN if
        there is no fourth moment.
    """
    squares = (2 * log_before).exp()

    def mean(weights: Tensor, column: int) -> float:
        values = moments[..., column]
        terms = (weights * values).masked_fill(values == 0, 0.0)  # no token: no overflow either
        return float(terms.sum(1).mean())

    second = mean(squares, 0)
    ess = 1 / (1 + second)
    if moments.shape[2] == 1:
        return ess, math.nan
    fourth = mean(squares.square(), 1)
    if second == 0 or fourth == 0:
        return ess, math.inf
    return ess, len(log_before) * second / fourth * second if math.isfinite(fourth) else 0.0


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(Σ W)² / Σ W² down the first axis.

    Args:
        log_weights: (n, ...) nats.

    Returns:
        (...) effective sample sizes between 1 and n.
    """
    weights = (log_weights - log_weights.amax(0)).exp()  # a common factor cancels below
    return weights.sum(0).square() / weights.square().sum(0)


def pareto_khat(log_weights: Tensor) -> float:
    """Shape k̂ of the generalised Pareto tail of the weights, by PSIS.

    Args:
        log_weights: (n,) nats.

    Returns:
        k̂, or NaN where the tail cannot be fitted (fewer than 25 weights, or equal ones).
    """
    values = log_weights.detach().cpu().numpy().astype(np.float64)
    # as many weights as PSIS fits the tail to: n/5, at most 3√n
    tail = np.sort(values)[-max(5, int(min(len(values) / 5, 3 * math.sqrt(len(values))))) :]
    if len(values) < 25 or not np.isfinite(values).all() or np.ptp(tail) < 1e-12:
        return math.nan
    from arviz_stats.base import array_stats  # pyright: ignore  # half a second of imports

    with np.errstate(all="ignore"):  # tied weights: the fit returns NaN
        _, khat = cast(Any, array_stats.psislw(-values))
    return float(khat)
