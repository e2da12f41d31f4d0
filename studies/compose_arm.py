"""What an arm of the study on `compose` may change: the base class of all arms, and its input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from studies.compose_policy import RESPONSE, STRATEGY, Policy, token_mask
from studies.compose_task import Prompts


@dataclass(frozen=True)
class Batch:
    """The rollouts of a step; n responses, those to one prompt beside each other.

    Attributes:
        step: Number of the step, from 0.
        prompts: The p prompts.
        owner: (n,) index of each response's prompt.
        responses: (n, 8) token ids, filled with '.' after the end.
        lengths: (n,) tokens, with the '.'.
        rewards: (n,) 0 or 1.
        advantages: (n,) reward minus the mean of its group.
        logprobs: (n, 8) s, nats, with a graph; 0 where there is no token.
        entropies: (n, 8) H, nats, with a graph; 0 where there is no token.
        chain: (n,) P('>') at the strategy position, without a graph; NaN where there is none.
    """

    step: int
    prompts: Prompts
    owner: Tensor
    responses: Tensor
    lengths: Tensor
    rewards: Tensor
    advantages: Tensor
    logprobs: Tensor
    entropies: Tensor
    chain: Tensor

    @property
    def mask(self) -> Tensor:
        """(n, 8) 1 where there is a token, float32."""
        return token_mask(self.lengths)

    @property
    def strategy_mask(self) -> Tensor:
        """(n, 8) 1 at the token after three digits, float32."""
        found = torch.zeros_like(self.mask)
        found[:, STRATEGY] = (self.responses[:, :STRATEGY] < 10).all(1).float()
        return found

    @property
    def weights(self) -> Tensor:
        """(n, 8) A_i/(n L) at every token, the weights of the plain objective."""
        return self.advantages[:, None] * self.mask / (len(self.lengths) * RESPONSE)

    @property
    def entropy_per_token(self) -> float:
        """Mean of H over the tokens, nats."""
        return float(self.entropies.detach().sum() / self.mask.sum())


class Arm:
    """Vanilla; what other arms change are these attributes and methods.

    Attributes:
        rate: Learning rate as a share of vanilla's.
        steps: Steps as a multiple of vanilla's.
        momentum: β₁ of AdamW.
        keeps_graph: Whether the graph of the batch is needed after the backward pass.
        numbers: Numbers of this step for the log, by name.
    """

    rate: float = 1.0
    steps: int = 1
    momentum: float = 0.9
    keeps_graph: bool = False

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}

    def start(self, policy: Policy, seed: int) -> None:
        """Called once, before the first step, with the policy that will be trained."""

    def token_weights(self, batch: Batch) -> Tensor:
        """(n, 8) weights c of the log-probabilities: the objective is Σ c s."""
        return batch.weights

    def loss_terms(self, batch: Batch) -> Tensor | float:
        """What is added to the loss, a scalar."""
        return 0.0

    def before_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Called with the gradients of the loss in place, before the optimizer uses them."""

    def after_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Called after the optimizer has moved the parameters."""
