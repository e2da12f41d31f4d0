"""What a step spends of entropy and earns of reward, and at which positions (T2), (T3), (T10).

    δF_c = d/dη F(r(η), 1_c H(η)),     δJ_c = d/dη J(Σ_{k∈c} r_ik(η)),     ΔF_c likewise at one η

c is a class of positions of E that the text before a position decides, so that its entropies belong
to prefixes, as all of F do. F is linear in H: the parts of δF and of ΔF over classes that share out
all positions sum to the whole. δF_c holds what the distributions at c lose, and how much oftener
the policy comes to lose it. J has parts to first order alone: δJ_c is the reward that the tokens at
c bring by what happened to their probabilities.

    −δJ/δF is the reward for a nat.

The threshold of "high entropy" is a quantile of E's own tokens: the class is the one of this batch,
and errors hold it fixed. That of F_c is then several times too large, since a fifth of the tokens
is above by construction. The class has intervals from `LEAST_FOR_QUANTILE` prompts on.

All numbers have one jackknife over prompts, so shares and the reward for a nat have the interval of
a ratio (Fieller).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from isentrope.estimators.functional import along
from isentrope.estimators.importance import Trust
from isentrope.estimators.jackknife import Jackknifed, Units, infinitesimal_jackknife
from isentrope.estimators.positions import HIGH_ENTROPY_CLASS
from isentrope.estimators.ratio import ratio_of
from isentrope.estimators.reward_change import REWARD, RewardMean
from isentrope.estimators.sample import ScoredBatch
from isentrope.estimators.spent import Price, Spent
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.policy.token_statistics import Scores

PRICED = ("prefix", "sequence")
"""Methods that read H, of which positions have parts."""


class _Row(IntEnum):
    """The statistics of a class of positions, in the order of `price_statistics`."""

    ENTROPY = 0
    FIRST_ORDER = 1
    CHANGE = 2
    REWARD = 3
    SPENT = 4
    REWARD_CHANGE = 5


_NO_PARTS = (
    "A price needs the derivative along the step, or the scores after it, by the method 'prefix' "
    "or 'sequence'."
)

NO_POSITION = "No position of E is of this class."
LEAST_FOR_QUANTILE = 128
"""Prompts from which the class above a quantile has intervals (docs/results/switches.md)."""

_FEW_FOR_QUANTILE = (
    "{n} prompts are too few for the threshold of this class, a quantile of E's own tokens: "
    f"{LEAST_FOR_QUANTILE} give intervals."
)

_ONE_PROMPT = "Responses to fewer than two prompts have such positions: there is no interval."


def price_of_step(
    sample: ScoredBatch,
    eta: float,
    classes: Mapping[str, Tensor],
    rewards: Tensor | None = None,
    *,
    after: tuple[Scores, Trust] | None = None,
    confidence: float = 0.95,
) -> Price:
    """Say what a step spends of entropy and earns of reward, at each class of positions.

    Args:
        sample: E at θ, by "prefix" or "sequence"; with its first derivative along v, or without,
            for what was measured alone.
        eta: η, the learning rate of the step.
        classes: (n, t) bool by name; classes may overlap.
        rewards: (n,) the reward of each response; None for entropy alone.
        after: Scores at θ + ηv, and how far weights there can be trusted; None for first order.
        confidence: Nominal coverage of the intervals.

    Returns:
        Spendings and earnings of the step.

    Raises:
        ValueError: If there is neither a derivative nor a measurement, the method does not read H,
            or a class has another shape than E's tokens.
    """
    derived = len(sample.series) > 1
    if not (derived or after) or sample.functional.method not in PRICED:
        raise ValueError(_NO_PARTS)
    masks = _restrict_to_tokens(sample.series[0].mask, classes)
    reward = None if rewards is None else RewardMean.of(sample, rewards)
    result = infinitesimal_jackknife(
        lambda omega: torch.cat(
            [
                price_statistics(omega, mask, sample, eta, reward, after and after[0])
                for mask in masks.values()
            ]
        ),
        sample.prompt_index,
    )
    trust = sample.trust if after is None else after[1].or_worse(sample.trust)
    withheld = "" if reward is None else reward.withheld
    of_reward = sample.trust.without_interval(withheld)
    trusts = dict.fromkeys(_Row, sample.trust) | {_Row.CHANGE: trust, _Row.REWARD: of_reward}
    trusts[_Row.REWARD_CHANGE] = of_reward if withheld else trust
    estimates = _Estimates(sample, masks, result, trusts, confidence)
    parts: dict[str, Spent] = {}
    for name in masks:
        parts[name] = estimates.spent(name, after=after is not None, rewarded=reward is not None)
    change = estimates.of(_Row.REWARD_CHANGE, "", REWARD) if after and reward else None
    return Price(parts.pop(""), parts, change)


@dataclass(frozen=True)
class _Estimates:
    """The statistics of all classes of positions as numbers with intervals.

    Attributes:
        sample: E at θ.
        masks: (n, t) bool by class, all positions first, under the name "".
        result: `price_statistics` of each class, one class after the other.
        trusts: How far weights can be trusted, by statistic.
        confidence: Nominal coverage of the intervals.
    """

    sample: ScoredBatch
    masks: Mapping[str, Tensor]
    result: Jackknifed
    trusts: Mapping[_Row, Trust]
    confidence: float

    def spent(self, name: str, *, after: bool, rewarded: bool) -> Spent:
        """What happens at the positions of a class.

        Args:
            name: The class; "" for all positions.
            after: Whether the change was measured.
            rewarded: Whether E has rewards.

        Returns:
            Its numbers; those of derivatives are None where there are none.
        """
        unit = self.sample.functional.unit
        derived = len(self.sample.series) > 1
        share = for_a_nat = None
        if derived:
            share = Estimate.exact(1.0, self.result.n_units, unit=NET_SHARE, method="definition")
            if name:
                of_all = self._place(_Row.FIRST_ORDER, "")
                share = self._ratio(_Row.FIRST_ORDER, name, of_all, NET_SHARE)
        if derived and rewarded:
            per_nat = f"{REWARD} per {unit.replace('nats', 'nat')}"
            for_a_nat = self._ratio(_Row.REWARD, name, self._place(_Row.SPENT, name), per_nat)
        return Spent(
            tokens=float(self.masks[name].sum() / self.masks[""].sum()),
            entropy=self.of(_Row.ENTROPY, name, unit),
            first_order=self.of(_Row.FIRST_ORDER, name, unit) if derived else None,
            share=share,
            change=self.of(_Row.CHANGE, name, unit) if after else None,
            reward=self.of(_Row.REWARD, name, REWARD) if derived and rewarded else None,
            reward_for_a_nat=for_a_nat,
        )

    def of(self, row: _Row, name: str, unit: str) -> Estimate:
        """A statistic of a class."""
        return self.result.estimate(self._place(row, name), unit=unit, **self._options(row, name))

    def _ratio(self, row: _Row, name: str, bottom: int, unit: str) -> Estimate:
        top = self._place(row, name)
        options = self._options(row, name)
        return ratio_of(self.result, top, bottom, name="δH₁", sign="any", unit=unit, **options)

    def _place(self, row: _Row, name: str) -> int:
        return [*self.masks].index(name) * len(_Row) + row

    def _options(self, row: _Row, name: str) -> dict[str, Any]:
        prompts = Units.of(self.sample.prompt_index[self.masks[name].any(1)]).count
        reason = _ONE_PROMPT if prompts else NO_POSITION
        trust = self.trusts[row].without_interval(reason if prompts < 2 else "")
        n = self.result.n_units
        if name == HIGH_ENTROPY_CLASS and n < LEAST_FOR_QUANTILE:
            trust = trust.without_interval(_FEW_FOR_QUANTILE.format(n=n))
        order = trust.order if row in (_Row.CHANGE, _Row.REWARD_CHANGE) else 1
        method = self.sample.functional.method
        return {"confidence": self.confidence, "order": order, **trust.options(method)}


def _restrict_to_tokens(tokens: Tensor, classes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All positions under the name "", then those of each class."""
    masks = {"": tokens}
    for name, mask in classes.items():
        if mask.shape != tokens.shape:
            raise ValueError(
                f"The class {name!r} has shape {tuple(mask.shape)}, E's tokens "
                f"{tuple(tokens.shape)}."
            )
        masks[name] = mask & tokens
    return masks


