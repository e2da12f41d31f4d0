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

from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.gradient_products import alignment
from isentrope.estimators.entropy_change import EntropyChange, entropy_change
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
from isentrope.estimators.price import PRICED, price_of_step
from isentrope.estimators.ratio import ratio_of
from isentrope.estimators.resampled import resampled_entropy_change
from isentrope.estimators.reward_change import RewardChange, reward_change
from isentrope.estimators.rounding_floor import rounding_floor
from isentrope.estimators.spent import Price
from isentrope.estimators.sweep import orders_at
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.token_statistics import Scores
from isentrope.results.answers.measure import WITHHELD
from isentrope.results.sweep import Checks
from isentrope.system.progress import progress
from isentrope.verbs.first_order import budget_of_step, edge_of, too_few_prompts
from isentrope.verbs.prepare import Prepared


@dataclass(frozen=True)
class Measurement:
    """What is measured at one checkpoint.

    Attributes:
        ready: The checkpoint, with its batches and its step.
        etas: Learning rates measured at.
        change: The sweep on E; without points where the method is "resampled".
        reward: ΔJ at the same rates; None where E has no rewards, or they were not asked for.
        no_reward: Why E has none, in a sentence; empty otherwise.
        no_frontier: Why there is none although E has rewards, in a sentence; empty otherwise.
        withheld: Why derivatives that were asked for are not given; empty otherwise.
        fresh: ΔH from fresh responses, by learning rate, where they were drawn.
        budget: δH₁ per unit η of the whole step ("total") and of each component.
        price: What the step spends and earns at the rate of interest, and where; None where that
            was not asked for, or there is no first order.
        frontier: What any step of the same length could do; None where there is no price, or E has
            no rewards or fewer than 16 prompts.
        checks: Whether the instrument is sound.
        influences: (P,) of each prompt draw of E on the changes, by their names in results.json.
    """

    ready: Prepared
    etas: list[float]
    change: EntropyChange
    reward: RewardChange | None
    no_reward: tuple[str, ...]
    no_frontier: tuple[str, ...]
    withheld: tuple[str, ...]
    fresh: dict[float, Estimate]
    budget: dict[str, Estimate]
    price: Price | None
    frontier: Frontier | None
    checks: Checks
    influences: dict[str, Tensor]


def measure_checkpoint(ready: Prepared) -> Measurement:
    """Measure one checkpoint; nothing is written."""
    clock = ready.clock
    estimator = ready.config.estimator
    etas = estimator.etas(ready.step.learning_rate)
    rewards: Tensor | None = None
    no_reward: tuple[str, ...] = ()
    if ready.config.analysis.reward:
        try:
            rewards = ready.sampler.rewarded(ready.E).rewards
        except ValueError as error:
            no_reward = (f"There is no ΔJ(η), which needs rewards: {error}",)
    with clock.stage("sweep"):
        sweep = _measure_sweep(ready, etas, rewards)
    change = sweep.change
    reward = sweep.reward
    fresh = [*etas] if estimator.method == "resampled" else []
    for point in change.points if estimator.resample_collapsed else ():
        if point.verdict == "resample" and math.isfinite(point.change.value):  # else none to draw
            fresh.append(point.eta)
    with clock.stage("resample"):
        resampled = _resample(ready, fresh) if fresh else {}
    with clock.stage("budget"):
        budget, shares = budget_of_step(ready, change)
    with clock.stage("price"):
        price = _estimate_price(ready, change, rewards, budget, shares, sweep.at_rate)
        frontier = None
        no_frontier: tuple[str, ...] = ()
        if price is not None and rewards is not None:
            no_frontier = too_few_prompts(ready.E)
            if not no_frontier:
                E = ready.E.with_columns(rewards=rewards)
                edge = edge_of(ready, ready.step, change.sample, E)
                frontier = frontier_of_step(edge, ready.step, estimator.confidence)
                cosine = alignment(edge.gradients, estimator.confidence)
                price = replace(price, cosine=cosine)
    with clock.stage("checks"):
        checks = _check_instrument(ready, change)
    return Measurement(
        ready=ready,
        etas=etas,
        change=change,
        reward=reward,
        no_reward=no_reward,
        no_frontier=no_frontier,
        withheld=sweep.withheld,
        fresh=resampled,
        budget=budget,
        price=price,
        frontier=frontier,
        checks=checks,
        influences={**change.influences, **shares, **(reward.influences if reward else {})},
    )


_Change = TypeVar("_Change", EntropyChange, RewardChange)


@dataclass(frozen=True)
class _Sweep:
    """The changes at every learning rate.

    Attributes:
        change: ΔH.
        reward: ΔJ; None where there are no rewards.
        at_rate: Scores at the rate of interest, and what the weights there allow; None where it is
            none of the rates.
        withheld: Why derivatives that were asked for are not given; empty otherwise.
    """

    change: EntropyChange
    reward: RewardChange | None
    at_rate: tuple[Scores, Trust] | None
    withheld: tuple[str, ...]


