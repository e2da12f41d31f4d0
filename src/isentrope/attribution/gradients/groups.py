"""A gradient in G parts, one per group of prompts, so that linear functions of it have an error.

    g = Σ_g r_g,     x = <g, y> = Σ_g x_g,     SE² = G/(G−1) Σ_g (x_g − n_g/n · x)²          (T11)

r_g holds the group's own samples with the weights of the whole batch, plus, for h = ℋ/N, how
omitting the group changes the ratio that all samples share (I_h, I_N: influences of the group):

    r_g = Σ_{i∈g} (a_i ∂s_i + b_i ∂H_i) − (I_h(g)/N) ∂N − (I_N(g)/N) ∂h

This is the delete-a-group jackknife to first order: the terms omitted are of order 1/n. The extra
terms sum to zero, so the parts sum to the gradient itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.storage_plan import Where
from isentrope.estimators.entropy import cotangents, cotangents_of_arrays
from isentrope.estimators.functional import (
    EstimatorOptions,
    Functionals,
    along,
    infinitesimal_jackknife,
)
from isentrope.estimators.importance import Trust
from isentrope.estimators.reward_change import RewardMean
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.models.embeddings import derivative_of_scores
from isentrope.nouns.estimate import Caveats, Estimate, freedom_of_groups
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.units import Units
from isentrope.nouns.vectors import Vector, axpy, dot, multiply
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy


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
        forward: The derivative along the given direction, by forward mode; or None.
        trust: Diagnostics of the weights at θ, policy over sampler; None for no such weights.
        ratio: The terms that all samples share, for errors of h; None for others.
    """

    parts: HeldVectors
    group: Tensor
    unit: str
    prompts: int
    logprob_weights: Tensor
    entropy_weights: Tensor | None
    forward: float | None = None
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


def entropy_groups(
    policy: Policy,
    E: Rollouts,
    groups: int,
    estimator: EstimatorOptions = EstimatorOptions(),
    *,
    direction: Vector | None = None,
    where: Where = "device",
) -> GradientGroups:
    """g_H by groups of E's prompts: one backward pass over E, two for errors of h.

    Args:
        policy: The policy that sampled E.
        E: An unfiltered batch.
        groups: G, 1 for no errors.
        estimator: Which entropy, and by which method.
        direction: v, along which forward mode takes the derivative of F too.
        where: Where the parts are held.

    Returns:
        The gradient of F by groups.
    """
    group = assign_groups(E.prompt_index, groups)
    sample = score_batch(
        policy,
        E,
        functional=estimator.functional,
        method=estimator.method,
        direction=direction,
        order=1,
    )
    a, b = cotangents(sample)
    parts = _by_group(policy, E, a, b, group, groups, where)
    ratio = None
    if estimator.functional == "per_token" and groups > 1:
        ratio = ratio_terms(sample, group)
        with derivative_of_scores(policy.model):
            of_length = weighted_gradient(policy, E, ratio.length_weights)
        # The sum over groups, ∂h itself, before any part is changed: the terms added sum to zero.
        total = _total(parts)
        for k, (of_n, of_h) in enumerate(zip(ratio.of_length, ratio.of_total, strict=True)):
            parts.add(k, of_length, -float(of_n))
            parts.add(k, total, -float(of_h))
    forward = None
    if direction is not None:
        omega = torch.ones(len(E), dtype=torch.float64)
        series = sample.log_ratio_series, sample.entropy_series
        forward = float(along(sample.functional, omega, *series)[1])
    unit = f"{sample.functional.unit} per η"
    return GradientGroups(parts, group, unit, E.n_prompts, a, b, forward, sample.trust, ratio)


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
    if R.rewards is None:
        raise ValueError("The reward batch has no rewards: add them with ise.with_rewards.")
    group = assign_groups(R.prompt_index, groups)
    sample = score_batch(policy, R, functional="per_sequence", method="sequence")
    mean = RewardMean.of(sample, R.rewards)
    a, _ = cotangents_of_arrays(mean, sample.log_ratios, sample.entropies)
    parts = _by_group(policy, R, a, None, group, groups, where)
    trust = sample.trust.withholding(mean.withheld)
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
    a: Tensor,
    b: Tensor | None,
    group: Tensor,
    groups: int,
    where: Where,
) -> HeldVectors:
    parts = HeldVectors(policy.theta, groups, where)
    for g in range(groups):
        here = (group == g).nonzero()[:, 0]  # (n_g,)
        t = int(rollouts.lengths[here].max())
        weights = None if b is None else b[here, :t]
        with derivative_of_scores(policy.model):
            parts.add(g, weighted_gradient(policy, rollouts.select(here), a[here, :t], weights))
    return parts


def _total(parts: Sequence[Vector]) -> Vector:
    return reduce(lambda total, part: axpy(1.0, part, total), parts)


@dataclass(frozen=True)
class RatioTerms:
    """How omitting groups changes the ratio h = ℋ/N that all samples share.

    Attributes:
        of_length: (G,) I_h/N, the coefficient of ∂N.
        of_total: (G,) I_N/N, the coefficient of ∂h.
        length_weights: (n, t) cotangents of s whose gradient is ∂N.
    """

    of_length: Tensor
    of_total: Tensor
    length_weights: Tensor


def ratio_terms(sample: ScoredBatch, group: Tensor) -> RatioTerms:
    """The shared terms of a per-token functional, by group.

    Args:
        sample: E at θ, with the functional h.
        group: (n,) the group of each sample.

    Returns:
        Coefficients that sum to zero over groups, and ∂N as weights.
    """
    f = sample.functional
    whole = "sequence" if f.method == "sequence" else "prefix"
    length = Functionals("per_sequence", whole, f.tokens)  # N is ℋ with every H_ik = 1

    def statistics(omega: Tensor) -> Tensor:
        h = f(omega, sample.log_ratios, sample.entropies)
        return torch.stack((h, length(omega, sample.log_ratios, f.tokens)))

    jackknife = infinitesimal_jackknife(statistics, group)
    ones = torch.ones(len(group), dtype=torch.float64)
    weights = torch.func.grad(lambda r: length(ones, r, f.tokens))(sample.log_ratios)
    of_h, of_n = jackknife.influences / jackknife.values[1]  # (G,) each: I_h/N and I_N/N
    return RatioTerms(of_h, of_n, weights)
