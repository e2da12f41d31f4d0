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

from isentrope.attribution.gradients.closure import require_agreement
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.storage_plan import StoragePlace
from isentrope.estimators.functional import Functionals
from isentrope.estimators.jackknife import Units, infinitesimal_jackknife
from isentrope.estimators.reward_change import RewardMean
from isentrope.estimators.sample import ScoredBatch, cotangents
from isentrope.models.architecture import derivative_of_scores
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import freedom_of_groups
from isentrope.nouns.rollouts import Rollouts
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
        sample: The samples at θ, with the functional that it is the gradient of.
    """

    parts: HeldVectors
    group: Tensor
    sample: ScoredBatch

    @property
    def unit(self) -> str:
        """Of the change of the functional, per η."""
        return f"{self.sample.functional.unit} per η"

    @property
    def prompts(self) -> int:
        """Prompt draws in all groups."""
        return Units.of(self.sample.prompt_index).count

    @property
    def shares(self) -> Tensor:
        """(G,) share of the samples in each group."""
        return self.group.bincount(minlength=len(self.parts)).double() / len(self.group)

    @property
    def total(self) -> Vector:
        """The gradient."""
        return reduce(lambda total, part: axpy(1.0, part, total), self.parts)

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
            degrees_of_freedom=freedom_of_groups(self.deviations(by_group)),
            **self.sample.trust.caveats,
        )


def gradients_by_group(
    policy: Policy,
    batch: Rollouts,
    samples: Sequence[ScoredBatch],
    groups: int,
    where: StoragePlace = "device",
    *,
    direction: Vector | None = None,
) -> list[GradientGroups]:
    """The gradients of several functionals by the same groups: one forward pass over a batch.

    Each takes a backward pass over the batch, and errors of h another.

    Args:
        policy: The policy that sampled the batch.
        batch: An unfiltered batch.
        samples: The batch scored at θ, with the functional of g_H, then of g_J (`of_reward`).
        groups: G, 1 for no errors.
        where: Where the parts are held.
        direction: v, along which both modes must give the same derivative of the first functional
            on the first group.

    Returns:
        The gradient of each by groups.
    """
    group = assign_groups(batch.prompt_index, groups)
    sums: list[Weights] = []
    for sample in samples:
        a, b = cotangents(sample)
        sums.append((a, None if isinstance(sample.functional, RewardMean) else b))
    ratio = ratio_terms(samples[0], group)
    of_length = Vector()
    if ratio is not None:
        sums.append((ratio[1], None))
    vectors = [HeldVectors(policy.theta, groups, where) for _ in samples]
    for g in range(groups):
        sequences = (group == g).nonzero()[:, 0]  # (n_g,)
        subset = batch.select(sequences)
        t = int(batch.lengths[sequences].max())
        cut = [(a[sequences, :t], None if b is None else b[sequences, :t]) for a, b in sums]
        with derivative_of_scores(policy.model):
            gradients = weighted_gradients(policy, subset, cut)
        for parts, gradient in zip(vectors, gradients, strict=False):
            parts.add(g, gradient)
        if ratio is not None:
            of_length = axpy(1.0, gradients[-1], of_length) if g else gradients[-1]
        if direction is not None and g == 0:
            _require_both_modes(policy, subset, cut[0], direction, vectors[0][0])
    gradients_by_group = [
        GradientGroups(x, group, sample) for x, sample in zip(vectors, samples, strict=True)
    ]
    if ratio is not None:
        # ∂h itself, before any part is changed: what is added sums to zero
        total = gradients_by_group[0].total
        for g, (of_h, of_n) in enumerate(ratio[0].T.tolist()):
            vectors[0].add(g, of_length, -of_h)
            vectors[0].add(g, total, -of_n)
    return gradients_by_group


def of_reward(sample: ScoredBatch, rewards: Tensor | None) -> ScoredBatch:
    """A scored batch whose functional is the mean reward J = Σ_i w_i r_i / Σ_i w_i.

    Args:
        sample: Responses scored at θ.
        rewards: (n,) of those responses.

    Returns:
        The same scores; the baseline of its gradient g_J is the batch mean.

    Raises:
        ValueError: If there are no rewards.
    """
    if rewards is None:
        raise ValueError("The reward batch has no rewards: add them with ise.with_rewards.")
    return replace(sample, functional=RewardMean.of(sample, rewards))


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


def _require_both_modes(
    policy: Policy, subset: Rollouts, weights: Weights, v: Vector, part: Vector
) -> None:
    """Compare the derivatives of some samples along v by backward and forward mode."""
    slope = score_along(policy, subset, v, 1)[1]
    a, b = weights
    terms = (a * slope.logprobs + (0.0 if b is None else b * slope.entropies)).sum(1)
    modes = "δH₁ by reverse mode (<g_H, v>) and by forward mode, on the first group of E,"
    require_agreement(policy, modes, dot(part, v), float(terms.sum()), float(terms.abs().sum()))


def ratio_terms(sample: ScoredBatch, group: Tensor) -> tuple[Tensor, Tensor] | None:
    """How omitting groups changes the ratio h = ℋ/N that all samples share.

    Args:
        sample: E at θ, with the functional.
        group: (n,) the group of each sample.

    Returns:
        (2, G) I_h/N and I_N/N, the coefficients of ∂N and of ∂h, which sum to zero over groups; and
        (n, t) weights of s whose gradient is ∂N. None for ℋ, or one group.
    """
    f = sample.functional
    if f.functional == "per_sequence" or not bool((group != group[0]).any()):
        return None
    method = "sequence" if f.method == "sequence" else "prefix"
    length = Functionals("per_sequence", method, f.tokens)  # N is ℋ with every H_ik = 1

    def statistics(omega: Tensor) -> Tensor:
        h = f(omega, sample.log_ratios, sample.entropies)
        return torch.stack((h, length(omega, sample.log_ratios, f.tokens)))

    jackknife = infinitesimal_jackknife(statistics, group)
    ones = torch.ones(len(group), dtype=torch.float64)
    weights = torch.func.grad(lambda r: length(ones, r, f.tokens))(sample.log_ratios)
    return jackknife.influences / jackknife.values[1], weights
