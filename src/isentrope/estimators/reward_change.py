"""The change ΔJ(η) of expected reward by the same step, on the same responses (T2), (T3).

    J(ω; r) = Σ_i ω_i W_i R_i / Σ_i ω_i W_i,     ΔJ(η) = J(r(η)) − J(r(0))

W_i = exp Σ_k r_ik is the weight of a whole response, because its reward depends on all of its
tokens. Orders and errors are those of ΔH: δJ₁ = dJ/dη, on-policy the mean of (R − R̄) ∂_v S, and
δJ₂ = ½ d²J/dη², by dual numbers in r. Where δJ₂ < 0 the parabola has its top at

    η_top = −δJ₁ / (2 δJ₂),

behind the policy where the step lowers reward. It has the interval of a share (`ratio`), and is
given where δJ₂ is far enough from zero for one, whatever the sign of δJ₁: given only where δJ₁ is
shown to be positive, it covered down to .65 near that switch (docs/results/choices.md). v is the
step of a batch of B prompts, whose noise is in δJ₂: η_top is the best rate at that B, and not that
of a step without noise (T8).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from isentrope.estimators.entropy_change import EntropyChange, change_of_sample
from isentrope.estimators.functional import Functionals, stable_exp
from isentrope.estimators.jackknife import Jackknifed, Units
from isentrope.estimators.means import bounded_mean
from isentrope.estimators.ratio import LEAST_DISTANCE, ratio_of
from isentrope.estimators.sample import ScoredBatch
from isentrope.estimators.sweep import ChangeAtRate
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent

REWARD = "reward"
"""Unit of J."""

THIRD_ORDER = 0.1
"""Part of the second order that the rest may be, up to the top of a parabola that is printed."""

LEAST_DIFFERENT = 10
"""Responses whose reward differs from the most common one, below which nothing of J's changes is
known but their value."""


@dataclass(frozen=True, kw_only=True)
class RewardMean(Functionals):
    """J by one self-normalised weight per response.

    Attributes:
        rewards: (n,) float64, the reward of each response.
    """

    symbol: ClassVar[str] = "J"

    rewards: Tensor

    @classmethod
    def of(cls, sample: ScoredBatch, rewards: Tensor) -> RewardMean:
        """J of the responses of a sample.

        Args:
            sample: A scored batch.
            rewards: (n,) the reward of each response.

        Returns:
            The functional.

        Raises:
            ValueError: If a response has no reward.
        """
        if bool(rewards.isnan().any()):
            raise ValueError(
                f"Response {int(rewards.isnan().nonzero()[0])} has no reward, because no reward "
                "function applies to it, and J is the mean reward of all responses: give every "
                "response of E a reward, or omit its prompt."
            )
        tokens = sample.functional.tokens
        return cls("per_sequence", "sequence", tokens, rewards=rewards.double())

    @property
    def unit(self) -> str:
        """Unit of J."""
        return REWARD

    @property
    def withheld(self) -> str:
        """Why no change of reward has an interval, where few responses differ."""
        n = len(self.rewards)
        different = n - int(self.rewards.unique(return_counts=True)[1].max())
        if different >= LEAST_DIFFERENT:
            return ""
        return (
            f"{different} of {n} responses have another reward than the most common one: below "
            f"{LEAST_DIFFERENT} the batch does not show how a change of reward varies."
        )

    def __call__(self, omega: Tensor, log_ratios: Tensor, entropies: Tensor) -> Tensor:
        """J(ω; r).

        Args:
            omega: (n,) sample weights ω, any positive scale.
            log_ratios: (n, t) r in nats, 0 where there is no token.
            entropies: Not used: the reward of a response does not depend on θ.

        Returns:
            Scalar J, in units of reward.
        """
        del entropies
        weights = omega * stable_exp(log_ratios.sum(1))
        shift = self.rewards[0]  # equal rewards have influences of exactly zero
        return shift + weights @ (self.rewards - shift) / weights.sum()


@dataclass(frozen=True, kw_only=True)
class RewardOrders:
    """What the first two orders say of ΔJ(η).

    Attributes:
        first_order: δJ₁ per unit η, or None if order was 0.
        second_order: δJ₂ per unit η², or None if order was below 2.
        top: η_top, the rate at which the parabola is highest, below 0 where the step lowers reward;
            None where none follows.
        no_top: Why there is none; None where there is one, or order was below 2.
    """

    first_order: Estimate | None
    second_order: Estimate | None
    top: Absent[Estimate] = None
    no_top: Absent[str] = None


@dataclass(frozen=True, kw_only=True)
class RewardChange(RewardOrders):
    """A sweep of ΔJ over learning rates, with its predictions.

    Attributes:
        reward: J at θ.
        points: ΔJ and its residual, one per learning rate.
        influences: (P,) of each prompt draw, as those of `EntropyChange`.
    """

    reward: Estimate
    points: list[ChangeAtRate]
    influences: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False)

    @property
    def unit(self) -> str:
        """Unit of a change."""
        return self.reward.unit


def reward_change(change: EntropyChange, rewards: Tensor, confidence: float = 0.95) -> RewardChange:
    """Measure ΔJ(η) on the batch that ΔH(η) was measured on: arrays only, no model.

    Args:
        change: The sweep of ΔH, with the scores behind it.
        rewards: (n,) the reward of each of its responses.
        confidence: Nominal coverage of the intervals.

    Returns:
        ΔJ at the same learning rates.
    """
    f = RewardMean.of(change.sample, rewards)
    swept = change_of_sample(
        replace(change.sample, functional=f),
        [point.eta for point in change.points],
        change.moved,
        confidence=confidence,
    )
    top = find_top(swept, confidence)
    no_top = None if top is None else _explain_no_top(swept, top)
    reward = swept.entropy  # F at θ, which is J
    sample = change.sample
    in_range = not bool(((rewards < 0) | (rewards > 1)).any())
    if f.withheld and sample.trust.verdict == "trust" and in_range:
        # rewards in [0, 1] of the policy's own responses: J has an interval that holds always
        units = Units.of(sample.prompt_index)
        mean = bounded_mean(units.sums(rewards) / units.sizes, reward.unit, confidence=confidence)
        reward = replace(
            reward,
            ci_low=mean.ci_low,
            ci_high=mean.ci_high,
            degrees_of_freedom=None,
            warnings=sample.trust.warnings,
        )
    return RewardChange(
        reward=reward,
        first_order=swept.first_order,
        second_order=swept.second_order,
        top=top if no_top is None else None,
        no_top=no_top,
        points=swept.points,
        influences={
            f"reward.{name.replace('delta_h', 'delta_j')}": x
            for name, x in swept.influences.items()
        },
    )


def find_top(change: EntropyChange, confidence: float) -> Estimate | None:
    """Where the parabola of the first two orders has its top, or its bottom.

    Args:
        change: A sweep, with both orders and the influences on them.
        confidence: Nominal coverage of the interval.

    Returns:
        η_top, with an interval where δJ₂ is far enough from zero; None without both orders.
    """
    first = change.first_order
    second = change.second_order
    if first is None or second is None:
        return None
    influences = torch.stack([change.influences[name] for name in ("first_order", "second_order")])
    values = torch.tensor([first.value, second.value], dtype=torch.float64)
    trusted = math.isfinite(first.ci_low) and math.isfinite(second.ci_low)
    ratio = ratio_of(
        Jackknifed(values, influences, influences.shape[1]),
        0,
        1,
        name="δJ₂",
        confidence=confidence,
        sign="any",
        unit="η",
        method=first.method,
        trusted=trusted,
        warnings=change.sample.trust.warnings,
    )
    return ratio.scaled(-0.5)


def _explain_no_top(change: EntropyChange, top: Estimate) -> str | None:
    """The sentence that says why the parabola of J has no top; None where it has one."""
    first = change.first_order
    second = change.second_order
    if first is None or second is None:
        return None
    if not (math.isfinite(first.ci_low) and math.isfinite(second.ci_low)):
        return "δJ₁ and δJ₂ have no intervals here."
    if not math.isfinite(top.ci_low) or second.value > 0:
        return (
            f"δJ₂ is not {LEAST_DISTANCE:.0f} of its errors below zero: E does not show well "
            "enough that reward curves down."
        )
    for point in sorted(change.points, key=lambda point: abs(point.eta)):
        residual = point.residual
        allowed = THIRD_ORDER * abs(second.value) * point.eta**2
        if residual is None or abs(point.eta) > abs(top.value):
            continue
        if residual.ci_low > allowed or residual.ci_high < -allowed:
            return (
                f"At η = {point.eta:.3g} ΔJ differs from its second order by more than "
                f"{THIRD_ORDER:.0%} of that order, so a parabola does not say where reward is "
                "highest."
            )
    return None
