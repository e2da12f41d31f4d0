"""The arms of the study on `compose` with the library's entropy budget.

They run `isentrope.EntropyBudget` itself: its feedback, its filtered level and gain, its bounds,
and its correction of a step. Only its inputs are made here, since the policy of `compose` is no
language model of transformers: E from the batch, and the gradients of groups of prompts by plain
autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from isentrope.control.budget import STREAM, EntropyBudget
from isentrope.control.budget_options import BudgetOptions
from isentrope.control.feedback import Target
from isentrope.control.gradients import ControlSample, slope_along
from isentrope.control.leave_one_out import GROUPS_PER_HALF, in_the_loss
from isentrope.control.own_rollouts import LEAST_PROMPTS
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, dot, multiply
from isentrope.probe.coming_step import ComingStep, coming_step
from isentrope.sampling.streams import generator_of
from studies.compose_arm import Arm, Batch
from studies.compose_policy import END, RESPONSE, Policy, score, token_mask

CHARACTERS = "0123456789>.abcd_"
STRATEGY_POSITION = r"/^\d\d\d/"
"""The class of positions after three digits and nothing else."""
Weights = tuple[Tensor, Tensor | None]


class _Characters:
    """The tokens of `compose` as text, for patterns of positions."""

    def decode(self, ids: Sequence[int]) -> str:
        """One character per token."""
        return "".join(CHARACTERS[i] for i in ids)


class PlainPolicy:
    """What a budget and the optimizer's rule ask of a policy.

    Attributes:
        model: The module.
        names: Its parameters.
        tokenizer: Decodes responses.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.tokenizer = model, _Characters()
        self.names = tuple(name for name, _ in model.named_parameters())

    @property
    def theta(self) -> dict[str, Tensor]:
        """The parameters, detached."""
        return {name: p.detach() for name, p in self.model.named_parameters()}


def drawn(batch: Batch, weights: Tensor) -> Rollouts:
    """The responses of a step as a control reads them, those to equal prompts together.

    Args:
        batch: The step.
        weights: (n, 8) c, the weights of the log-probabilities in the objective.

    Returns:
        The same responses, ordered by prompt.
    """
    number = batch.prompts.tokens.unique(dim=0, return_inverse=True)[1]
    index = number[batch.owner]
    order = index.argsort(stable=True)
    lengths = batch.lengths[order].tolist()

    def rows(values: Tensor) -> list[Tensor]:
        kept = values.detach()[order]
        return [row[:t] for row, t in zip(kept, lengths, strict=True)]

    return Rollouts(
        list(batch.prompts.tokens[batch.owner][order]),
        rows(batch.responses),
        index[order],
        sampler_entropies=rows(batch.entropies),
        rewards=batch.rewards[order].double(),
        token_weights=rows(weights),
    )


def gradients_of_rows(
    model: Policy, rollouts: Rollouts, rows: Tensor, weights: Sequence[Weights]
) -> list[Vector]:
    """Σ over some rows of a ∂s + b ∂H, of each pair of weights; float64 by parameter name."""
    part = rollouts.select(rows)
    prompts, owner = torch.stack(part.prompt_ids).unique(dim=0, return_inverse=True)
    responses = torch.full((len(rows), RESPONSE), END)
    for row, response in zip(responses, part.response_ids, strict=True):
        row[: len(response)] = response
    lengths = part.lengths
    logprobs = score(model, prompts, owner, responses, lengths).log_softmax(-1)
    mask = token_mask(lengths)
    s = logprobs.gather(2, responses[..., None])[..., 0] * mask
    H = -(logprobs.exp() * logprobs).sum(-1) * mask
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = []
    for a, b in weights:
        width = a.shape[1]
        total = (a[rows] * s[:, :width]).sum()
        total = total if b is None else total + (b[rows] * H[:, :width]).sum()
        parts = torch.autograd.grad(total, parameters, retain_graph=True)
        found.append({n: x.double() for n, x in zip(names, parts, strict=True)})
    return found


