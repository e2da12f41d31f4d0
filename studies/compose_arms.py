"""The arms of the study on `compose`: what each changes of vanilla Dr. GRPO.

    loss = −1/(n L) Σ_ik A_i s_ik + what the arm adds,     A_i = R_i − mean of its group

n responses of at most L = 8 tokens, s the log-probability, H the entropy of a token's distribution.
One optimizer step per batch, so the ratio of policy to sampler is 1.

    vanilla             nothing
    half_rate           half the learning rate and twice the steps
    no_momentum         β₁ = 0
    bonus_x             TRL's `entropy_coef` x: x times the mean of H over the tokens of the batch
    adaptive            TRL's `use_adaptive_entropy` with its defaults; the target is the entropy
                        per token of the first batch
    kl_x                TRL's `beta` x to the start: x Σ_ik (e^d − d − 1)/(n L), d = s_start − s
    repo_r              `isentrope.control`'s REPO-R with the published search of its strength: ζ
                        from .001, doubled while the entropy per token is below that of the first
                        batch and halved while it is above, between 1e-4 and .05
    strategy_bonus_x    bonus_x at the one token where '>' or '.' is decided, with the same weight
                        there and none elsewhere; it knows where randomness is useful, so it is no
                        method but an upper bound
    elsewhere_bonus_x   its complement: bonus_x at all other tokens
    budget_hold         `isentrope.EntropyBudget` with its defaults: it holds the nats per response
                        of the first batch
    budget_linear       the same with a linear target, to half of that over 200 steps
    budget_strategy     the same as budget_hold at the strategy position alone; an upper bound
    demonstrations      from step 60 on, three demonstrations of chains per step; an upper bound

An arm of its own is a subclass of `Arm`; add a function that makes it to `ARMS`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from isentrope.control.base import Tokens
from isentrope.control.repo_r import RepoR
from studies.compose_arm import Arm, Batch
from studies.compose_budget import STRATEGY_POSITION, Budget
from studies.compose_policy import RESPONSE, Policy, score
from studies.compose_task import chain, likelihood, table


class HalfRate(Arm):
    """Half the rate, twice the steps."""

    rate, steps = 0.5, 2


class NoMomentum(Arm):
    """β₁ = 0."""

    momentum = 0.0


class Bonus(Arm):
    """A constant entropy bonus.

    Attributes:
        coefficient: Per nat of mean token entropy.
    """

    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = coefficient

    def where(self, batch: Batch) -> Tensor:
        """(n, 8) 1 at the tokens on which it acts."""
        return batch.mask

    def loss_terms(self, batch: Batch) -> Tensor:
        """Minus the bonus; the mean is over all tokens, wherever it acts."""
        return -self.coefficient * (batch.entropies * self.where(batch)).sum() / batch.mask.sum()


class StrategyBonus(Bonus):
    """The same bonus at the strategy position alone."""

    def where(self, batch: Batch) -> Tensor:
        """The token after three digits."""
        return batch.strategy_mask


class ElsewhereBonus(Bonus):
    """The same bonus at all other positions."""

    def where(self, batch: Batch) -> Tensor:
        """All tokens but that after three digits."""
        return batch.mask - batch.strategy_mask


class Adaptive(Arm):
    """TRL's adaptive coefficient.

    The coefficient rises by `DELTA` after a step whose entropy is at or below the target and falls
    after one above, in [0, 1]. It acts only where the entropy of the step before was at or below
    the target.
    """

    DELTA, MOST = 0.005, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.coefficient = 0.0
        self._target: float | None = None
        self._last = 0.0

    def loss_terms(self, batch: Batch) -> Tensor:
        """Minus the bonus."""
        if self._target is None:
            self._target = batch.entropy_per_token
        applied = self.coefficient if self._last <= self._target else 0.0
        self.numbers = {"coefficient": applied}
        return -applied * batch.entropies.sum() / batch.mask.sum()

    def after_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Set the coefficient of the next step."""
        assert self._target is not None
        self._last = batch.entropy_per_token
        change = self.DELTA if self._last <= self._target else -self.DELTA
        self.coefficient = min(max(self.coefficient + change, 0.0), self.MOST)


