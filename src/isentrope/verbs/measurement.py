"""One checkpoint measured: how much one optimizer step changes the policy's entropy.

Measure ΔH(η) on E with its first and second order (T2), (T3), ΔJ(η) beside it where E has rewards,
what each component of the step contributes, what the step spends and earns, and whether the
instrument is sound. Nothing is written.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from isentrope.attribution.alignment import alignment
from isentrope.attribution.gradients.groups import gradients_by_group, of_reward
from isentrope.estimators.entropy_change import EntropyChange, change_of_sample, entropy_change
from isentrope.estimators.identities import (
    adjusted,
    identities_verdict,
    martingale_z,
    p_value,
    score_identity_z,
)
from isentrope.estimators.importance import Trust
from isentrope.estimators.jackknife import Jackknifed
from isentrope.estimators.positions import position_classes, require_matches
from isentrope.estimators.price import PRICED, Price, price_of_step
from isentrope.estimators.ratio import ratio_of
from isentrope.estimators.resampled import resampled_entropy_change
from isentrope.estimators.reward_change import RewardChange, reward_change
from isentrope.estimators.rounding_floor import rounding_floor
from isentrope.estimators.sweep import orders_at
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.vectors import Vector, axpy, norm
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.scoring import score_along
from isentrope.policy.token_statistics import Scores
from isentrope.results.sweep import Checks
from isentrope.system.progress import progress
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.printed_measure import WITHHELD

PARTS_APART = 1e-6
"""Part of the components' size by which their sum may differ from the step."""

GROUPS = 16
"""Groups of E's prompts for the angle of the gradients of reward and entropy."""


@dataclass(frozen=True)
class Measurement:
    """All that was found at one checkpoint.

    Attributes:
        ready: The checkpoint, with its batches and its step.
        etas: Learning rates measured at.
        change: The sweep on E; without points where the method is "resampled".
        reward: ΔJ at the same rates; None where E has no rewards, or they were not asked for.
        no_reward: Why E has none, in a sentence; empty otherwise.
        withheld: Why derivatives that were asked for are not given; empty otherwise.
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
    withheld: tuple[str, ...]
    fresh: dict[float, Estimate]
    budget: dict[str, Estimate]
    price: Price | None
    checks: Checks
    influences: dict[str, Tensor]


def measure_checkpoint(ready: Prepared) -> Measurement:
    """Measure one checkpoint; nothing is written."""
    clock, estimator = ready.clock, ready.estimator
    etas = estimator.etas(ready.step.learning_rate)
    rewards, no_reward = None, tuple[str, ...]()
    if ready.analysis.reward:
        try:
            rewards = ready.sampler.rewarded(ready.E).rewards
        except ValueError as error:
            no_reward = (f"There is no ΔJ(η), which needs rewards: {error}",)
    with clock.stage("sweep"):
        change, reward, after, withheld = _sweep(ready, etas, rewards)
    fresh = [*etas] if estimator.method == "resampled" else []
    for point in change.points if estimator.resample_collapsed else ():
        if point.verdict == "resample" and math.isfinite(point.change.value):  # else none to draw
            fresh.append(point.eta)
    with clock.stage("resample"):
        resampled = _resample(ready, fresh) if fresh else {}
    with clock.stage("budget"):
        budget, of_parts = _budget(ready, change)
    with clock.stage("price"):
        price = _price(ready, change, rewards, budget, of_parts, after)
    with clock.stage("checks"):
        checks = _checks(ready, change)
    return Measurement(
        ready=ready,
        etas=etas,
        change=change,
        reward=reward,
        no_reward=no_reward,
        withheld=withheld,
        fresh=resampled,
        budget=budget,
        price=price,
        checks=checks,
        influences={**change.influences, **of_parts, **(reward.influences if reward else {})},
    )


T = TypeVar("T", EntropyChange, RewardChange)


def _sweep(
    ready: Prepared, etas: list[float], rewards: Tensor | None
) -> tuple[EntropyChange, RewardChange | None, tuple[Scores, Trust] | None, tuple[str, ...]]:
    """ΔH, and ΔJ where there are rewards, at every rate; scores and trust at that of interest.

    Returns:
        These, and why derivatives that were asked for are not given.
    """
    estimator, changes, gains = ready.estimator, list[EntropyChange](), list[RewardChange]()
    after, withheld = None, tuple[str, ...]()
    weighted = [] if estimator.method == "resampled" else etas
    steps = _steps(ready, weighted, orders=True)
    with progress().bar("measuring") as report:
        for direction, rates in steps:
            given = ready.policy, ready.E, direction, rates, estimator.options
            measured = partial(entropy_change, *given, progress=report)
            try:
                change = measured(order=0 if changes else estimator.order)
            except DerivativeError as error:  # ΔH(η) at finite η needs none
                withheld = (f"{WITHHELD}: {error}",)
                change = measured(order=0)
            if rewards is not None:
                gains.append(reward_change(change, rewards, estimator.confidence))
            for point, moved in zip(change.points, change.moved, strict=True):
                after = (moved[0], point.trust) if moved and point.eta == ready.rate else after
            changes.append(replace(change, moved=()))
    return _joined(changes), _joined(gains) if gains else None, after, withheld


def _steps(
    ready: Prepared, etas: list[float], *, orders: bool = False
) -> Iterator[tuple[Vector, list[float]]]:
    """What is taken: v at all rates; or its rounded step at each, after v if orders are wanted."""
    if ready.along is None:
        yield ready.step.direction, etas
        return
    if orders:
        yield ready.step.direction, []
    for eta in etas:
        yield ready.along(eta).direction, [eta]


def _joined(parts: list[T]) -> T:
    """The first change, with the points of all, which are compared with its orders."""
    change = parts[0]
    influences = {name: x for part in parts for name, x in part.influences.items()}
    points = [
        replace(point, **orders_at(point.eta, change.first_order, change.second_order, change.unit))
        for part in parts
        for point in part.points
    ]
    return replace(change, points=points, influences=influences)


def _resample(ready: Prepared, etas: list[float]) -> dict[float, Estimate]:
    fresh = list[Estimate]()
    with progress().bar("fresh responses") as report:
        for direction, rates in _steps(ready, etas):
            fresh += resampled_entropy_change(
                ready.policy,
                ready.E,
                direction,
                rates,
                max_new_tokens=ready.sampler.longest(ready.E),
                seed=ready.sampler.data.seeds["resample"],
                estimator=ready.estimator.options,
                progress=report,
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

    Raises:
        ValueError: If the components do not sum to the step.
    """
    if (total := change.first_order) is None:
        return {}, {}
    components, rest = ready.step.components, ready.step.direction
    sizes = {name: norm(component) for name, component in components.items()}
    for component in components.values():
        rest = axpy(-1.0, component, rest)
    if not norm(rest) <= PARTS_APART * sum(sizes.values()):
        raise ValueError(
            f"The components of the step ({', '.join(components)}) do not sum to it: "
            f"{norm(rest):.2g} is left, of {sum(sizes.values()):.2g}."
        )
    moving = [name for name in sizes if sizes[name]]
    largest = max(sizes, key=lambda name: sizes[name])
    here, left, *_ = change.sample.series
    whole = change.influences["first_order"]
    zero = Estimate.exact(0.0, total.n, unit=total.unit, method=total.method)
    budget = {"total": total} | dict.fromkeys(sizes, zero)
    influences = {f"budget.{name}": 0 * whole for name in budget} | {"budget.total": whole}
    with progress().bar("budget") as report:
        for done, name in enumerate(sorted(moving, key=lambda name: name == largest)):
            report(done, len(moving), name)
            slope = left
            if name != largest:
                slope = score_along(ready.policy, ready.E, components[name], 1)[1]
                left = replace(
                    left,
                    logprobs=left.logprobs - slope.logprobs,
                    entropies=left.entropies - slope.entropies,
                )
            sample = replace(change.sample, series=(here, slope))
            part = change_of_sample(sample, [], [], confidence=ready.estimator.confidence)
            budget[name] = part.first_order or zero
            influences[f"budget.{name}"] = part.influences["first_order"]
    return budget, influences


