"""Every response of a small policy, and from them every quantity exactly (T12).

    ℋ(θ) = 1/P Σ_p Σ_t π_θ(t|p) Σ_k H_k,     N(θ) = 1/P Σ_p Σ_t π_θ(t|p) T,     h = ℋ/N

in float64, with π_θ(t|p) = e^S differentiated like everything else: no sampling, no weights, no
estimator. ΔH(η), δH₁ and δH₂ are differences and derivatives of this function itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.functional import Functional
from isentrope.forward_mode import derivatives_at_zero
from isentrope.oracle.kernel import exact_kernel
from isentrope.policy.batching import MicroBatch, micro_batches
from isentrope.policy.language_model import Policy
from isentrope.policy.padding import derivative_of_scores
from isentrope.policy.scoring import score
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector

LARGEST = 200_000
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
    responses = _responses(
        policy.model.config.vocab_size,
        policy.eos_token_ids,
        max_new_tokens,
        LARGEST // len(prompts),
    )
    rollouts = Rollouts(
        prompt_ids=[torch.as_tensor(p) for p in prompts for _ in responses],
        response_ids=[torch.tensor(r) for _ in prompts for r in responses],
        prompt_index=torch.arange(len(prompts)).repeat_interleave(len(responses)),
    )
    return ExactPolicy(policy, rollouts, len(prompts))


def _responses(size: int, ends: Collection[int], longest: int, limit: int) -> list[list[int]]:
    done: list[list[int]] = []
    open_: list[list[int]] = [[]]
    for _ in range(longest):
        grown = [[*r, a] for r in open_ for a in range(size)]
        done += [r for r in grown if r[-1] in ends]
        open_ = [r for r in grown if r[-1] not in ends]
        if len(done) + len(open_) > limit:
            raise ValueError(
                f"More than {limit} responses a prompt: use a smaller vocabulary or max_new_tokens."
            )
    return sorted(done + open_)


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

    def probabilities(self, params: Vector | None = None) -> Tensor:
        """Probability of every response given its prompt.

        Args:
            params: Trainable parameters, θ by default.

        Returns:
            (n,) float64, summing to 1 over each prompt.
        """
        return score(self.policy, self.rollouts, params).logprobs.sum(1).exp()

    def entropy(
        self,
        functional: Functional = "per_token",
        *,
        direction: Vector | None = None,
        eta: float = 0.0,
    ) -> float:
        """ℋ or h at θ, or at θ + ηv.

        Args:
            functional: "per_token" or "per_sequence".
            direction: v, or None for θ itself.
            eta: η.

        Returns:
            Nats per token, or per sequence.
        """
        params = self.policy.parameters_along(direction, eta) if direction else None
        with torch.no_grad():
            entropy, length = self._totals(params or self.policy.theta)
        return float(entropy / length if functional == "per_token" else entropy)

    def entropy_change(
        self, direction: Vector, eta: float, functional: Functional = "per_token"
    ) -> float:
        """ΔH(η) exactly.

        Args:
            direction: v.
            eta: η.
            functional: "per_token" or "per_sequence".

        Returns:
            Nats per token, or per sequence.
        """
        moved = self.entropy(functional, direction=direction, eta=eta)
        return moved - self.entropy(functional)

    def derivatives(
        self, direction: Vector, functional: Functional = "per_token"
    ) -> tuple[float, float]:
        """(δH₁, δH₂): first derivative and half the second along v, per unit η and η².

        Args:
            direction: v.
            functional: "per_token" or "per_sequence".

        Returns:
            The two numbers.
        """

        def value(e: Tensor) -> Tensor:
            entropy, length = self._totals(self.policy.parameters_along(direction, e))
            return entropy / length if functional == "per_token" else entropy

        _, first, second = derivatives_at_zero(value, 2)
        return float(first), float(second) / 2

    def entropy_gradient(self, functional: Functional = "per_token") -> Vector:
        """∂_θ ℋ or ∂_θ h, by reverse mode through the enumeration.

        Args:
            functional: "per_token" or "per_sequence".

        Returns:
            The gradient by parameter name.
        """
        theta = {n: p.requires_grad_() for n, p in self.policy.theta.items()}
        with torch.enable_grad(), derivative_of_scores(self.policy.model):
            entropy, length = self._totals(theta)
            value = entropy / length if functional == "per_token" else entropy
            grads = torch.autograd.grad(value, list(theta.values()))
        return dict(zip(theta, grads, strict=True))

    def kernel(
        self,
        preconditioner: Vector | None = None,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        """The Fisher kernel K₁(t, t') = Σ_α P_α ∂_αS(t) ∂_αS(t') of the responses (T7).

        Args:
            preconditioner: P, diagonal, by parameter name; None for 1.
            rows: Indices into `rollouts`, all responses by default.
            columns: The same for the columns; the rows by default.

        Returns:
            (rows, columns) float64; the n × d score vectors are held while it is computed.
        """
        left = self.rollouts if rows is None else self.rollouts.select(rows)
        right = left if columns is None else self.rollouts.select(columns)
        return exact_kernel(self.policy, left, right, preconditioner)

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
        given = self.probabilities() if probabilities is None else probabilities
        cdf = given.cumsum(0) / self.n_prompts
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

    def _totals(self, params: Vector) -> tuple[Tensor, Tensor]:
        entropy = length = torch.zeros((), dtype=torch.float64)
        for batch in micro_batches(self.rollouts, self.policy.max_tokens):
            s, h = self.policy.packed_scores(batch, params)
            probability = _sum_by_sequence(s, batch).exp() / self.n_prompts
            tokens = torch.bincount(batch.rows, minlength=len(batch.sequences)).double()
            entropy = entropy + probability @ _sum_by_sequence(h, batch)
            length = length + probability @ tokens
        return entropy, length


def _sum_by_sequence(packed: Tensor, batch: MicroBatch) -> Tensor:
    zeros = torch.zeros(len(batch.sequences), dtype=packed.dtype)
    return zeros.index_add(0, batch.rows, packed)
