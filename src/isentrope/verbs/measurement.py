"""One checkpoint measured: how much one optimizer step changes the policy's entropy.

Measure ΔH(η) on E with its first and second order (T2), (T3), ΔJ(η) beside it where E has rewards,
what each component of the step contributes, and whether the instrument is sound. Nothing is
written.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from torch import Tensor

from isentrope.config.estimator import EstimatorConfig
from isentrope.estimators.entropy_change import EntropyChange, change_of_sample, entropy_change
from isentrope.estimators.functional import Functional, Functionals
from isentrope.estimators.identities import (
    adjusted,
    identities_verdict,
    martingale_z,
    p_value,
    rounding_floor,
    score_identity_z,
)
from isentrope.estimators.importance import Trust
from isentrope.estimators.price import Price
from isentrope.estimators.resampled import resampled_entropy_change
from isentrope.estimators.reward_change import RewardChange, reward_change
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.vectors import Vector, axpy, norm
from isentrope.policy.scoring import score_along
from isentrope.policy.token_statistics import Scores
from isentrope.results.sweep import Checks
from isentrope.system.progress import part_of, progress
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.price import price_at_checkpoint

PARTS_APART = 1e-6
"""Part of the components' size by which their sum may differ from the step."""


@dataclass(frozen=True)
class Measurement:
    """All that was found at one checkpoint.

    Attributes:
        ready: The checkpoint, with its batches and its step.
        etas: Learning rates measured at.
        change: The sweep on E; without points where the method is "resampled".
        reward: ΔJ at the same rates; None where E has no rewards, or they were not asked for.
        no_reward: Why E has none, in a sentence; empty otherwise.
        fresh: ΔH from fresh responses, by learning rate, where they were drawn.
        budget: δH₁ per unit η of the whole step ("total") and of each component.
        price: What the step spends and earns at the rate of interest, and where; None where that
            was not asked for, or there is no first order.
        checks: Whether the instrument is sound.
        influences: (P,) of each prompt draw of E on the changes, by their names in results.json.
    """

    ready: Prepared
    etas: list[float]
    change: EntropyChange
    reward: RewardChange | None
    no_reward: tuple[str, ...]
    fresh: dict[float, Estimate]
    budget: dict[str, Estimate]
    price: Price | None
    checks: Checks
    influences: dict[str, Tensor]


def measure_checkpoint(ready: Prepared) -> Measurement:
    """Measure one checkpoint; nothing is written."""
    clock, estimator = ready.clock, ready.estimator
    etas = estimator.etas(ready.step.learning_rate)
    rewards, no_reward = _rewards(ready)
    with clock.stage("sweep"):
        change, reward, after = _sweep(ready, etas, rewards)
    with clock.stage("resample"):
        fresh = _resample(ready, _to_resample(estimator, change, etas))
    with clock.stage("budget"):
        budget, of_parts = _budget(ready, change)
    with clock.stage("price"):
        spent = price_at_checkpoint(ready, change, rewards, budget, of_parts, after)
    with clock.stage("checks"):
        checks = _checks(ready, change)
    influences = {**change.influences, **of_parts, **(reward.influences if reward else {})}
    return Measurement(
        *(ready, etas, change, reward, no_reward, fresh, budget, spent, checks),
        influences=influences,
    )


def _rewards(ready: Prepared) -> tuple[Tensor | None, tuple[str, ...]]:
    """(n,) rewards of E, or why there are none."""
    if not ready.analysis.reward:
        return None, ()
    try:
        return ready.sampler.rewarded(ready.E).rewards, ()
    except ValueError as error:
        return None, (f"There is no ΔJ(η), which needs rewards: {error}",)


T = TypeVar("T", EntropyChange, RewardChange)


def _sweep(
    ready: Prepared, etas: list[float], rewards: Tensor | None
) -> tuple[EntropyChange, RewardChange | None, tuple[Scores, Trust] | None]:
    """ΔH, and ΔJ where there are rewards, at every rate; scores and trust at that of interest."""
    estimator, changes, gains = ready.estimator, list[EntropyChange](), list[RewardChange]()
    after = None
    weighted = [] if estimator.method == "resampled" else etas
    steps, count = _steps(ready, weighted), 1
    if ready.along is not None:  # the orders are those of v
        steps, count = chain([(ready.step.direction, [])], steps), 1 + len(weighted)
    with progress().bar("measuring") as report:
        for done, (direction, rates) in enumerate(steps):
            change = entropy_change(
                ready.policy,
                ready.E,
                direction,
                rates,
                estimator.options,
                order=0 if done else estimator.order,
                progress=part_of(report, done, count) if count > 1 else report,
            )
            if rewards is not None:
                gains.append(reward_change(change, rewards, estimator.confidence))
            for point, moved in zip(change.points, change.moved, strict=True):
                after = (moved[0], point.trust) if moved and point.eta == ready.rate else after
            changes.append(replace(change, moved=()))
    return _joined(changes), _joined(gains) if gains else None, after


