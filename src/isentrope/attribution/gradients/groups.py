"""A gradient in G parts, one per group of prompts, so that linear functions of it have an error.

    g = Σ_g r_g,     x = <g, y> = Σ_g x_g,     SE² = G/(G−1) Σ_g (x_g − n_g/n · x)²          (T11)

r_g holds the group's own samples with the weights of the whole batch, plus, for h = ℋ/N, how
omitting the group changes the ratio that all samples share (I_h, I_N: influences of the group):

    r_g = Σ_{i∈g} (a_i ∂s_i + b_i ∂H_i) − (I_h(g)/N) ∂N − (I_N(g)/N) ∂h

This is the delete-a-group jackknife to first order: the terms omitted are of order 1/n. The extra
terms sum to zero, so the parts sum to the gradient itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.ratio_terms import RatioTerms, ratio_terms
from isentrope.attribution.gradients.storage_plan import Where
from isentrope.estimators.entropy import cotangents, cotangents_of_arrays
from isentrope.estimators.importance import Trust
from isentrope.estimators.reward_change import RewardMean
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.models.embeddings import derivative_of_scores
from isentrope.nouns.estimate import Caveats, Estimate, freedom_of_groups
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.units import Units
from isentrope.nouns.vectors import Vector, axpy, dot, multiply
from isentrope.policy.gradient import Weights, weighted_gradients
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score_along


@dataclass(frozen=True)
class GradientGroups:
    """A gradient by groups of prompts.

    Attributes:
        parts: G named vectors, float64 when read, that sum to the gradient.
        group: (n,) the group of each sample.
        unit: Of the change of what it is the gradient of, per η.
        prompts: Prompt draws in all groups.
        logprob_weights: a, (n, t), of the whole batch.
        entropy_weights: b, (n, t), or None.
        first: Of the first group's own samples the derivative along the given direction by backward
            and by forward mode, and the size of its terms; None without a direction.
        trust: Diagnostics of the weights at θ, policy over sampler; None for no such weights.
        ratio: The terms that all samples share, for errors of h; None for others.
    """

    parts: HeldVectors
    group: Tensor
    unit: str
    prompts: int
    logprob_weights: Tensor
    entropy_weights: Tensor | None
    first: tuple[float, float, float] | None = None
    trust: Trust | None = None
    ratio: RatioTerms | None = None

    @property
    def shares(self) -> Tensor:
        """(G,) share of the samples in each group."""
        return self.group.bincount(minlength=len(self.parts)).double() / len(self.group)

    @property
    def total(self) -> Vector:
        """The gradient."""
        return _total(self.parts)

    def preconditioned(self, preconditioner: Vector) -> Iterator[Vector]:
        """P times each part, one at a time: only what is asked for takes memory."""
        return (multiply(preconditioner, part) for part in self.parts)

    def along(self, direction: Vector) -> Tensor:
        """(G,) inner product of each part with a direction; they sum to that of the gradient."""
        return torch.tensor([dot(part, direction) for part in self.parts], dtype=torch.float64)

    def standard_error(self, by_group: Tensor) -> Tensor:
        """Jackknife error of a sum over groups.

        Args:
            by_group: (G, ...) what each part contributes.

        Returns:
            (...) standard errors; NaN with one group.
        """
        n = len(by_group)
        if n < 2:
            return torch.full_like(by_group[0], float("nan"))
        return (n / (n - 1) * self.deviations(by_group).square().sum(0)).sqrt()

    def deviations(self, by_group: Tensor) -> Tensor:
        """(G, ...) influences of the groups on a sum over them, from what each contributes."""
        shares = self.shares.view(-1, *[1] * (by_group.ndim - 1))
        return by_group - shares * by_group.sum(0)

    def estimate(self, by_group: Tensor, confidence: float) -> Estimate:
        """A sum over groups with its interval.

        Args:
            by_group: (G,) what each part contributes.
            confidence: Nominal coverage.

        Returns:
            The sum; without an interval where the weights at θ cannot be trusted.
        """
        return Estimate.from_standard_error(
            float(by_group.sum()),
            float(self.standard_error(by_group)),
            self.prompts,
            unit=self.unit,
            method="delete-a-group jackknife",
            confidence=confidence,
            caveats=Caveats() if self.trust is None else self.trust.caveats,
            degrees_of_freedom=freedom_of_groups(self.deviations(by_group)),
        )


def gradients_by_group(
    policy: Policy,
    E: Rollouts,
    sample: ScoredBatch,
    groups: int,
    where: Where = "device",
    *,
    direction: Vector | None = None,
    reward: bool = False,
) -> list[GradientGroups]:
    """g_H by groups of E's prompts, and g_J by the same groups: one forward pass over E for all.

    Each takes a backward pass over E, and errors of h another.

    Args:
        policy: The policy that sampled E.
        E: An unfiltered batch.
        sample: E scored at θ, with the functional of g_H.
        groups: G, 1 for no errors.
        where: Where the parts are held.
        direction: v, along which both modes differentiate the first group.
        reward: Whether to give g_J, of E's rewards, too.

    Returns:
        The gradient of F by groups, and of J where asked for.
    """
    group = assign_groups(E.prompt_index, groups)
    weights: list[Weights] = [cotangents(sample)]
    if reward:
        weights.append((_of_reward(sample, E)[0], None))
    ratio = None
    if sample.functional.functional == "per_token" and groups > 1:
        ratio = ratio_terms(sample, group)
    lengths = None if ratio is None else ratio.length_weights
    parts, of_length = _by_group(policy, E, weights, lengths, group, groups, where)
    first = None
    if direction is not None:
        first = _both_modes(policy, E, weights[0], group == 0, direction, parts[0][0])
    if ratio is not None:
        _add_ratio_terms(ratio, of_length, parts[0])
    unit = f"{sample.functional.unit} per η"
    common = unit, E.n_prompts, *weights[0], first, sample.trust, ratio
    found = [GradientGroups(parts[0], group, *common)]
    return found + [_reward_groups(part, group, sample, E) for part in parts[1:]]


def reward_groups(
    policy: Policy, R: Rollouts, groups: int, where: Where = "device"
) -> GradientGroups:
    """g_J, the gradient of the mean reward, by groups of prompts: one backward pass.

    Args:
        policy: The policy that sampled R.
        R: An unfiltered batch with rewards.
        groups: G, 1 for no errors.
        where: Where the parts are held.

    Returns:
        The gradient of J = Σ_i w_i r_i / Σ_i w_i by groups; its baseline is the batch mean.

    Raises:
        ValueError: If the batch has no rewards.
    """
    group = assign_groups(R.prompt_index, groups)
    sample = score_batch(policy, R)
    weights = [(_of_reward(sample, R)[0], None)]
    parts, _ = _by_group(policy, R, weights, None, group, groups, where)
    return _reward_groups(parts[0], group, sample, R)


def _of_reward(sample: ScoredBatch, R: Rollouts) -> tuple[Tensor, Trust]:
    """(n, t) weights of the log-probabilities whose gradient is g_J, and trust in them."""
    if R.rewards is None:
        raise ValueError("The reward batch has no rewards: add them with ise.with_rewards.")
    mean = RewardMean.of(sample, R.rewards)
    a, _ = cotangents_of_arrays(mean, sample.log_ratios, sample.entropies)
    return a, replace(sample, functional=mean).trust.withholding(mean.withheld)


def _reward_groups(
    parts: HeldVectors, group: Tensor, sample: ScoredBatch, R: Rollouts
) -> GradientGroups:
    a, trust = _of_reward(sample, R)
    return GradientGroups(parts, group, "reward per η", R.n_prompts, a, None, trust=trust)


def assign_groups(prompt_index: Tensor, groups: int) -> Tensor:
    """Assign prompt draws to groups of equal size, in order.

    Args:
        prompt_index: (n,) prompt draw of each sample.
        groups: G.

    Returns:
        (n,) int64 in 0..G−1; responses to one prompt draw stay together.

    Raises:
        ValueError: If there are fewer prompt draws than groups.
    """
    units = Units.of(prompt_index)
    if not 1 <= groups <= units.count:
        raise ValueError(
            f"{groups} groups cannot be made of {units.count} prompt draws: choose 2 to "
            f"{units.count}, or 1 for no errors."
        )
    return units.place * groups // units.count


def _by_group(
    policy: Policy,
    rollouts: Rollouts,
    weights: Sequence[Weights],
    of_total: Tensor | None,
    group: Tensor,
    groups: int,
    where: Where,
) -> tuple[list[HeldVectors], Vector]:
    """Gradients of several sums by group, and that of a further sum over all groups."""
    parts, total = [HeldVectors(policy.theta, groups, where) for _ in weights], Vector()
    for g in range(groups):
        here = (group == g).nonzero()[:, 0]  # (n_g,)
        t = int(rollouts.lengths[here].max())
        cut = [(a[here, :t], None if b is None else b[here, :t]) for a, b in weights]
        if of_total is not None:
            cut.append((of_total[here, :t], None))
        with derivative_of_scores(policy.model):
            gradients = weighted_gradients(policy, rollouts.select(here), cut)
        for part, gradient in zip(parts, gradients, strict=False):
            part.add(g, gradient)
        if of_total is not None:
            total = axpy(1.0, gradients[-1], total) if total else gradients[-1]
    return parts, total


def _both_modes(
    policy: Policy, E: Rollouts, weights: Weights, chosen: Tensor, v: Vector, part: Vector
) -> tuple[float, float, float]:
    """Derivatives of some samples along v by backward and forward mode, and their terms' size."""
    here = chosen.nonzero()[:, 0]
    slope = score_along(policy, E.select(here), v, 1)[1]
    t = slope.mask.shape[1]
    a, b = (torch.zeros(1, t) if x is None else x[here, :t] for x in weights)
    terms = (a * slope.logprobs + b * slope.entropies).sum(1)
    return dot(part, v), float(terms.sum()), float(terms.abs().sum())


def _add_ratio_terms(ratio: RatioTerms, of_length: Vector, parts: HeldVectors) -> None:
    # The sum over groups, ∂h itself, before any part is changed: the terms added sum to zero.
    total = _total(parts)
    for k, (a, b) in enumerate(zip(ratio.of_length, ratio.of_total, strict=True)):
        parts.add(k, of_length, -float(a))
        parts.add(k, total, -float(b))


def _total(parts: Sequence[Vector]) -> Vector:
    return reduce(lambda total, part: axpy(1.0, part, total), parts)
