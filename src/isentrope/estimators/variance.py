"""How large the errors of each estimator are on one policy, at the size of E and below it.

The estimators (`functional`) see the same responses, so their variances are compared by pairs: with
the influences a_p and b_p of prompt p on two of them,

    Var_a / Var_b = Σ_p a_p² / Σ_p b_p² = ρ,     SE(log ρ)² = Σ_p (a_p²/Σ a² − b_p²/Σ b²)²

and the interval is ρ exp(± t SE). An error falls as one over the root of the prompts, so a relative
error q of a quantity F needs s²/(q² F²) prompts, with s² the variance of x_p = F + n a_p
(`ratio.noise_over_square`). That this holds is seen from smaller batches: E is cut into disjoint
ones, each with its own error, whose estimates also spread.

Where prompts have several responses i, those of one prompt are not independent of each other. The
design effect is the variance over that of as many prompts with one response each,

    Σ_p (Σ_{i∈p} φ_i)² P/(P−1)  /  Σ_i φ_i² n/(n−1)

which is 1 + (G − 1) ρ for G responses each with the correlation ρ.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isentrope.estimators.functional import Jackknifed, Method, Units, infinitesimal_jackknife
from isentrope.estimators.ratio import noise_over_square
from isentrope.estimators.sample import CHANGES, ScoredBatch, statistics_of_sample
from isentrope.estimators.tail import too_few_for_modes
from isentrope.nouns.estimate import ROUNDING, Estimate
from isentrope.nouns.saved import Absent
from isentrope.policy.chi_square import Divergence
from isentrope.policy.token_statistics import Scores

QUANTITIES = {"entropy": 0, "first_order": 1, "delta_h": CHANGES}
"""What is estimated, and its row of `statistics_of_sample`: F, ηδH₁ and ΔH(η)."""
REFERENCE: Method = "prefix"
"""The estimator that variances are divided by."""
LEAST_BATCHES = 8
"""Fewer disjoint batches show no spread."""
_PAIRED = "paired influences"
_NOT_KNOWN = Estimate(math.nan, math.nan, math.nan, math.nan, 0, "prompts", "delete-one jackknife")
CERTAIN = 4.0
"""Standard errors by which a value must differ from 0 for its relative error to be a number."""


@dataclass(frozen=True)
class MethodVariance:
    """One estimator of one quantity.

    Attributes:
        estimate: On the whole batch, with its error.
        variance_ratio: Its variance over that of `REFERENCE`; 1 without an error for itself.
        prompts_needed: For the relative error that is wanted. Within `CERTAIN` errors of 0 its
            value is NaN, and its interval has a lower end at most.
        design_effect: Its variance over that of as many prompts with one response each; None where
            they have one.
    """

    estimate: Estimate
    variance_ratio: Estimate
    prompts_needed: Estimate
    design_effect: Absent[Estimate] = None


@dataclass(frozen=True)
class VarianceStudy:
    """Every estimator on one E-batch.

    Attributes:
        methods: By quantity, then by method.
        sizes: Errors of each quantity and method by size, the largest first: `prompts` of a batch,
            `batches`, the disjoint batches of that size, `se`, root mean square of the standard
            errors that they claim, and `spread`, standard deviation of the estimates between them,
            NaN for fewer than `LEAST_BATCHES`.
    """

    methods: dict[str, dict[str, MethodVariance]]
    sizes: list[dict[str, Any]]


def variance_study(
    samples: Mapping[Method, ScoredBatch],
    eta: float,
    moved: Scores,
    divergence: Divergence | None,
    *,
    wanted: float = 0.1,
    confidence: float = 0.95,
) -> VarianceStudy:
    """Compare estimators of h, ηδH₁ and ΔH(η) on the same responses.

    Args:
        samples: E scored at θ with one derivative, by estimator; `REFERENCE` is one of them.
        eta: η.
        moved: Scores at θ + ηv.
        divergence: How far each distribution has moved; None where it is not known.
        wanted: Relative error q.
        confidence: Nominal coverage of the intervals.

    Returns:
        Errors, ratios of variances, and prompts needed.

    Raises:
        ValueError: If E has fewer than two prompt draws.
    """
    units = Units.of(samples[REFERENCE].prompt_index)
    if units.count < 2:
        raise ValueError("One prompt draw has no standard error: draw two or more prompts.")
    every = torch.arange(len(units.place))

    def find(sample: ScoredBatch, labels: Tensor, rows: Tensor) -> Jackknifed:
        """F, ηδH₁ and the rest of a sweep on some of the responses, with influences of units."""
        statistics = statistics_of_sample(sample, [eta], [moved])
        none = torch.zeros(len(labels), dtype=torch.float64)
        scale = torch.ones(CHANGES + 2, dtype=torch.float64)
        scale[QUANTITIES["first_order"]] = eta
        return infinitesimal_jackknife(
            lambda weights: scale * statistics(none.index_copy(0, rows, weights)), labels[rows]
        )

    whole = {m: find(s, units.place, every) for m, s in samples.items()}
    methods: dict[str, dict[str, MethodVariance]] = {quantity: {} for quantity in QUANTITIES}
    for m, sample in samples.items():
        f, j, base = sample.functional, whole[m], sample.trust
        alone = find(sample, every, every) if len(every) > units.count else None
        of_change, _ = sample.trust_of_change(moved, divergence)
        for quantity, row in QUANTITIES.items():
            trust, own = of_change if row == CHANGES else base, j.influences[row]
            options = {"unit": f.unit, "confidence": confidence, **trust.options(m)}
            options["order"] = trust.order if row == CHANGES else 1
            if not row:
                options["warnings"] = (*trust.warnings, *too_few_for_modes(units.count))
            estimate = j.estimate(row, **options)
            x = estimate.value + estimate.n * own
            methods[quantity][m] = MethodVariance(
                estimate,
                _ratio(own, whole[REFERENCE].influences[row], confidence),
                _needed(x, wanted, confidence, trust.verdict == "trust", positive=not row),
                _design_effect(j, alone, row, units, confidence) if alone else None,
            )
    sizes: list[dict[str, Any]] = []
    size = units.count
    while size >= 4 and (size == units.count or units.count // size <= 4 * LEAST_BATCHES):
        batches = [(units.place // size == k).nonzero()[:, 0] for k in range(units.count // size)]
        for m, sample in samples.items():
            parts = [find(sample, units.place, rows) for rows in batches]
            errors = torch.stack([part.standard_errors for part in parts]).square().mean(0).sqrt()
            spread = torch.full_like(errors, math.nan)
            if len(parts) >= LEAST_BATCHES:
                spread = torch.stack([part.values for part in parts]).std(0)
            sizes += [
                {"quantity": quantity, "method": m, "prompts": size, "batches": len(parts)}
                | {"se": float(errors[row]), "spread": float(spread[row])}
                for quantity, row in QUANTITIES.items()
            ]
        size //= 2
    return VarianceStudy(methods, sizes)


def _design_effect(
    groups: Jackknifed, alone: Jackknifed, row: int, units: Units, confidence: float
) -> Estimate:
    """Variance by prompts over variance by responses, whose sum over each prompt is its unit."""
    squares = units.sums(alone.influences[row].square())
    corrections = [j.n_units / (j.n_units - 1) for j in (groups, alone)]
    a = corrections[0] ** 0.5 * groups.influences[row]
    return _ratio(a, (corrections[1] * squares).sqrt(), confidence)


def _needed(
    x: Tensor, wanted: float, confidence: float, trusted: bool, *, positive: bool
) -> Estimate:
    """Prompts for a relative error of the mean of x_p."""
    if not (trusted and float(x.var()) > 0):
        return replace(_NOT_KNOWN, n=len(x))
    found = noise_over_square(x, wanted**-2, confidence, positive=positive)
    if abs(float(x.mean())) >= CERTAIN * float(x.std()) / len(x) ** 0.5:
        return found
    high = math.nan if math.isnan(found.ci_low) else math.inf
    return replace(found, value=math.nan, se=math.nan, ci_high=high)


def _ratio(a: Tensor, b: Tensor, confidence: float) -> Estimate:
    """Σ a²/Σ b² with its interval on the scale of logarithms."""
    a, b, n = a.square(), b.square(), len(a)
    if not (float(a.sum()) > 0 and float(b.sum()) > 0):
        return Estimate(math.nan, math.nan, math.nan, math.nan, n, "", _PAIRED)
    ratio = float(a.sum() / b.sum())
    influences = ratio * (a / a.sum() - b / b.sum())
    if float(influences.abs().max()) <= ROUNDING:  # one estimator under two names
        return Estimate.exact(ratio, n, unit="", method=_PAIRED)
    estimate = Estimate.from_influences(
        ratio, influences, unit="", method=_PAIRED, confidence=confidence
    )
    return estimate.on_log_scale(confidence)
