"""The input and the output of a token control.

    loss = −J,     ∂J = Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik)

The plain objective has c_ik = w_i A_i and d = 0; a control replaces c, and may add d. Its input is
the whole batch of the step, so the result does not depend on micro-batches or processes, and
`isentrope try` and training call the same function.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.sampling.streams import generator_of
from isentrope.update.objective import sequence_weights


@dataclass(frozen=True)
class Tokens:
    """The update batch of a step; n sequences of at most t tokens, float64 on the CPU.

    Attributes:
        logprobs: (n, t) s of the sampler, nats; 0 where there is no token.
        entropies: (n, t) H of the sampler's distribution, nats; 0 where there is no token.
        mask: (n, t) bool, where there is a token.
        sequence_weights: (n,) w_i of the objective.
        advantages: (n,) A_i.
        rewards: (n,) R_i.
        group: (n,) index of the prompt draw that a sequence belongs to.
        step: Number of the step, from 1.
        seed: Seed of the random numbers of a control.
        kept_mass: (n, t) probability that a min-p filter keeps at each position, 0 where it does
            not keep the token itself; None where it was not computed.
        influence: (n, t) δH_ik of the plain objective's tokens, or None.
    """

    logprobs: Tensor
    entropies: Tensor
    mask: Tensor
    sequence_weights: Tensor
    advantages: Tensor
    rewards: Tensor
    group: Tensor
    step: int
    seed: int = 0
    kept_mass: Tensor | None = None
    influence: Tensor | None = None

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        objective: str,
        max_response_length: int | None = None,
        *,
        step: int,
        seed: int = 0,
        clip_high: float | None = None,
        micro_batch: int | None = None,
    ) -> Tokens:
        """Make the input from an update batch.

        Args:
            rollouts: The whole batch, with rewards, advantages, and the sampler's log-probabilities
                and entropies.
            objective: One of `update.objective.OBJECTIVES`.
            max_response_length: L of "dr_grpo".
            step: Number of the step, from 1.
            seed: Seed of the random numbers of a control.
            clip_high: As for `update.objective.sequence_weights`.
            micro_batch: As for `update.objective.sequence_weights`.

        Returns:
            The batch.

        Raises:
            ValueError: If a column is missing.
        """
        needed = ("sampler_logprobs", "sampler_entropies", "advantages", "rewards")
        if missing := [name for name in needed if getattr(rollouts, name) is None]:
            raise ValueError(f"A control needs the {missing[0]} of the update batch.")
        assert rollouts.advantages is not None
        assert rollouts.rewards is not None
        return cls(
            logprobs=rollouts.padded("sampler_logprobs"),
            entropies=rollouts.padded("sampler_entropies"),
            mask=rollouts.mask,
            sequence_weights=sequence_weights(
                *(rollouts, objective, max_response_length),
                clip_high=clip_high,
                micro_batch=micro_batch,
            ),
            advantages=rollouts.advantages,
            rewards=rollouts.rewards,
            group=rollouts.prompt_index.unique(return_inverse=True)[1],
            step=step,
            seed=seed,
        )

    @property
    def weights(self) -> Tensor:
        """(n, t) c_ik = w_i A_i of the plain objective."""
        return (self.sequence_weights * self.advantages)[:, None] * self.mask

    @property
    def token_advantages(self) -> Tensor:
        """(n, t) A_i at every token of its sequence, 0 where there is none."""
        return self.advantages[:, None] * self.mask

    def generator(self) -> torch.Generator:
        """Random numbers of this step, the same on every process."""
        return generator_of(self.seed, self.step, 0, 11)


@dataclass(frozen=True)
class Rewritten:
    """A batch rewritten by a control.

    Attributes:
        weights: (n, t) c'_ik.
        entropy_weights: (n, t) d_ik, or None for 0.
        numbers: Numbers of the control for the log, by name.
    """

    weights: Tensor
    entropy_weights: Tensor | None = None
    numbers: dict[str, float] = field(default_factory=dict)


def touched(tokens: Tokens, rewritten: Rewritten) -> dict[str, float]:
    """Statistics of the tokens whose weights a control changed.

    Args:
        tokens: The batch.
        rewritten: The batch rewritten by the control.

    Returns:
        `touched`, the share of tokens whose weight changed; `changed`, Σ|c' − c| / Σ|c|; and among
        these tokens `touched_negative`, the share with A < 0, `touched_unlikely`, the share with s
        below the mean, and `touched_entropy`, their mean H (nats). NaN if no weight changed.
    """
    before = tokens.weights
    moved = (rewritten.weights - before).abs()
    change = (moved > 0) & tokens.mask
    if rewritten.entropy_weights is not None:
        change |= (rewritten.entropy_weights != 0) & tokens.mask
    mean = tokens.logprobs[tokens.mask].mean()

    def among(values: Tensor) -> float:
        return float(values[change].double().mean())

    return {
        "touched": float(change.sum() / tokens.mask.sum()),
        "changed": float(moved.sum() / before.abs().sum()),
        "touched_negative": among(tokens.token_advantages < 0),
        "touched_unlikely": among(tokens.logprobs < mean),
        "touched_entropy": among(tokens.entropies),
        **rewritten.numbers,
    }