def read_half(
    model: Policy, sample: ControlSample, coming: ComingStep, trained: int
) -> tuple[Vector, Tensor]:
    """As `isentrope.control.leave_one_out.read_half`, with the gradients of `gradients_of_rows`.

    Args:
        model: The policy.
        sample: The half.
        coming: The step; its gradient is not clipped.
        trained: n_U, responses of the step to prompts that are in the loss.

    Returns:
        Gradients and slopes.
    """
    E, groups = sample.rollouts, sample.groups(GROUPS_PER_HALF)
    a, b = sample.cotangents()
    weights: list[Weights] = [(a * (len(E) / (len(E) - 1)), b), (E.padded("token_weights"), None)]
    has, P, parts = in_the_loss(E), coming.preconditioner, coming.components
    entropy, own = [], torch.zeros(len(groups), dtype=torch.float64)
    for j, rows in enumerate(groups):
        wanted = weights if bool(has[rows].any()) else weights[:1]
        found = gradients_of_rows(model, E, rows, wanted)
        entropy.append(found[0])
        if len(found) > 1:
            own[j] = dot(found[0], multiply(P, found[1]))
    gradients = {n: torch.stack([part[n] for part in entropy]) for n in entropy[0]}
    before = slope_along(gradients, axpy(1.0, parts["momentum"], parts["decay"]))
    at_once = slope_along(gradients, parts["gradient"])
    pairs = len(E) * trained
    shared = sum(len(rows) * int(has[rows].sum()) for rows in groups)
    factor = pairs / (pairs - shared) if pairs > shared else 0.0
    return gradients, before + factor * (at_once - own)


class PlainBudget(EntropyBudget):
    """The library's budget on the policy of `compose`."""

    def __init__(self, model: Policy, target: Target, options: BudgetOptions, seed: int) -> None:
        super().__init__(target, options=options, seed=seed)
        self._plain = model
        self._policy = cast(Any, PlainPolicy(model))

    def aim(self, target: Target) -> None:
        """Change the target, from the next step on."""
        self._feedback.target = target

    def before_step(self, step: int, rollouts: Rollouts, optimizer: torch.optim.Optimizer) -> None:
        """Compute the correction, with the gradients of the loss in place; steps from 1."""
        self.component = None
        policy = cast(Any, self._policy)
        self._correct_step(step, coming_step(policy, optimizer), rollouts)

    def _read_halves(
        self, step: int, coming: ComingStep, sample: ControlSample
    ) -> list[tuple[Vector, Tensor]]:
        """Both halves of `size` responses, chosen as the library chooses them."""
        E = sample.rollouts
        trained = int(in_the_loss(E).sum())
        prompts_read = max(LEAST_PROMPTS, round(self._options.size * E.n_prompts / len(E)))
        order = torch.randperm(E.n_prompts, generator=generator_of(self._seed, step, STREAM))
        halves = sample.groups(2, order[:prompts_read])
        return [read_half(self._plain, sample.select(rows), coming, trained) for rows in halves]


class Budget(Arm):
    """A budget of entropy with the defaults of the library.

    Attributes:
        share: Entropy at the end, as a share of that of the first batch; 1 holds it.
        where: The class of positions whose entropy counts; None for all.
        per: "sequence" or "token".
    """

    LINEAR = 200
    """Steps that a target takes to its end."""

    def __init__(self, share: float = 1.0, where: str | None = None, per: Any = "sequence") -> None:
        super().__init__()
        self.share, self.where, self.per = share, where, per
        self.budget: PlainBudget | None = None

    def start(self, policy: Policy, seed: int) -> None:
        """Keep the policy."""
        self._policy, self._seed = policy, seed

    def before_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Compute the correction."""
        rollouts = drawn(batch, self.token_weights(batch))
        if self.budget is None:
            options = BudgetOptions(where=self.where, per=self.per)
            self.budget = PlainBudget(self._policy, self._target(batch), options, self._seed)
        self.budget.before_step(batch.step + 1, rollouts, optimizer)
        kept = ("entropy", "entropy_drawn", "target", "predicted", "step_share", "no_correction")
        found = self.budget.latest()
        self.numbers = {name: found[f"control/{name}"] for name in kept}

    def after_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Add it to the step that was taken."""
        assert self.budget is not None
        self.budget.on_optimizer_step(None, None, None)

    def _target(self, batch: Batch) -> Target:
        if self.share == 1:
            return Target(kind="hold")
        first = float(batch.entropies.detach().sum() / len(batch.lengths))
        return Target(kind="linear", to=self.share * first, steps=self.LINEAR)