def _steps(ready: Prepared, etas: list[float]) -> Iterator[tuple[Vector, list[float]]]:
    """What is taken at these rates: v at all of them, or at each its own rounded step."""
    if ready.along is None:
        yield ready.step.direction, etas
        return
    for eta in etas:
        yield ready.along(eta).direction, [eta]


def _joined(parts: list[T]) -> T:
    """The first change, with the points of all."""
    influences = {name: x for part in parts for name, x in part.influences.items()}
    points = [point for part in parts for point in part.points]
    return replace(parts[0], points=points, influences=influences)


def _to_resample(
    estimator: EstimatorConfig, change: EntropyChange, etas: list[float]
) -> list[float]:
    if estimator.method == "resampled":
        return etas
    wanted = estimator.resample_collapsed
    collapsed = [p for p in change.points if wanted and p.verdict == "resample"]
    return [p.eta for p in collapsed if math.isfinite(p.change.value)]  # else nothing to draw from


def _resample(ready: Prepared, etas: list[float]) -> dict[float, Estimate]:
    E, fresh = ready.E, list[Estimate]()
    if not etas:
        return {}
    with progress().bar("fresh responses") as report:
        for direction, rates in _steps(ready, etas):
            fresh += resampled_entropy_change(
                ready.policy,
                E,
                direction,
                rates,
                max_new_tokens=ready.sampler.longest(E),
                seed=ready.sampler.data.seeds["resample"],
                estimator=ready.estimator.options,
                progress=part_of(report, len(fresh), len(etas)) if ready.along else report,
            )
    return dict(zip(etas, fresh, strict=True))


def _budget(
    ready: Prepared, change: EntropyChange
) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    """δH₁ along each component by the same F on the same samples, which sum to the total.

    Slopes are linear in the direction: those along the largest component are what the others leave
    of the step's.

    Returns:
        The parts, and the influences on them.
    """
    if (total := change.first_order) is None:
        return {}, {}
    sizes = {name: norm(component) for name, component in ready.step.components.items()}
    _require_sum(ready, sum(sizes.values()))
    moving = {name: c for name, c in ready.step.components.items() if sizes[name]}
    largest = max(sizes, key=lambda name: sizes[name])
    here, left, *_ = change.sample.series
    whole = change.influences["first_order"]
    zero = Estimate.exact(0.0, total.n, unit=total.unit, method=total.method)
    budget, influences = {"total": total}, {"budget.total": whole}
    parts: dict[str, EntropyChange] = {}
    with progress().bar("budget") as report:
        for done, name in enumerate(sorted(moving, key=lambda name: name == largest)):
            report(done, len(moving), name)
            slope = left
            if name != largest:
                slope = score_along(ready.policy, ready.E, moving[name], 1)[1]
                left = replace(
                    left,
                    logprobs=left.logprobs - slope.logprobs,
                    entropies=left.entropies - slope.entropies,
                )
            sample = replace(change.sample, series=(here, slope))
            parts[name] = change_of_sample(sample, [], [], confidence=ready.estimator.confidence)
    for name in sizes:
        part = parts.get(name)
        budget[name] = (part and part.first_order) or zero
        influences[f"budget.{name}"] = part.influences["first_order"] if part else 0 * whole
    return budget, influences


def _require_sum(ready: Prepared, size: float) -> None:
    """Refuse components that do not sum to the step."""
    rest = ready.step.direction
    for component in ready.step.components.values():
        rest = axpy(-1.0, component, rest)
    if not norm(rest) <= PARTS_APART * size:
        raise ValueError(
            f"The components of the step ({', '.join(ready.step.components)}) do not sum to it: "
            f"{norm(rest):.2g} is left, of {size:.2g}."
        )


def _checks(ready: Prepared, change: EntropyChange) -> Checks:
    sample, first = change.sample, change.first_order
    z = {
        "score_identity": score_identity_z(sample) if len(sample.series) > 1 else None,
        "martingale": martingale_z(sample),
    }
    tested, found = len(z) - list(z.values()).count(None), dict[str, Any]()
    for name, of in z.items():
        p = p_value(of)
        adjusted_p = None if of is None else adjusted(p, tested)
        verdict = identities_verdict(p)
        found |= {f"{name}_z": of, f"{name}_p": adjusted_p, f"{name}_verdict": verdict}
    floor = rounding_floor(
        ready.policy, ready.E, ready.step.direction, sample, first and first.value
    )
    return Checks(**found, rounding_floor=floor)


def entropies_of(change: EntropyChange, confidence: float) -> dict[str, Estimate]:
    """Both functionals at θ, from the scores at hand, by name."""
    other: Functional = "per_token" if change.functional == "per_sequence" else "per_sequence"
    f = Functionals(other, "prefix", change.sample.functional.tokens)
    sample = replace(change.sample, functional=f, series=change.sample.series[:1])
    entropy = change_of_sample(sample, [], [], confidence=confidence).entropy
    return dict(sorted({change.functional: change.entropy, other: entropy}.items()))
