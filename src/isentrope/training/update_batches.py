"""The update batch of each training step, the same for any number of processes.

A batch is a function of θ, seed, step and the prompt sampler's state: prompts come from the
sampler, and one uniform per (sequence, position) from (seed, step, round). Each process samples
responses to its own share of the prompts; then every process has the whole batch. Groups without
nonzero advantages are redrawn until the batch is full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.policy.language_model import Policy
from isentrope.sampling.batches import (
    Groups,
    RewardFunction,
    UpdateBatchReport,
    draw_until_full,
    with_rewards,
)
from isentrope.sampling.generate import DrawnResponses, rollouts_of
from isentrope.sampling.prompts import Prompt
from isentrope.sampling.streams import generator_of
from isentrope.sampling.tasks import Task
from isentrope.system.processes import gather, rank, world_size
from isentrope.training.prompt_sampler import PromptSampler

Respond = Callable[[list[Tensor], Tensor], DrawnResponses]
"""(prompt ids of m sequences, uniforms (m, L)) → the responses drawn."""


@dataclass(frozen=True)
class UpdateBatch:
    """The batch of one step.

    Attributes:
        rollouts: n · G sequences with rewards and advantages, groups together.
        report: Statistics of all responses drawn to fill it.
        difficulty: (n · G) 1 − running pass rate of each sequence's prompt before this step.
        rejected: The groups without advantage that were drawn on the way.
    """

    rollouts: Rollouts
    report: UpdateBatchReport
    difficulty: list[float]
    rejected: list[Rollouts] = field(default_factory=list[Rollouts])

    @property
    def mine(self) -> slice:
        """The rows that this process trains on."""
        share = len(self.rollouts) // world_size()
        return slice(rank() * share, (rank() + 1) * share)

    @property
    def share(self) -> Rollouts:
        """The sequences that this process trains on."""
        return self.rollouts.select(range(len(self.rollouts))[self.mine])


class UpdateBatches:
    """Draws the batch of every step.

    Attributes:
        prompts: The training prompts, encoded, keys unique.
        sampler: Selects prompts, and estimates their pass rates from the rewards.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        task: Task | RewardFunction,
        sampler: PromptSampler,
        groups: Groups,
        *,
        seed: int = 0,
    ) -> None:
        """Set up the source of batches.

        Args:
            prompts: The training prompts, encoded.
            task: Computes the rewards.
            sampler: A sampler over the keys of `prompts`.
            groups: Those of a batch; their number is a multiple of that of the processes.
            seed: Seed of all tokens.
        """
        self.prompts, self.task, self.sampler = list(prompts), task, sampler
        self.groups, self.seed = groups, seed

    def draw(self, policy: Policy, step: int, respond: Respond) -> UpdateBatch:
        """Draw the batch of a step; every process must call this.

        Args:
            policy: Decodes responses.
            step: The step that the batch is for, from 1.
            respond: Draws the responses.

        Returns:
            The batch, the same on every process.
        """
        difficulty: dict[str, float] = {}
        rejected: list[Rollouts] = []

        def draw_groups(number: int, round_: int) -> Rollouts:
            indices = self.sampler.draw(number, step)
            difficulty.update({self.prompts[i].key: self.sampler.difficulty(i) for i in indices})
            generator = generator_of(self.seed, step, round_)
            size = number * self.groups.size, self.groups.max_new_tokens
            uniforms = torch.rand(*size, generator=generator, dtype=torch.float64)
            batch = self._respond(policy, indices, uniforms, respond)
            assert batch.rewards is not None
            self.sampler.update(indices, batch.rewards.view(number, -1).mean(1).tolist())
            return batch

        rollouts, report = draw_until_full(draw_groups, self.groups, rejected=rejected)
        keys = rollouts.prompt_keys or []
        return UpdateBatch(rollouts, report, [difficulty[key] for key in keys], rejected)

    def _respond(
        self, policy: Policy, indices: list[int], uniforms: Tensor, respond: Respond
    ) -> Rollouts:
        """Responses to these prompts; each process samples a contiguous share of equal size."""
        share = -(-len(indices) // world_size())
        slots = range(rank() * share, (rank() + 1) * share)
        mine = [min(slot, len(indices) - 1) for slot in slots]  # padded with the last prompt
        rows = torch.tensor(mine).repeat_interleave(self.groups.size) * self.groups.size
        rows += torch.arange(self.groups.size).repeat(share)
        prompts = [self.prompts[indices[slot]] for slot in mine for _ in range(self.groups.size)]
        responses = respond([torch.tensor(p.token_ids) for p in prompts], uniforms[rows])
        rollouts = rollouts_of(
            policy,
            prompts,
            torch.arange(share).repeat_interleave(self.groups.size),
            **responses._asdict(),
            max_new_tokens=self.groups.max_new_tokens,
        )
        try:
            rewarded = with_rewards(rollouts, self.task)
        except ValueError:
            raise  # already a clear message
        except Exception as error:  # the task may be the user's own code
            raise RuntimeError(
                f"The reward function failed with {type(error).__name__}: {error}."
            ) from error
        return concatenate(gather(rewarded)).select(range(len(indices) * self.groups.size))
