"""The result of `measure`.

Keys of its results.json are

    schema        "isentrope/measure/1"
    policy        checkpoint, optimizer, trainable parameters, temperature, device, precision
    batches       B_E sequences, B_U prompt groups, G responses per group; statistics of E and U
    estimator     functional, method, order, unit
    settings      keys: value, from (which file), training's own; differs; ignored (`as_trained`)
    step          learning_rate, gradient_norm, clip_factor, direction_norm, matched_by, ...
    entropy       per_sequence, per_token: Estimates at θ
    first_order, second_order, pathwise      Estimates; null if not asked for
    sweep         one row per rate: eta, delta_h (and _se, _ci_low, _ci_high), first_order =
                  ηδH₁, second_order = η²δH₂ (each and _se), residual (and _se, _ci_low, _ci_high,
                  _verdict), ess and ess_whole (of the batch), ess_integrated (over the vocabulary,
                  from which the verdict follows), carriers, khat, verdict, method, resampled;
                  aliases: deltaH_true, deltaH_approx and deltaH_second, as in former versions
    linear_range  Estimate of η* = |δH₁/δH₂|, with `rate_over_range`
    budget        δH₁ per unit η: total, momentum, decay, gradient, each with its _se
    reward        at_theta = J, first_order, second_order, top or no_top (why there is none), sweep:
                  one row per rate, with delta_j in place of delta_h; absent without rewards
    checks        score_identity and martingale: each _z, _p (of both, by Bonferroni) and _verdict;
                  rounding_floor
    warnings      sentences on what limits the use of these numbers
    timing        seconds by stage, and total
    provenance    versions, seeds

An Estimate is written as {value, se, ci_low, ci_high, n, unit, method, ess, khat, warnings}. What
cannot be known (an interval where the weights are heavy-tailed, for one) is null.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypedDict

from isentrope.estimators.entropy_change import Point
from isentrope.estimators.identities import Z_LIMIT, adjusted, p_value, verdict
from isentrope.estimators.reward_change import RewardChange
from isentrope.nouns.estimate import Estimate
from isentrope.results.measure_records import Checks, LinearRange, RoundingFloor, SweepRow
from isentrope.results.results import MeasureResult
from isentrope.results.reward_records import RewardRecord, RewardRow
from isentrope.verbs.measurement import Measurement
from isentrope.verbs.prepare import Prepared

NAN = math.nan

SUSPECT_Z = Z_LIMIT
"""|z| from which an identity is said to fail."""


def measure_result(ready: Prepared, measurement: Measurement) -> MeasureResult:
    """The result of `measure` at one checkpoint; the loop adds the step's warnings and timing."""
    change, header = measurement.change, ready.header
    estimator = replace(header.estimator, order=ready.estimator.order, unit=change.entropy.unit)
    values = {name: part.value for name, part in measurement.budget.items()}
    errors = {f"{name}_se": part.se for name, part in measurement.budget.items()}
    freedoms = {
        f"{name}_degrees_of_freedom": part.degrees_of_freedom or NAN
        if math.isfinite(part.ci_low)
        else NAN
        for name, part in measurement.budget.items()
    }
    return MeasureResult(
        **vars(header)
        | {
            "estimator": estimator,
            "step": replace(header.step, rate_of_interest=measurement.rate),
        },
        entropy={name: measurement.entropies[name] for name in sorted(measurement.entropies)},
        first_order=change.first_order,
        pathwise=change.pathwise,
        second_order=change.second_order,
        sweep=tuple(_row(measurement, eta) for eta in measurement.etas),
        linear_range=_linear_range(measurement),
        budget=values | errors | freedoms,
        checks=_checks(measurement),
        reward=measurement.reward and _reward(measurement.reward),
        warnings=tuple(warnings_of(measurement)),
    )


def warnings_of(measurement: Measurement) -> list[str]:
    """Sentences on what limits the use of the numbers."""
    warnings = [] if measurement.no_reward is None else [measurement.no_reward]
    if measurement.reward and not measurement.reward.points:
        warnings.append(
            'ΔJ(η) is measured by importance weights, and method "resampled" has none: the '
            "two orders of J are given without it."
        )
    for name in ("martingale_z", "score_identity_z"):
        z = getattr(measurement.checks, name)
        if z is not None and abs(z) > SUSPECT_Z:
            warnings.append(
                f"{name} = {z:.1f}: E was not drawn from the policy that is scored, or only from a "
                "part of it; run isentrope check."
            )
    warnings += [f"At θ: {sentence}" for sentence in measurement.change.entropy.warnings]
    if (reach := measurement.change.linear_range) and math.isfinite(reach.ci_low):
        warnings += [f"Linear range η*: {sentence}" for sentence in reach.warnings]
    by_sentence: dict[str, list[str]] = {}
    measured = [(point.eta, point.change) for point in measurement.change.points]
    for eta, estimate in (*measured, *measurement.fresh.items()):
        for sentence in estimate.warnings:
            by_sentence.setdefault(sentence, []).append(f"{eta:g}")
    warnings += [f"At η = {', '.join(etas)}: {sentence}" for sentence, etas in by_sentence.items()]
    first = measurement.change.first_order
    smallest = measurement.checks.floor.smallest_eta(first.value) if first else 0.0
    if below := [eta for eta in measurement.etas if eta < smallest]:
        warnings.append(
            f"{len(below)} learning rates lie below {smallest:.2g}, where ΔH is below three times "
            "the rounding floor or θ + ηv is rounded to a step more than 1 % off: use "
            "precision.runtime_dtype=float64 or larger rates."
        )
    return list(dict.fromkeys(warnings))


