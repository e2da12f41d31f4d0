"""Every response of a small policy, and from them every quantity exactly (T12).

    ℋ(θ) = 1/P Σ_p Σ_t π_θ(t|p) Σ_k H_k,     N(θ) = 1/P Σ_p Σ_t π_θ(t|p) T,     h = ℋ/N

in float64, with π_θ(t|p) = e^S: no sampling, no weights, no estimator. ΔH(η) is a difference of
this function itself, and every derivative is a combination of differences of it (`plain`): δH₁
is accurate to about 1e-12 of its size, δH₂ to 1e-10, ∂S to 1e-10.

The oracle shares with the estimators the model, the enumeration's container (`Rollouts`) and
`Precision.active`, which keeps the model's arithmetic in float64. It shares neither autograd in any
mode nor the scorer: prefixes go unpadded through the model's own forward and torch's `log_softmax`
(`plain`), not through micro-batches, the decoder alone and the chunked softmax.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isentrope.nouns.choices import Per, require_per
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.oracle.plain import Tree, derivatives, gradients, unflattened
from isentrope.policy.language_model import Policy
from isentrope.system.one_line import one_line, plural

MOST_RESPONSES = 200_000
"""Largest number of responses that is enumerated."""


def enumerate_policy(
    policy: Policy, prompts: Sequence[Tensor] | Sequence[list[int]], max_new_tokens: int
) -> ExactPolicy:
    """List every response to every prompt.

    Args:
        policy: A policy with a small vocabulary, in float64.
        prompts: Token ids of each prompt; all equally likely.
        max_new_tokens: L_max, where a response is cut.

    Returns:
        The policy with all its responses.

    Raises:
        ValueError: If the policy is not in float64 or has too many responses.
    """
    if policy.precision.runtime_dtype != "float64":
        raise ValueError("The oracle is exact only in float64; convert the policy first.")
    responses = _list_responses(
        policy.vocabulary,
        policy.eos_token_ids,
        max_new_tokens,
        MOST_RESPONSES // len(prompts),
    )
    rollouts = Rollouts(
        prompt_ids=[torch.as_tensor(p) for p in prompts for _ in responses],
        response_ids=[torch.tensor(r) for _ in prompts for r in responses],
        prompt_index=torch.arange(len(prompts)).repeat_interleave(len(responses)),
    )
    return ExactPolicy(policy, rollouts, len(prompts))


def _list_responses(size: int, ends: Collection[int], longest: int, limit: int) -> list[list[int]]:
    """Every response to a prompt, in dictionary order."""
    finished: list[list[int]] = []
    unfinished: list[list[int]] = [[]]
    for _ in range(longest):
        grown = [[*r, a] for r in unfinished for a in range(size)]
        finished += [r for r in grown if r[-1] in ends]
        unfinished = [r for r in grown if r[-1] not in ends]
        if len(finished) + len(unfinished) > limit:
            raise ValueError(
                f"More than {limit} responses per prompt: use a smaller vocabulary or "
                "max_new_tokens."
            )
    return sorted(finished + unfinished)


@dataclass(frozen=True)
class ExactPolicy:
    """A policy with all its responses.

    Attributes:
        policy: The policy.
        rollouts: Every response to every prompt; `prompt_index` is the prompt.
        n_prompts: P.
    """

    policy: Policy
    rollouts: Rollouts
    n_prompts: int

    def __repr__(self) -> str:
        size = f"{plural(len(self.rollouts), 'response')} to {plural(self.n_prompts, 'prompt')}"
        return one_line(self, f"all {size}", repr(self.policy)[1:-1])

    def probabilities(self, params: Vector | None = None) -> Tensor:
        """Probability of every response given its prompt.

        Args:
            params: Trainable parameters, θ by default.

        Returns:
            (n,) float64, summing to 1 over each prompt.
        """
        return self._score(params or self.policy.theta)[0].exp()

    def entropy(
        self,
        per: Per = "token",
        *,
        direction: Vector | None = None,
        eta: float = 0.0,
    ) -> float:
        """ℋ or h at θ, or at θ + ηv.

        Args:
            per: "token" or "sequence".
            direction: v, or None for θ itself.
            eta: η.

        Returns:
            Nats per token, or per sequence.
        """
        params = self._move(direction, eta) if direction else self.policy.theta
        return float(self._evaluate(params, per))

    def entropy_change(self, direction: Vector, eta: float, per: Per = "token") -> float:
        """ΔH(η) exactly.

        Args:
            direction: v.
            eta: η.
            per: "token" or "sequence".

        Returns:
            Nats per token, or per sequence.
        """
        after_step = self.entropy(per, direction=direction, eta=eta)
        return after_step - self.entropy(per)

    def derivatives(self, direction: Vector, per: Per = "token") -> tuple[float, float]:
        """(δH₁, δH₂): first derivative and half the second along v, per unit η and η².

        Args:
            direction: v.
            per: "token" or "sequence".

        Returns:
            The two numbers.
        """

        def value(eta: float) -> float:
            return self.entropy(per, direction=direction, eta=eta)

        first, second = derivatives(value, self._find_step(direction))
        return first, second / 2

    def entropy_gradient(self, per: Per = "token") -> Vector:
        """∂_θ ℋ or ∂_θ h, by differences: four evaluations per parameter.

        Args:
            per: "token" or "sequence".

        Returns:
            The gradient by parameter name.
        """
        theta = self.policy.theta
        gradient = gradients(lambda params: self._evaluate(params, per)[None], theta)[0]
        return unflattened(gradient, theta)

    def draw(self, n: int, seed: int, probabilities: Tensor | None = None) -> Tensor:
        """Indices into `rollouts` of n independent draws: a uniform prompt, then a response.

        One uniform is read through the CDF over the responses in dictionary order, so draws with
        one seed and other parameters are coupled: same prompts, and mostly the same responses.

        Args:
            n: Number of draws.
            seed: Seed of the draws.
            probabilities: What `probabilities` gave, at θ by default.

        Returns:
            (n,) int64.
        """
        generator = torch.Generator().manual_seed(seed)
        heights = torch.rand(n, generator=generator, dtype=torch.float64)
        weights = self.probabilities() if probabilities is None else probabilities
        cdf = weights.cumsum(0) / self.n_prompts
        return torch.searchsorted(cdf, heights, right=True).clamp_(max=len(cdf) - 1)

    def sample(self, n: int, seed: int) -> Rollouts:
        """An E-batch of n independent sequences, each its own prompt draw.

        Args:
            n: Number of sequences.
            seed: Seed of the draws.

        Returns:
            The rollouts.
        """
        return self.rollouts.select(self.draw(n, seed)).with_columns(prompt_index=torch.arange(n))

    @cached_property
    def _score(self) -> Tree:
        """Maps parameters to S and Σ_k H_k of every response."""
        return Tree(self.policy, self.rollouts)

    def _move(self, direction: Vector, eta: float) -> Vector:
        return {n: p + eta * direction[n].to(p) for n, p in self.policy.theta.items()}

    def _evaluate(self, params: Vector, per: Per) -> Tensor:
        """ℋ or h, a scalar tensor."""
        log_p, entropies = self._score(params)
        probability = log_p.exp() / self.n_prompts
        entropy = probability @ entropies
        length = probability @ self._score.lengths
        return entropy / length if require_per(per) == "token" else entropy

    def _find_step(self, direction: Vector) -> float:
        """η at which log-probabilities move by about 1.5 nats, the farthest of them."""
        theta = self.policy.theta
        short = 1e-4 * norm(theta) / norm(direction)
        ahead, _ = self._score(self._move(direction, short))
        behind, _ = self._score(self._move(direction, -short))
        return 3 * short / float((ahead - behind).abs().max())
