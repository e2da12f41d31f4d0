"""One checkpoint measured: how much one optimizer step changes the policy's entropy.

Measure ΔH(η) on E with its first and second order (T2), (T3), ΔJ(η) beside it where E has rewards,
what each component of the step contributes, and whether the instrument is sound. Nothing is
written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from isentrope.attribution.influence.closure import require_agreement
from isentrope.config.estimator import EstimatorConfig
from isentrope.estimators.entropy_change import EntropyChange, change_of_sample, entropy_change
from isentrope.estimators.functional import Functional, Functionals
from isentrope.estimators.identities import (
    adjusted,
    identities_verdict,
    martingale_z,
    p_value,
    score_identity_z,
)
from isentrope.estimators.resampled import resampled_entropy_change
from isentrope.estimators.reward_change import RewardChange, reward_change
from isentrope.estimators.rounding import rounding_floor
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.language_model import Policy
from isentrope.results.sweep import Checks, FloorOfStep
from isentrope.runs.checkpoints import Subject
from isentrope.system.progress import Progress, Report, part_of
from isentrope.update.step import Step
from isentrope.verbs.batches import Batches
from isentrope.verbs.prepare import Prepared


@dataclass(frozen=True)
class Measurement:
    """All that was found at one checkpoint.

    Attributes:
        subject: The checkpoint.
        rate: The learning rate of interest: `single_eta`, or else the optimizer's.
        etas: Learning rates measured at.
        batches: E and U.
        step: The optimizer's step on U.
        change: The sweep on E; without points where the method is "resampled".
        reward: ΔJ at the same rates; None where E has no rewards, or they were not asked for.
        no_reward: Why E has none; None otherwise.
        fresh: ΔH from fresh responses, by learning rate, where they were drawn.
        entropies: ℋ and h at θ, by functional.
        budget: δH₁ per unit η of the whole step ("total") and of each component.
        checks: Whether the instrument is sound.
        influences: (P,) of each prompt draw of E on the changes, by their names in results.json.
    """

    subject: Subject
    rate: float
    etas: list[float]
    batches: Batches
    step: Step
    change: EntropyChange
    reward: RewardChange | None
    no_reward: str | None
    fresh: dict[float, Estimate]
    entropies: dict[str, Estimate]
    budget: dict[str, Estimate]
    checks: Checks
    influences: dict[str, Tensor]


def measure_checkpoint(ready: Prepared, progress: Progress) -> Measurement:
    """Measure one checkpoint; nothing is written."""
    step, clock, estimator = ready.step, ready.clock, ready.estimator
    etas = estimator.etas(step.learning_rate)
    rewards, no_reward = _rewards(ready)
    with clock.stage("sweep"):
        change, reward = _sweep(ready, etas, rewards, progress)
    with clock.stage("resample"):
        fresh = _resample(ready, _to_resample(estimator, change, etas), progress)
    with clock.stage("budget"):
        budget, of_parts = _budget(ready, change, progress)
    with clock.stage("checks"):
        checks = _checks(ready.policy, ready.batches, step, change)
    return Measurement(
        subject=ready.subject,
        rate=ready.rate,
        etas=etas,
        batches=ready.batches,
        step=step,
        change=change,
        reward=reward,
        no_reward=no_reward,
        fresh=fresh,
        entropies=_entropies(change, estimator.confidence),
        budget=budget,
        checks=checks,
        influences={**change.influences, **of_parts, **(reward.influences if reward else {})},
    )


def _rewards(ready: Prepared) -> tuple[Tensor | None, str | None]:
    """(n,) rewards of E, or why there are none."""
    if not ready.analysis.reward:
        return None, None
    try:
        return ready.sampler.rewarded(ready.batches.E).rewards, None
    except ValueError as error:
        return None, f"There is no ΔJ(η), which needs rewards: {error}"


Both = tuple[EntropyChange, RewardChange | None]
T = TypeVar("T", EntropyChange, RewardChange)


def _sweep(ready: Prepared, etas: list[float], rewards: Tensor | None, progress: Progress) -> Both:
    """ΔH, and ΔJ where there are rewards, at every rate."""
    estimator = ready.estimator
    weighted = [] if estimator.method == "resampled" else etas

    def along(direction: Vector, rates: list[float], order: int, report: Report) -> Both:
        change = entropy_change(
            ready.policy,
            ready.batches.E,
            direction,
            rates,
            estimator.options,
            order=order,
            progress=report,
        )
        gained = None if rewards is None else reward_change(change, rewards, estimator.confidence)
        return replace(change, moved=()), gained

    with progress.bar("measuring") as report:
        order = estimator.order if ready.along is None else 0
        parts = [along(v, rates, order, part) for v, rates, part in _steps(ready, weighted, report)]
        if ready.along is None:
            return parts[0]
        last = part_of(report, len(weighted), len(weighted) + 1)
        change, reward = along(ready.step.direction, [], estimator.order, last)
        return _joined(change, [of_H for of_H, _ in parts]), reward and _joined(
            reward, [of_J for _, of_J in parts if of_J is not None]
        )


def _steps(
    ready: Prepared, etas: list[float], report: Report
) -> Iterator[tuple[Vector, list[float], Report]]:
    """What is taken at these rates: v at all of them, or at each its own rounded step."""
    if ready.along is None:
        yield ready.step.direction, etas, report
        return
    for done, eta in enumerate(etas):
        yield ready.along(eta), [eta], part_of(report, done, len(etas))


def _joined(whole: T, parts: Sequence[T]) -> T:
    """A change with the one point of each of its parts."""
    influences = {name: x for part in (whole, *parts) for name, x in part.influences.items()}
    return replace(whole, points=[part.points[0] for part in parts], influences=influences)


def _to_resample(
    estimator: EstimatorConfig, change: EntropyChange, etas: list[float]
) -> list[float]:
    if estimator.method == "resampled":
        return etas
    wanted = estimator.resample_collapsed
    collapsed = [p for p in change.points if wanted and p.verdict == "resample"]
    return [p.eta for p in collapsed if math.isfinite(p.change.value)]  # else nothing to draw from


def _resample(ready: Prepared, etas: list[float], progress: Progress) -> dict[float, Estimate]:
    if not etas:
        return {}
    E = ready.batches.E
    with progress.bar("fresh responses") as report:
        estimates = [
            estimate
            for direction, rates, part in _steps(ready, etas, report)
            for estimate in resampled_entropy_change(
                ready.policy,
                E,
                direction,
                rates,
                max_new_tokens=ready.sampler.longest(E),
                seed=ready.sampler.data.seeds["resample"],
                estimator=ready.estimator.options,
                progress=part,
            )
        ]
    return dict(zip(etas, estimates, strict=True))


def _budget(
    ready: Prepared, change: EntropyChange, progress: Progress
) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    """δH₁ along each component by the same F on the same samples, which sum to the total.

    Returns:
        The parts, and the influences on them.
    """
    if change.first_order is None:
        return {}, {}
    policy, step = ready.policy, ready.step
    budget, influences = {"total": change.first_order}, {}
    influences["budget.total"] = change.influences["first_order"]
    with progress.bar("budget") as report:
        for done, (name, component) in enumerate(step.components.items()):
            report(done, len(step.components), name)
            if norm(component) == 0:
                total = change.first_order
                budget[name] = Estimate.exact(0.0, total.n, unit=total.unit, method=total.method)
                influences[f"budget.{name}"] = 0 * influences["budget.total"]
                continue
            part = entropy_change(
                policy, ready.batches.E, component, [], ready.estimator.options, order=1
            )
            assert part.first_order is not None
            budget[name] = part.first_order
            influences[f"budget.{name}"] = part.influences["first_order"]
    parts = [budget[name].value for name in step.components]
    require_agreement(
        policy,
        "The parts of δH₁ (momentum, decay, gradient, control) added up and δH₁ along the step",
        sum(parts),
        budget["total"].value,
        sum(map(abs, parts)),
    )
    return budget, influences


def _checks(policy: Policy, batches: Batches, step: Step, change: EntropyChange) -> Checks:
    known, first = len(change.sample.series) > 1, change.first_order
    score = score_identity_z(change.sample) if known else None
    martingale = martingale_z(change.sample)
    floor = rounding_floor(policy, batches.E, step.direction, change.sample)
    of_score, of_martingale = p_value(score), p_value(martingale)
    return Checks(
        score_identity_z=score,
        score_identity_p=adjusted(of_score, 2) if known else None,
        score_identity_verdict=identities_verdict(of_score),
        martingale_z=martingale,
        martingale_p=adjusted(of_martingale, 1 + known),
        martingale_verdict=identities_verdict(of_martingale),
        rounding_floor=FloorOfStep(
            floor.log_weight,
            floor.entropy_change,
            floor.smallest_eta(first.value) if first else None,
        ),
    )


def _entropies(change: EntropyChange, confidence: float) -> dict[str, Estimate]:
    """Both functionals at θ, from the scores at hand."""
    other: Functional = "per_token" if change.functional == "per_sequence" else "per_sequence"
    f = Functionals(other, "prefix", change.sample.functional.tokens)
    sample = replace(change.sample, functional=f, series=change.sample.series[:1])
    entropy = change_of_sample(sample, [], [], confidence=confidence).entropy
    return {change.functional: change.entropy, other: entropy}