def _row(measurement: Measurement, eta: float) -> SweepRow:
    change, fresh = measurement.change, measurement.fresh.get(eta)
    point = next((p for p in change.points if p.eta == eta), None)
    measured = point.change if point else fresh
    assert measured is not None
    row = SweepRow(
        eta=eta,
        delta_h=measured.value,
        delta_h_se=measured.se,
        delta_h_ci_low=measured.ci_low,
        delta_h_ci_high=measured.ci_high,
        **_orders(eta, change.first_order, change.second_order),
        verdict=point.verdict if point else _verdict_of_fresh(measured),
        method=measured.method,
        resampled=fresh if fresh and point else None,
    )
    return _with_trust(row, point) if point else row


class _Orders(TypedDict):
    """What both orders predict at a learning rate, with errors."""

    first_order: float
    first_order_se: float
    second_order: float
    second_order_se: float


def _orders(eta: float, first: Estimate | None, second: Estimate | None) -> _Orders:
    """What both orders predict at a learning rate."""
    return {
        "first_order": eta * first.value if first else NAN,
        "first_order_se": eta * first.se if first else NAN,
        "second_order": eta**2 * second.value if second else NAN,
        "second_order_se": eta**2 * second.se if second else NAN,
    }


def _residual(point: Point) -> dict[str, float]:
    """What both orders leave out, where they are known."""
    residual = point.residual
    if residual is None:
        return {}
    return {
        "residual": residual.value,
        "residual_se": residual.se,
        "residual_ci_low": residual.ci_low,
        "residual_ci_high": residual.ci_high,
    }


def _reward(change: RewardChange) -> RewardRecord:
    rows = [
        RewardRow(
            eta=point.eta,
            delta_j=point.change.value,
            delta_j_se=point.change.se,
            delta_j_ci_low=point.change.ci_low,
            delta_j_ci_high=point.change.ci_high,
            **_orders(point.eta, change.first_order, change.second_order),
            **_residual(point),
            verdict=point.verdict,
        )
        for point in change.points
    ]
    return RewardRecord(
        at_theta=change.reward,
        first_order=change.first_order,
        second_order=change.second_order,
        top=change.top,
        no_top=change.no_top,
        sweep=tuple(rows),
    )


def _with_trust(row: SweepRow, point: Point) -> SweepRow:
    """The row with what importance weights alone have."""
    trust = point.trust
    left = replace(row, **_residual(point))
    return replace(
        left,
        ess=_or_nan(point.ess),
        ess_whole=_or_nan(trust.ess_whole),
        ess_integrated=_or_nan(point.ess_integrated),
        carriers=_or_nan(trust.carriers),
        khat=_or_nan(point.khat),
        residual_verdict=point.residual_trust.verdict if point.residual_trust else None,
    )


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value


def _verdict_of_fresh(estimate: Estimate) -> str:
    """Fresh responses carry no weights; those of a single prompt have no interval."""
    return "trust" if math.isfinite(estimate.ci_low) else "smooth"


def _linear_range(measurement: Measurement) -> LinearRange | None:
    reach = measurement.change.linear_range
    if reach is None:
        return None
    ratio = measurement.rate / reach.value if reach.value else None
    return LinearRange(**vars(reach), rate_over_range=ratio)


def _checks(measurement: Measurement) -> Checks:
    checks, first = measurement.checks, measurement.change.first_order
    score, martingale = checks.score_identity_z, checks.martingale_z
    tests = sum(z is not None for z in (score, martingale))
    return Checks(
        score,
        None if score is None else adjusted(p_value(score), tests),
        verdict(p_value(score)),
        martingale,
        adjusted(p_value(martingale), tests),
        verdict(p_value(martingale)),
        RoundingFloor(
            checks.floor.log_weight,
            checks.floor.entropy_change,
            checks.floor.smallest_eta(first.value) if first else None,
        ),
    )
