"""Changes of entropy and reward by several steps at one learning rate, on the same E (T2), (T11).

    ΔH_d(η) = F(r_d, H_d) − F(r_0, H_0)
    ΔJ_d(η) = Σ_i ω_i W_i R_i / Σ_i ω_i W_i − Σ_i ω_i W⁰_i R_i / Σ_i ω_i W⁰_i

W_i = exp Σ_k r_ik is the weight of a whole response at θ + ηv_d, W⁰_i that at θ. Every direction is
scored on the same responses, and all changes and their differences come from one jackknife: the
sampling noise that two directions share cancels in their difference.

What one step loses of reward for the entropy that it gains over another, as a share of what the
other earns for what it spends, is its price:

    price_d = (ΔJ_d − ΔJ_0) ΔH_0 / ((ΔH_d − ΔH_0) ΔJ_0)

A step that is shrunk has price 1 to first order, so a price above 1 is worse than a lower rate.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from isentrope.estimators.importance import Trust, Verdict
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.ratio import ratio_of
from isentrope.estimators.reward_change import RewardMean
from isentrope.estimators.sample import score_batch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import confidence_of_each
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.chi_square import score_moved
from isentrope.policy.language_model import Policy
from isentrope.policy.token_statistics import NotFiniteError

Comparison = tuple[str, tuple[str, ...]]
"""Name of a step, and names of those whose mean it is compared with."""


@dataclass(frozen=True)
class Change:
    """A change of entropy and of reward, or what one step changes them by more than another.

    Attributes:
        entropy: ΔH(η).
        reward: ΔJ(η); None where the responses have no rewards.
        price: Of a difference to one step, with Fieller's interval. The intervals of all that are
            compared with that step hold at once. None unless that step clearly lowers entropy and
            raises reward, and the other clearly keeps more entropy.
    """

    entropy: Estimate
    reward: Estimate | None = None
    price: Estimate | None = None


@dataclass(frozen=True)
class PairedChanges:
    """What several steps do at one learning rate.

    Attributes:
        changes: By name of the step.
        differences: By (name, what it is compared with): the first minus the other, or minus the
            mean of the others.
        verdicts: On the weights that each ΔH is made with.
    """

    changes: dict[str, Change]
    differences: dict[Comparison, Change]
    verdicts: dict[str, Verdict]


class PairedSteps:
    """Steps that are compared on one E-batch.

    Attributes:
        eta: η.
        sample: E scored at θ.
    """

    def __init__(
        self,
        policy: Policy,
        E: Rollouts,
        eta: float,
        estimator: EstimatorOptions = EstimatorOptions(),
    ) -> None:
        """Score E at θ.

        Args:
            policy: The policy at θ, which drew E.
            E: An unfiltered E-batch, other samples than any of the steps was computed from; with
                rewards, ΔJ too.
            eta: η.
            estimator: Which entropy, by "prefix" or "sequence", and the coverage of the intervals.
        """
        self._policy = policy
        self._E = E
        self._confidence = estimator.confidence
        self.eta = eta
        self.sample = score_batch(policy, E, estimator)
        self._functionals = [self.sample.functional]
        if E.rewards is not None:
            self._functionals.append(RewardMean.of(self.sample, E.rewards))
        self._moved: dict[str, tuple[Tensor, Tensor]] = {}  # log-ratios and H after each step
        self._trusts: dict[str, list[Trust]] = {}  # of each functional

    def add(self, name: str, direction: Vector) -> None:
        """Score E after a step; the direction is not kept.

        Args:
            name: Name of the step.
            direction: v = Δθ/η.

        Raises:
            NotFiniteError: If the scores are not finite there.
        """
        policy = self._policy
        sample = self.sample
        policy.require_direction(direction)
        (moved_scores,) = score_moved(
            policy, self._E, direction, [self.eta], sampler=sample.sampler
        )
        if moved_scores is None:
            raise NotFiniteError(f"The scores after the step {name!r} are not finite.")
        scores, divergence = moved_scores
        self._moved[name] = (scores.logprobs - sample.sampler_logprobs, scores.entropies)
        self._trusts[name] = [
            replace(sample, functional=f).trust_of_change(scores, divergence)[0]
            for f in self._functionals
        ]

    def changes(self, pairs: Sequence[Comparison] = ()) -> PairedChanges:
        """All changes, and differences between some of them, from one jackknife.

        Args:
            pairs: What to compare: a step minus another, or minus the mean of several.

        Returns:
            Changes and differences; without interval where the weights cannot be trusted.
        """
        functionals = self._functionals
        names = [*self._moved]

        def values(log_ratios: Tensor, entropies: Tensor, omega: Tensor) -> Tensor:
            return torch.stack([f(omega, log_ratios, entropies) for f in functionals])

        def statistics(omega: Tensor) -> Tensor:
            """ΔH, with rewards ΔJ after it; of pairs the two sides of the price too."""
            base = values(self.sample.log_ratios, self.sample.entropies, omega)
            changes = {name: values(*scores, omega) - base for name, scores in self._moved.items()}
            compared: list[Tensor] = []
            for name, references in pairs:
                plain = torch.stack([changes[reference] for reference in references]).mean(0)
                gained = changes[name] - plain
                compared += [gained, torch.stack((gained[-1] * plain[0], gained[0] * plain[-1]))]
            return torch.cat([*changes.values(), *compared])

        result = infinitesimal_jackknife(statistics, self.sample.prompt_index)

        def change(at: int, steps: Sequence[str]) -> Change:
            """ΔH and ΔJ from a row on, which use the weights of these steps."""
            estimates: list[Estimate] = []
            for i, f in enumerate(functionals):
                trust = reduce(Trust.or_worse, (self._trusts[name][i] for name in steps))
                options = {"confidence": self._confidence, **trust.options(f.method)}
                estimates.append(result.estimate(at + i, unit=f.unit, order=trust.order, **options))
            return Change(*estimates)

        size = len(functionals)
        changes = {name: change(k * size, [name]) for k, name in enumerate(names)}
        prices = Counter(references for _, references in pairs)
        compared: dict[Comparison, Change] = {}
        for k, (name, references) in enumerate(pairs):
            at = len(names) * size + k * (size + 2)
            gained = change(at, [name, *references])
            plain = changes[references[0]]
            if (
                len(references) == 1
                and plain.reward is not None
                and plain.entropy.ci_high < 0 < min(plain.reward.ci_low, gained.entropy.ci_low)
            ):
                price = ratio_of(
                    result,
                    at + size,
                    at + size + 1,
                    name="the price's denominator",
                    sign="any",
                    unit="of the plain step's",
                    method=functionals[-1].method,
                    confidence=confidence_of_each(self._confidence, prices[references]),
                )
                gained = replace(gained, price=price if math.isfinite(price.ci_low) else None)
            compared[name, references] = gained
        verdicts: dict[str, Verdict] = {
            name: trusts[0].verdict for name, trusts in self._trusts.items()
        }
        return PairedChanges(changes, compared, verdicts)
