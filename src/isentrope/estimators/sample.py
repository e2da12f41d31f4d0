"""The input of every estimator: one E-batch, scored at θ, and the function F on it.

What a sweep over learning rates estimates are functions of the samples' weights (T2), (T3):

    ω ↦ (F, δH₁, pathwise, δH₂, then ΔH(η) and ΔH(η) − ηδH₁ − η²δH₂ for each η)

Arrays alone, from which the jackknife takes joint errors (η* is a ratio of two of them: where δH₂
is zero it has no derivative); and whether the weights at θ + ηv can be trusted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.functional import Functionals, along
from isentrope.estimators.importance import OTHERWISE, PER_TOKEN_PREFIX, Trust, diagnose
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sampler_match import SamplerMatch, match_sampler
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, root_mean_square
from isentrope.policy.chi_square import Divergence, RowSampler, divergence_at_theta
from isentrope.policy.language_model import Policy
from isentrope.policy.record_causes import RECORD_TOLERANCE
from isentrope.policy.scoring import FEATURES, score, score_along
from isentrope.policy.token_statistics import Scores


@dataclass(frozen=True)
class ScoredBatch:
    """An E-batch scored at θ, with derivatives along v where requested.

    Attributes:
        functional: F, holding mask and baseline.
        sampler_logprobs: (n, t) what the sampler used; the scores at θ where it kept none.
        series: Scores at θ, then their first and second derivatives along v, as far as computed.
        prompt_index: (n,) prompt draw of each sequence.
        match: How the sampler compares with the scorer; None where only arrays are known, and a
            difference beyond rounding then has no known cause.
        jumps: (n, t, 2) χ² and κ of the policy from its sampler at θ, where they differ and it is
            known how; None elsewhere.
    """

    functional: Functionals
    sampler_logprobs: Tensor
    series: tuple[Scores, ...]
    prompt_index: Tensor
    match: SamplerMatch | None = None
    jumps: Tensor | None = None

    @cached_property
    def trust(self) -> Trust:
        """Diagnostics of the weights at θ, policy over sampler, for numbers of this F."""
        match = self.match
        moments = self.jumps
        if match is None:
            gap = root_mean_square(self.log_ratios[self.series[0].mask])
            match = SamplerMatch(gap, None, gap <= RECORD_TOLERANCE)
        if moments is None and match.agrees:
            moments = torch.zeros(*self.entropies.shape, 2, dtype=torch.float64)
        trust = self._judge(self.log_ratios, moments, match.warnings)
        if moments is None:
            trust = trust.without_interval()
        return trust.without_interval(self.functional.withheld)

    def trust_of_change(
        self, moved_scores: Scores, divergence: Divergence | None
    ) -> tuple[Trust, Trust]:
        """Judge the weights at θ + ηv, or those at θ where they are worse.

        Args:
            moved_scores: Scores at θ + ηv.
            divergence: How far each distribution has moved; None where it is not known.

        Returns:
            Diagnostics for ΔH(η), and for ΔH − ηδH₁ − η²δH₂.
        """
        log_ratios = moved_scores.logprobs - self.sampler_logprobs
        trust = self._judge(log_ratios, divergence and divergence.jumps)
        if divergence is None or divergence.remainder is None:
            residual_trust = trust.without_interval()
        else:
            residual_trust = trust.for_residual(log_ratios, divergence.remainder)
        trust = trust.or_worse(self.trust)
        return trust, residual_trust.or_worse(trust)

    def _judge(
        self, log_ratios: Tensor, moments: Tensor | None, notes: tuple[str, ...] = ()
    ) -> Trust:
        """Diagnostics of some weights, by the rule of this F."""
        f = self.functional
        per_token_prefix = (f.functional, f.method) == ("per_token", "prefix")
        rule = PER_TOKEN_PREFIX if per_token_prefix else OTHERWISE
        return diagnose(log_ratios, f.tokens, moments, rule, notes=notes)

    @property
    def sampler(self) -> RowSampler | None:
        """What the responses were drawn from, where known."""
        return None if self.match is None else self.match.sampler

    @property
    def log_ratios(self) -> Tensor:
        """(n, t) r at θ: zero unless the sampler's log-probabilities differ from the scorer's."""
        return self.series[0].logprobs - self.sampler_logprobs

    @property
    def entropies(self) -> Tensor:
        """(n, t) H at θ, nats."""
        return self.series[0].entropies

    @property
    def log_ratio_series(self) -> tuple[Tensor, ...]:
        """The log-ratios r and their known derivatives along v."""
        return (self.log_ratios, *(s.logprobs for s in self.series[1:]))

    @property
    def entropy_series(self) -> tuple[Tensor, ...]:
        """H and its known derivatives along v."""
        return tuple(s.entropies for s in self.series)


def score_batch(
    policy: Policy,
    rollouts: Rollouts,
    estimator: EstimatorOptions = EstimatorOptions(),
    *,
    direction: Vector | None = None,
    order: int = 0,
) -> ScoredBatch:
    """Score an E-batch for an estimator.

    Args:
        policy: The policy.
        rollouts: An unfiltered E-batch.
        estimator: Which entropy, by which method.
        direction: v, needed for order ≥ 1.
        order: Highest derivative along v to compute: 0, 1 or 2.

    Returns:
        The sample.

    Raises:
        UnsupportedModelError: If the model's own logits are not those that E is scored by.
    """
    series = (
        score_along(policy, rollouts, direction, order, variances=True)
        if order and direction is not None
        else (score(policy, rollouts, variances=True),)
    )
    policy.require_own_logits(rollouts, series[0])
    tokens = series[0].mask.double()
    baseline = None
    if estimator.method == "doubly-robust":
        features = score(policy, rollouts, features=FEATURES).features
        baseline = cross_fitted_baseline(
            series[0].entropies,
            tokens,
            rollouts.prompt_index,
            estimator.functional,
            features=features,
        )
    match = match_sampler(policy, rollouts, series[0])
    sampler_logprobs = series[0].logprobs
    if rollouts.sampler_logprobs is not None:
        sampler_logprobs = rollouts.padded("sampler_logprobs")
    jumps = None
    if match.sampler is not None and not match.agrees:
        jumps = divergence_at_theta(policy, rollouts, match.sampler)
    functional = Functionals(
        estimator.functional,
        estimator.method,
        tokens,
        baseline,
        sampler_logprobs if estimator.method == "surprisal" else None,
    )
    return ScoredBatch(functional, sampler_logprobs, series, rollouts.prompt_index, match, jumps)


FIRST_CHANGE = 4
"""Row of the first ΔH; a learning rate has two rows."""


def statistics_of_sample(
    sample: ScoredBatch, etas: Sequence[float], moved_scores: Sequence[Scores]
) -> Callable[[Tensor], Tensor]:
    """What a sweep estimates, as a function of the weights of the samples.

    Args:
        sample: Scores at θ, with derivatives to the order requested.
        etas: Learning rates.
        moved_scores: Scores at θ + ηv for each.

    Returns:
        Maps ω to (F, δH₁, pathwise, δH₂, then ΔH and residual for each η).
    """
    f = sample.functional
    r = sample.log_ratio_series
    h = sample.entropy_series

    def statistics(omega: Tensor) -> Tensor:
        if len(h) > 1:
            value, first, second = along(f, omega, r, h)
            half = second / 2
            pathwise = along(f, omega, r[:1], h[:2], 1)[1]
        else:
            value = f(omega, sample.log_ratios, sample.entropies)
            first = pathwise = half = torch.zeros_like(value)
        numbers = [value, first, pathwise, half]
        for eta, scores in zip(etas, moved_scores, strict=True):
            log_ratios = scores.logprobs - sample.sampler_logprobs
            change = f(omega, log_ratios, scores.entropies) - value
            numbers += [change, change - eta * (first + eta * half)]
        return torch.stack(numbers)

    return statistics


def cotangents(sample: ScoredBatch) -> tuple[Tensor, Tensor]:
    """∂F/∂s and ∂F/∂H at θ, at equal weights of the samples.

    Args:
        sample: Scores at θ and the functional.

    Returns:
        Two (n, t) arrays.
    """
    omega = torch.ones(len(sample.entropies), dtype=torch.float64)
    by_arrays = torch.func.grad(sample.functional, argnums=(1, 2))
    return by_arrays(omega, sample.log_ratios, sample.entropies)
