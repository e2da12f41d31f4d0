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
                  deltaH_true, deltaH_approx and deltaH_second are the notes' names of the same
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
from typing import Any

from isentrope.estimators.entropy_change import EntropyChange, Point
from isentrope.estimators.identities import Z_LIMIT
from isentrope.estimators.reward_change import RewardChange, RewardOrders
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import fields_of
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import LinearRange, RewardRecord, RewardRow, SweepRow
from isentrope.verbs.measurement import Measurement
from isentrope.verbs.prepare import Prepared

NAN = math.nan


def measure_result(ready: Prepared, measurement: Measurement) -> MeasureResult:
    """The result of `measure` at one checkpoint; the loop adds the step's warnings and timing."""
    change, header, reach = measurement.change, ready.header, measurement.change.linear_range
    estimator = replace(header.estimator, order=ready.estimator.order, unit=change.entropy.unit)
    rate = measurement.rate
    budget: dict[str, float] = {}
    for name, part in measurement.budget.items():
        freedom = part.degrees_of_freedom if math.isfinite(part.ci_low) else None
        numbers = {"": part.value, "_se": part.se, "_degrees_of_freedom": freedom or NAN}
        budget |= {name + end: number for end, number in numbers.items()}
    return MeasureResult(
        **vars(header)
        | {"estimator": estimator, "step": replace(header.step, rate_of_interest=rate)},
        entropy=dict(sorted(measurement.entropies.items())),
        first_order=change.first_order,
        pathwise=change.pathwise,
        second_order=change.second_order,
        sweep=tuple(_row(measurement, eta) for eta in measurement.etas),
        linear_range=reach
        and LinearRange(**vars(reach), rate_over_range=rate / reach.value if reach.value else None),
        budget=budget,
        checks=measurement.checks,
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
        if z is not None and abs(z) > Z_LIMIT:
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
    smallest = measurement.checks.rounding_floor.smallest_eta or 0.0
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
    numbers = _numbers("delta_h", measured, eta, change, point)
    if point is None:  # fresh responses carry no weights; those of one prompt have no interval
        verdict = "trust" if math.isfinite(measured.ci_low) else "smooth"
        return SweepRow(**numbers, verdict=verdict, method=measured.method)
    return SweepRow(
        **numbers,
        ess=point.ess,
        ess_whole=point.trust.ess_whole,
        ess_integrated=point.ess_integrated,
        carriers=point.trust.carriers,
        khat=point.khat,
        residual_verdict=point.residual_trust.verdict if point.residual_trust else None,
        verdict=point.verdict,
        method=measured.method,
        resampled=fresh,
    )


def _numbers(
    name: str,
    measured: Estimate,
    eta: float,
    change: EntropyChange | RewardChange,
    point: Point | None,
) -> dict[str, Any]:
    """The columns of a learning rate: the change, what both orders predict, and what they leave."""
    row = {"eta": eta} | measured.columns(name)
    for power, order in enumerate(("first_order", "second_order"), 1):
        part: Estimate | None = getattr(change, order)
        value, se = (part.value, part.se) if part else (NAN, NAN)
        row |= {order: eta**power * value, f"{order}_se": eta**power * se}
    return row | (point.residual.columns("residual") if point and point.residual else {})


def _reward(change: RewardChange) -> RewardRecord:
    rows = [
        RewardRow(**_numbers("delta_j", p.change, p.eta, change, p), verdict=p.verdict)
        for p in change.points
    ]
    orders = fields_of(RewardOrders, change)
    return RewardRecord(**orders, at_theta=change.reward, sweep=tuple(rows))
