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
    price         whole and at (by class of positions): tokens, entropy, first_order = ηδF, share,
                  reward = ηδJ, reward_for_a_nat, each an Estimate; momentum, cosine; at "group
                  NAME", where prompts of E have groups, change = ΔF too
    checks        score_identity and martingale: each _z, _p (of both, by Bonferroni) and _verdict;
                  rounding_floor
    warnings      sentences on what limits the use of these numbers
    timing        seconds by stage, and total
    provenance    versions, seeds

An Estimate is written as {value, se, ci_low, ci_high, n, unit, method, ess, khat, warnings}. What
cannot be known (an interval where the weights are heavy-tailed, for one) is null.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from isentrope.estimators.entropy_change import EntropyChange
from isentrope.estimators.identities import Z_LIMIT
from isentrope.estimators.reward_change import RewardChange, RewardOrders
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import fields_of
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import LinearRange, RewardRecord, RewardRow, SweepRow
from isentrope.verbs.measurement import Measurement, entropies_of

NAN = math.nan


def measure_result(found: Measurement) -> MeasureResult:
    """The result of `measure` at one checkpoint; the loop adds the step's warnings and timing."""
    ready, change = found.ready, found.change
    header, reach, rate = ready.header, change.linear_range, ready.rate
    own = {"method": ready.estimator.method, "order": ready.estimator.order}
    estimator = replace(header.estimator, **own, unit=change.entropy.unit)
    budget: dict[str, float] = {}
    for name, part in found.budget.items():
        freedom = part.degrees_of_freedom if math.isfinite(part.ci_low) else None
        numbers = {"": part.value, "_se": part.se, "_degrees_of_freedom": freedom or NAN}
        budget |= {name + end: number for end, number in numbers.items()}
    return MeasureResult(
        **vars(header)
        | {"estimator": estimator, "step": replace(header.step, rate_of_interest=rate)},
        entropy=entropies_of(change, header.estimator.confidence),
        first_order=change.first_order,
        pathwise=change.pathwise,
        second_order=change.second_order,
        sweep=tuple(_rows(found)),
        linear_range=reach
        and LinearRange(**vars(reach), rate_over_range=rate / reach.value if reach.value else None),
        budget=budget,
        checks=found.checks,
        reward=found.reward and _reward(found.reward),
        price=found.price,
        warnings=tuple(dict.fromkeys(_warnings(found))),
    )


def _warnings(found: Measurement) -> Iterator[str]:
    """Sentences on what limits the use of the numbers."""
    change, checks = found.change, found.checks
    yield from found.no_reward
    if found.reward and not found.reward.points:
        yield (
            'ΔJ(η) is measured by importance weights, and method "resampled" has none: the '
            "two orders of J are given without it."
        )
    for name in ("martingale_z", "score_identity_z"):
        z = getattr(checks, name)
        if z is not None and abs(z) > Z_LIMIT:
            yield (
                f"{name} = {z:.1f}: E was not drawn from the policy that is scored, or only from a "
                "part of it; run isentrope check."
            )
    for sentence in change.entropy.warnings:
        yield f"At θ: {sentence}"
    if (reach := change.linear_range) and math.isfinite(reach.ci_low):
        for sentence in reach.warnings:
            yield f"Linear range η*: {sentence}"
    by_sentence: dict[str, list[str]] = {}
    for eta, estimate in (*((p.eta, p.change) for p in change.points), *found.fresh.items()):
        for sentence in estimate.warnings:
            by_sentence.setdefault(sentence, []).append(f"{eta:g}")
    for sentence, etas in by_sentence.items():
        yield f"At η = {', '.join(etas)}: {sentence}"
    for point in found.reward.points if found.reward else ():
        for sentence in point.change.warnings:
            if sentence not in by_sentence:
                yield f"ΔJ: {sentence}"
    smallest = checks.rounding_floor.smallest_eta or 0.0
    if below := sum(eta < smallest for eta in found.etas):
        yield (
            f"{below} learning rates lie below {smallest:.2g}, where ΔH is below three times "
            "the rounding floor or θ + ηv is rounded to a step more than 1 % off: use "
            "precision.runtime_dtype=float64 or larger rates."
        )


def _rows(found: Measurement) -> Iterator[SweepRow]:
    """One row per learning rate: by weights, or where there are none by fresh responses."""
    change = found.change
    for point in change.points:
        yield SweepRow(
            **_numbers("delta_h", point.eta, point.change, change, point.residual),
            **{name: getattr(point, name) for name in ("ess", "ess_integrated", "khat", "verdict")},
            **{name: getattr(point.trust, name) for name in ("ess_whole", "carriers")},
            residual_verdict=point.residual_trust and point.residual_trust.verdict,
            method=point.change.method,
            resampled=found.fresh.get(point.eta),
        )
    for eta, fresh in found.fresh.items() if not change.points else ():
        verdict = "trust" if math.isfinite(fresh.ci_low) else "smooth"  # that of one prompt
        numbers = _numbers("delta_h", eta, fresh, change)
        yield SweepRow(**numbers, verdict=verdict, method=fresh.method)


def _numbers(
    name: str,
    eta: float,
    measured: Estimate,
    change: EntropyChange | RewardChange,
    residual: Estimate | None = None,
) -> dict[str, Any]:
    """The columns of a learning rate: the change, what both orders predict, and what they leave."""
    row = {"eta": eta} | measured.columns(name)
    for power, order in enumerate(("first_order", "second_order"), 1):
        part: Estimate | None = getattr(change, order)
        value, se = (part.value, part.se) if part else (NAN, NAN)
        row |= {order: eta**power * value, f"{order}_se": eta**power * se}
    return row | (residual.columns("residual") if residual else {})


def _reward(change: RewardChange) -> RewardRecord:
    rows = [
        RewardRow(**_numbers("delta_j", p.eta, p.change, change, p.residual), verdict=p.verdict)
        for p in change.points
    ]
    orders = fields_of(RewardOrders, change)
    return RewardRecord(**orders, at_theta=change.reward, sweep=tuple(rows))
