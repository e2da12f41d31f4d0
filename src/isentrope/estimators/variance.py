"""How large the errors of each estimator are on one policy, at the size of E and below it.

The estimators (`functional`) see the same responses, so their variances are compared by pairs: with
the influences a_p and b_p of prompt p on two of them,

    Var_a / Var_b = Σ_p a_p² / Σ_p b_p² = ρ,     SE(log ρ)² = Σ_p (a_p²/Σ a² − b_p²/Σ b²)²

and the interval is ρ exp(± t SE). An error falls as one over the root of the prompts, so a relative
error q of a quantity F needs s²/(q² F²) prompts, with s² the variance of x_p = F + n a_p
(`noise_over_square`). That this holds is seen from smaller batches: E is cut into disjoint
ones, each with its own error, whose estimates also spread.

Where prompts have several responses i, those of one prompt are not independent of each other. The
design effect is the variance over that of as many prompts with one response each,

    Σ_p (Σ_{i∈p} φ_i)² P/(P−1)  /  Σ_i φ_i² n/(n−1)

which is 1 + (G − 1) ρ for G responses each with the correlation ρ.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isentrope.estimators.jackknife import Jackknifed, Units, infinitesimal_jackknife
from isentrope.estimators.means import too_few_for_modes
from isentrope.estimators.noise_over_square import noise_over_square
from isentrope.estimators.sample import FIRST_CHANGE, ScoredBatch, statistics_of_sample
from isentrope.nouns.choices import Method
from isentrope.nouns.estimate import ROUNDING_SHARE, Estimate
from isentrope.nouns.saved import Absent
from isentrope.policy.chi_square import Divergence
from isentrope.policy.token_statistics import Scores

QUANTITIES = {"entropy": 0, "first_order": 1, "delta_h": FIRST_CHANGE}
"""What is estimated, and its row of `statistics_of_sample`: F, ηδH₁ and ΔH(η)."""
REFERENCE: Method = "prefix"
"""The estimator that variances are divided by."""
LEAST_BATCHES = 8
"""Fewer disjoint batches show no spread."""
_PAIRED = "paired influences"
CERTAIN = 4.0
"""Standard errors by which a value must differ from 0 for its relative error to be a number."""


@dataclass(frozen=True)
class MethodVariance:
    """One estimator of one quantity.

    Attributes:
        estimate: On the whole batch, with its error.
        variance_ratio: Its variance over that of `REFERENCE`; 1 without an error for itself.
        prompts_needed: Prompts for a relative error q. Within `CERTAIN` errors of 0 its
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
    moved_scores: Scores,
    divergence: Divergence | None,
    *,
    relative_error: float = 0.1,
    confidence: float = 0.95,
) -> VarianceStudy:
    """Compare estimators of h, ηδH₁ and ΔH(η) on the same responses.

    Args:
        samples: E scored at θ with one derivative, by estimator; `REFERENCE` is one of them.
        eta: η.
        moved_scores: Scores at θ + ηv.
        divergence: How far each distribution has moved; None where it is not known.
        relative_error: q, for `prompts_needed`.
        confidence: Nominal coverage of the intervals.

    Returns:
        Errors, ratios of variances, and prompts needed.

    Raises:
        ValueError: If E has fewer than two prompt draws.
    """
    units = Units.of(samples[REFERENCE].prompt_index)
    if units.count < 2:
        raise ValueError("One prompt draw has no standard error: draw two or more prompts.")
    indices = torch.arange(len(units.place))

    def jackknife(sample: ScoredBatch, labels: Tensor, rows: Tensor) -> Jackknifed:
        """F, ηδH₁ and the rest of a sweep on some of the responses, with influences of units."""
        statistics = statistics_of_sample(sample, [eta], [moved_scores])
        no_weights = torch.zeros(len(labels), dtype=torch.float64)
        scale = torch.ones(FIRST_CHANGE + 2, dtype=torch.float64)
        scale[QUANTITIES["first_order"]] = eta
        return infinitesimal_jackknife(
            lambda weights: scale * statistics(no_weights.index_copy(0, rows, weights)),
            labels[rows],
        )

    jackknifed = {m: jackknife(s, units.place, indices) for m, s in samples.items()}
    methods: dict[str, dict[str, MethodVariance]] = {quantity: {} for quantity in QUANTITIES}
    for m, sample in samples.items():
        result = jackknifed[m]
        by_response = jackknife(sample, indices, indices) if len(indices) > units.count else None
        trust_of_change, _ = sample.trust_of_change(moved_scores, divergence)
        for quantity, row in QUANTITIES.items():
            trust = trust_of_change if row == FIRST_CHANGE else sample.trust
            influences = result.influences[row]
            options = {
                "unit": sample.functional.unit,
                "confidence": confidence,
                **trust.options(m),
            }
            options["order"] = trust.order if row == FIRST_CHANGE else 1
            if not row:
                options["warnings"] = (*trust.warnings, *too_few_for_modes(units.count))
            estimate = result.estimate(row, **options)
            of_prompts = estimate.value + estimate.n * influences
            needed = _unknown(estimate.n)
            if trust.verdict == "trust":
                needed = _count_prompts_needed(
                    of_prompts, relative_error, confidence, positive=quantity == "entropy"
                )
            design_effect = None
            if by_response is not None:
                design_effect = _compare_with_responses(result, by_response, row, units, confidence)
            methods[quantity][m] = MethodVariance(
                estimate,
                _divide_variances(influences, jackknifed[REFERENCE].influences[row], confidence),
                needed,
                design_effect,
            )
    return VarianceStudy(methods, _cut_into_batches(samples, units, jackknife))