def _measure_sweep(ready: Prepared, etas: list[float], rewards: Tensor | None) -> _Sweep:
    """ΔH, and ΔJ where there are rewards, at every rate by weights."""
    estimator = ready.config.estimator
    changes: list[EntropyChange] = []
    gains: list[RewardChange] = []
    at_rate: tuple[Scores, Trust] | None = None
    withheld: tuple[str, ...] = ()
    weighted = [] if estimator.method == "resampled" else etas
    with progress().bar("measuring") as report:
        for direction, rates in _take_steps(ready, weighted, orders=True):
            measure = partial(
                entropy_change,
                ready.policy,
                ready.E,
                direction,
                rates,
                estimator.options,
                progress=report,
            )
            try:
                change = measure(order=0 if changes else estimator.order)
            except DerivativeError as error:  # ΔH(η) at finite η needs none
                withheld = (f"{WITHHELD}: {error}",)
                change = measure(order=0)
            if rewards is not None:
                gains.append(reward_change(change, rewards, estimator.confidence))
            for point, moved_scores in zip(change.points, change.moved, strict=True):
                if moved_scores and point.eta == ready.rate:
                    at_rate = (moved_scores[0], point.trust)
            changes.append(replace(change, moved=()))
    return _Sweep(_join(changes), _join(gains) if gains else None, at_rate, withheld)


def _take_steps(
    ready: Prepared, etas: list[float], *, orders: bool = False
) -> Iterator[tuple[Vector, list[float]]]:
    """What is taken: v at all rates; or its rounded step at each, after v if orders are wanted."""
    along = ready.step.along
    if along is None:
        yield ready.step.direction, etas
        return
    if orders:
        yield ready.step.direction, []
    for eta in etas:
        yield along(eta).direction, [eta]


def _join(parts: list[_Change]) -> _Change:
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
        for direction, rates in _take_steps(ready, etas):
            fresh += resampled_entropy_change(
                ready.policy,
                ready.E,
                direction,
                rates,
                max_new_tokens=ready.sampler.longest(ready.E),
                seed=ready.sampler.data.seeds["resample"],
                estimator=ready.config.estimator.options,
                progress=report,
            )
    return dict(zip(etas, fresh, strict=True))


def _estimate_price(
    ready: Prepared,
    change: EntropyChange,
    rewards: Tensor | None,
    budget: dict[str, Estimate],
    influences: dict[str, Tensor],
    at_rate: tuple[Scores, Trust] | None,
) -> Price | None:
    """What the step spends and earns at the rate of interest, in all and by group of prompts."""
    sample = change.sample
    confidence = ready.config.estimator.confidence
    priced = ready.config.analysis.price and sample.functional.method in PRICED
    if change.first_order is None or not priced:
        return None
    E = ready.E if rewards is None else ready.E.with_columns(rewards=rewards)
    pattern = ready.config.analysis.position_pattern
    classes = position_classes(E, sample.entropies, pattern, ready.policy.tokenizer)
    require_matches(classes)
    parts = ("momentum", "total")
    shares = Jackknifed(
        torch.tensor([budget[name].value for name in parts]).double(),
        torch.stack([influences[f"budget.{name}"] for name in parts]),
        E.n_prompts,
    )
    options = {"confidence": confidence, **sample.trust.options(sample.functional.method)}
    momentum = ratio_of(shares, 0, 1, name="δH₁", unit=NET_SHARE, sign="any", **options)
    price = price_of_step(sample, ready.rate, classes, rewards, confidence=confidence)
    for group in sorted(set(E.prompt_groups or ())):  # one at a time, as there may be many
        members = torch.tensor([name == group for name in E.prompt_groups or ()])[:, None]
        tokens = {f"group {group}": members & sample.series[0].mask}
        part = price_of_step(
            sample, ready.rate, tokens, rewards, after=at_rate, confidence=confidence
        )
        price.at.update(part.at)
    return replace(price, momentum=momentum)


def _check_instrument(ready: Prepared, change: EntropyChange) -> Checks:
    """Identities that hold for a sound instrument, and where rounding ends what it can measure."""
    sample = change.sample
    scores = {
        "score_identity": score_identity_z(sample) if len(sample.series) > 1 else None,
        "martingale": martingale_z(sample),
    }
    tests = sum(z is not None for z in scores.values())
    fields: dict[str, Any] = {}
    for name, z in scores.items():
        p = p_value(z)
        fields[f"{name}_z"] = z
        fields[f"{name}_p"] = None if z is None else adjusted(p, tests)
        fields[f"{name}_verdict"] = identities_verdict(p)
    slope = None if change.first_order is None else change.first_order.value
    floor = rounding_floor(ready.policy, ready.E, ready.step.direction, sample, slope)
    return Checks(**fields, rounding_floor=floor)
