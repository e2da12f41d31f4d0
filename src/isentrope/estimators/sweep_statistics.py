"""What a sweep over learning rates estimates, as functions of the samples' weights (T2), (T3).

    ω ↦ (F, δH₁, pathwise, δH₂, then ΔH(η) and ΔH(η) − ηδH₁ − η²δH₂ for each η)

Arrays alone, from which the jackknife takes joint errors (η* is a ratio of two of them: where δH₂
is zero it has no derivative); and whether the weights at θ + ηv can be
trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isentrope.estimators.functional import Functionals, along
from isentrope.estimators.importance import Trust, diagnose, rule_of
from isentrope.estimators.sample import ScoredBatch
from isentrope.policy.chi_square import Divergence
from isentrope.policy.token_statistics import Scores

CHANGES = 4
"""Row of the first ΔH; a learning rate has two rows."""


def trust_of_change(
    f: Functionals, log_ratios: Tensor, divergence: Divergence | None
) -> tuple[Trust, Trust]:
    """Judge the weights at θ + ηv, for ΔH and for its residual.

    Args:
        f: The functional.
        log_ratios: (n, t) r at θ + ηv.
        divergence: How far each distribution has moved; None where it is not known.

    Returns:
        Diagnostics for ΔH(η), and for ΔH − ηδH₁ − η²δH₂.
    """
    if divergence is None:
        trust = diagnose(log_ratios, f.tokens)
        return trust, trust.without_interval()
    trust = diagnose(log_ratios, f.tokens, divergence.jumps, rule_of(f.functional, f.method))
    if divergence.remainder is None:
        return trust, trust.without_interval()
    return trust, trust.for_residual(log_ratios, divergence.remainder)


def shifted_of(sample: ScoredBatch, moved: Sequence[Scores | None]) -> list[tuple[Tensor, Tensor]]:
    """Log-ratios and entropies at every θ + ηv.

    Args:
        sample: Scores at θ.
        moved: Scores at θ + ηv for each η; None where they are not finite.

    Returns:
        (n, t) each; NaN where they are not finite.
    """
    nan = torch.full_like(sample.entropies, math.nan)
    return [(s.logprobs - sample.sampler_logprobs, s.entropies) if s else (nan, nan) for s in moved]


def statistics_of_sample(
    sample: ScoredBatch, etas: Sequence[float], moved: Sequence[Scores | None]
) -> Callable[[Tensor], Tensor]:
    """What a sweep estimates, as a function of the weights of the samples.

    Args:
        sample: Scores at θ, with derivatives to the order requested.
        etas: Learning rates.
        moved: Scores at θ + ηv for each.

    Returns:
        Maps ω to (F, δH₁, pathwise, δH₂, then ΔH and residual for each η).
    """
    f, order = sample.functional, len(sample.series) - 1
    shifted = shifted_of(sample, moved)
    fixed = (sample.log_ratios,)
    one_path = sample.entropy_series[:2]

    def statistics(omega: Tensor) -> Tensor:
        if order:
            value, first, second = along(f, omega, sample.log_ratio_series, sample.entropy_series)
            half = second / 2
            pathwise = along(f, omega, fixed, one_path)[1]
        else:
            value = f(omega, sample.log_ratios, sample.entropies)
            first = pathwise = half = torch.zeros_like(value)
        out = [value, first, pathwise, half]
        for eta, (log_ratios, entropies) in zip(etas, shifted, strict=True):
            change = f(omega, log_ratios, entropies) - value
            out += [change, change - eta * (first + eta * half)]
        return torch.stack(out)

    return statistics