def price_statistics(
    omega: Tensor,
    mask: Tensor,
    sample: ScoredBatch,
    eta: float,
    reward: RewardMean | None,
    after: Scores | None,
) -> Tensor:
    """F_c, ηδF_c, ΔF_c, ηδJ_c, −ηδF_c and ΔJ of a class of positions.

    Args:
        omega: (n,) sample weights.
        mask: (n, t) whether a token stands at a position of the class.
        sample: E at θ, with its first derivative along v where that is known.
        eta: η.
        reward: J of the batch, or None.
        after: Scores at θ + ηv, or None.

    Returns:
        (6,) in the order of `_Row`, 0 for what is not known.
    """
    f = sample.functional
    r = sample.log_ratio_series[:2]
    h = tuple(x * mask for x in sample.entropy_series[:2])  # F is linear in H
    derived = len(sample.series) > 1
    value = f(omega, r[0], h[0])
    slope = value * 0
    if derived:
        value, slope = along(f, omega, r, h, 1)
    change = earned = total = value * 0
    if reward is not None and derived:
        # of the ratios only those of tokens of the class move
        earned = along(reward, omega, (r[0], r[1] * mask), h[:1], 1)[1]
    if after is not None:
        log_ratios = after.logprobs - sample.sampler_logprobs
        change = f(omega, log_ratios, after.entropies * mask) - value
        if reward is not None:
            total = reward(omega, log_ratios, h[0]) - reward(omega, r[0], h[0])
    return torch.stack([value, eta * slope, change, eta * earned, -eta * slope, total])