class KL(Arm):
    """A penalty of the divergence from the start.

    Attributes:
        coefficient: Per nat.
    """

    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = coefficient

    def start(self, policy: Policy, seed: int) -> None:
        """Keep the start."""
        self._start = copy.deepcopy(policy).requires_grad_(False)

    def loss_terms(self, batch: Batch) -> Tensor:
        """The penalty, in the weights of the objective."""
        arguments = (batch.prompts.tokens, batch.owner, batch.responses, batch.lengths)
        with torch.no_grad():
            logprobs = score(self._start, *arguments).log_softmax(-1)
        before = logprobs.gather(2, batch.responses[..., None])[..., 0] * batch.mask
        d = before - batch.logprobs
        return self.coefficient * (d.exp() - d - 1).sum() / batch.mask.numel()


def tokens_of(batch: Batch) -> Tokens:
    """The input of the library's token controls."""
    n = len(batch.lengths)
    return Tokens(
        logprobs=batch.logprobs.detach().double(),
        entropies=batch.entropies.detach().double(),
        mask=batch.mask.bool(),
        sequence_weights=torch.full((n,), 1 / (n * RESPONSE), dtype=torch.float64),
        advantages=batch.advantages.double(),
        rewards=batch.rewards.double(),
        group=batch.owner,
        step=batch.step + 1,
    )


class RepoRTarget(Arm):
    """REPO-R, its strength searched by doubling and halving."""

    FIRST, LEAST, MOST = 0.001, 1e-4, 0.05

    def __init__(self) -> None:
        super().__init__()
        self.strength = self.FIRST
        self._target: float | None = None

    def token_weights(self, batch: Batch) -> Tensor:
        """The weights of the library's rule."""
        entropy = batch.entropy_per_token
        if self._target is None:
            self._target = entropy
        factor = 2.0 if entropy < self._target else 0.5
        self.strength = min(max(self.strength * factor, self.LEAST), self.MOST)
        self.numbers = {"coefficient": self.strength}
        return RepoR(strength=self.MOST).rewrite(tokens_of(batch), self.strength).weights.float()


class Demonstrations(Arm):
    """Three chains per step to imitate, from a step on.

    Attributes:
        begin: The first of these steps.
        count: Demonstrations per step, about 2 % of the responses.
    """

    def __init__(self, begin: int = 60, count: int = 3) -> None:
        super().__init__()
        self.begin, self.count = begin, count

    def start(self, policy: Policy, seed: int) -> None:
        """Keep the policy, and draw from random numbers of their own."""
        self._policy = policy
        self._generator = torch.Generator().manual_seed(3 * seed + 2)

    def loss_terms(self, batch: Batch) -> Tensor | float:
        """Minus the log-likelihood, in the weights of a response of advantage 1."""
        if batch.step < self.begin:
            return 0.0
        prompts = table(True, False).draw(self.count, self._generator)
        nats = likelihood(self._policy, prompts, chain(prompts.first, prompts.answer))
        return -nats.sum() / batch.mask.numel()


ARMS: dict[str, Callable[[], Arm]] = {
    "vanilla": Arm,
    "half_rate": HalfRate,
    "no_momentum": NoMomentum,
    "bonus_.01": lambda: Bonus(0.01),
    "bonus_.03": lambda: Bonus(0.03),
    "adaptive": Adaptive,
    "kl_.01": lambda: KL(0.01),
    "kl_.1": lambda: KL(0.1),
    "repo_r": RepoRTarget,
    "budget_hold": Budget,
    "budget_linear": lambda: Budget(share=0.5),
    "budget_strategy": lambda: Budget(where=STRATEGY_POSITION),
    "strategy_bonus_.03": lambda: StrategyBonus(0.03),
    "elsewhere_bonus_.03": lambda: ElsewhereBonus(0.03),
    "demonstrations": Demonstrations,
}
"""Every arm of the study, in the order of its rows."""

UPPER_BOUNDS = ("budget_strategy", "strategy_bonus_.03", "demonstrations")
"""Arms that are given what a method would have to find."""