def _price(
    ready: Prepared,
    change: EntropyChange,
    rewards: Tensor | None,
    budget: dict[str, Estimate],
    influences: dict[str, Tensor],
    after: tuple[Scores, Trust] | None,
) -> Price | None:
    """What the step spends and earns at the rate of interest; ΔH by group as measured `after`."""
    sample, asked, confidence = change.sample, ready.analysis, ready.estimator.confidence
    if change.first_order is None or not asked.price or sample.functional.method not in PRICED:
        return None
    E = ready.E if rewards is None else ready.E.with_columns(rewards=rewards)
    classes = position_classes(E, sample.entropies, asked.position_pattern, ready.policy.tokenizer)
    require_matches(classes)
    parts = ("momentum", "total")
    shares = Jackknifed(
        torch.tensor([budget[name].value for name in parts]).double(),
        torch.stack([influences[f"budget.{name}"] for name in parts]),
        E.n_prompts,
    )
    options = {"confidence": confidence, **sample.trust.options(sample.functional.method)}
    momentum = ratio_of(shares, 0, 1, name="δH₁", unit=NET_SHARE, sign="any", **options)
    found = price_of_step(sample, ready.rate, classes, rewards, confidence=confidence)
    for group in sorted(set(E.prompt_groups or ())):  # one at a time, as there may be many
        of = torch.tensor([name == group for name in E.prompt_groups or ()])[:, None]
        one = {f"group {group}": of & sample.series[0].mask}
        part = price_of_step(sample, ready.rate, one, rewards, after=after, confidence=confidence)
        found.at.update(part.at)
    cosine = None
    if rewards is not None and E.n_prompts >= GROUPS:
        where = ready.gradients.storage.where
        samples = [sample, of_reward(sample, rewards)]
        g_H, g_J = gradients_by_group(ready.policy, E, samples, GROUPS, where)
        cosine = alignment(g_J, g_H, ready.step.preconditioner, confidence)
    return replace(found, momentum=momentum, cosine=cosine)


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
    slope = first and first.value
    floor = rounding_floor(ready.policy, ready.E, ready.step.direction, sample, slope)
    return Checks(**found, rounding_floor=floor)