def _cut_into_batches(
    samples: Mapping[Method, ScoredBatch],
    units: Units,
    jackknife: Callable[[ScoredBatch, Tensor, Tensor], Jackknifed],
) -> list[dict[str, Any]]:
    """Errors in disjoint batches of E, whole, halved, …: `VarianceStudy.sizes`."""
    sizes: list[dict[str, Any]] = []
    size = units.count
    while size >= 4 and (size == units.count or units.count // size <= 4 * LEAST_BATCHES):
        batches = [(units.place // size == k).nonzero()[:, 0] for k in range(units.count // size)]
        for method, sample in samples.items():
            results = [jackknife(sample, units.place, rows) for rows in batches]
            squares = torch.stack([result.standard_errors for result in results]).square()
            errors = squares.mean(0).sqrt()
            spread = torch.full_like(errors, math.nan)
            if len(batches) >= LEAST_BATCHES:
                spread = torch.stack([result.values for result in results]).std(0)
            sizes += [
                {
                    "quantity": quantity,
                    "method": method,
                    "prompts": size,
                    "batches": len(batches),
                    "se": float(errors[row]),
                    "spread": float(spread[row]),
                }
                for quantity, row in QUANTITIES.items()
            ]
        size //= 2
    return sizes


def _compare_with_responses(
    groups: Jackknifed, responses: Jackknifed, row: int, units: Units, confidence: float
) -> Estimate:
    """Variance by prompts over variance by responses, whose sum over each prompt is its unit."""
    squares = units.sums(responses.influences[row].square())
    of_prompts, of_responses = (j.n_units / (j.n_units - 1) for j in (groups, responses))
    a = of_prompts**0.5 * groups.influences[row]
    return _divide_variances(a, (of_responses * squares).sqrt(), confidence)


def _count_prompts_needed(
    x: Tensor, relative_error: float, confidence: float, *, positive: bool
) -> Estimate:
    """Prompts for a relative error of the mean of x_p."""
    if not float(x.var()) > 0:
        return _unknown(len(x))
    prompts = noise_over_square(x, relative_error**-2, confidence, positive=positive)
    if abs(float(x.mean())) >= CERTAIN * float(x.std()) / len(x) ** 0.5:
        return prompts
    high = math.nan if math.isnan(prompts.ci_low) else math.inf
    return replace(prompts, value=math.nan, se=math.nan, ci_high=high)


def _unknown(n: int) -> Estimate:
    """The prompts needed where n prompts do not tell."""
    nan = math.nan
    return Estimate(nan, nan, nan, nan, n, "prompts", "delete-one jackknife")


def _divide_variances(a: Tensor, b: Tensor, confidence: float) -> Estimate:
    """Σ a²/Σ b² with its interval on the scale of logarithms."""
    a = a.square()
    b = b.square()
    n = len(a)
    if not (float(a.sum()) > 0 and float(b.sum()) > 0):
        return Estimate(math.nan, math.nan, math.nan, math.nan, n, "", _PAIRED)
    ratio = float(a.sum() / b.sum())
    influences = ratio * (a / a.sum() - b / b.sum())
    if float(influences.abs().max()) <= ROUNDING_SHARE:  # one estimator under two names
        return Estimate.exact(ratio, n, unit="", method=_PAIRED)
    estimate = Estimate.from_influences(
        ratio, influences, unit="", method=_PAIRED, confidence=confidence
    )
    return estimate.on_log_scale(confidence)
