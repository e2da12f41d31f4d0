"""The update batch of each training step, the same for any number of processes, and its log.

A batch is a function of θ, seed, step and the prompt sampler's state: prompts come from the
sampler, and one uniform per (sequence, position), in the order of drawing, from (seed, step). Each
process samples responses to its own share of the prompts; then every process has the whole batch.
Groups are drawn until enough of them have nonzero advantages (`sampling.batches`).
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor

from isentrope.checkpoint.record.token_record import TokenRecord, policy_ratio
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.parallel.ranks import from_first
from isentrope.policy.language_model import Policy
from isentrope.sampling.advantages import RewardFunction, with_rewards
from isentrope.sampling.batches import Filling, Groups, UpdateBatchReport
from isentrope.sampling.draw import DrawnResponses, sequences_at_once
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.streams import generator_of
from isentrope.sampling.tasks.names import describe_reward
from isentrope.sampling.tasks.task import ReadsAnswers, RewardsBatches, Task
from isentrope.system.log import log
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
        unread: Responses drawn, rejected ones too, in which the task could read no answer; None
            for a task that does not say.
    """

    rollouts: Rollouts
    report: UpdateBatchReport
    difficulty: list[float]
    rejected: list[Rollouts] = field(default_factory=list[Rollouts])
    unread: int | None = None

    @property
    def rows_of_process(self) -> slice:
        """The rows that this process trains on."""
        share = len(self.rollouts) // world_size()
        return slice(rank() * share, (rank() + 1) * share)

    @property
    def share(self) -> Rollouts:
        """The sequences that this process trains on."""
        return self.rollouts.select(range(len(self.rollouts))[self.rows_of_process])


@dataclass
class UpdateBatches:
    """Draws the batch of every step.

    Attributes:
        prompts: The training prompts, encoded, keys unique.
        task: Computes the rewards.
        sampler: Selects prompts by their keys, and estimates their pass rates from the rewards.
        groups: Those of a batch; their number is a multiple of that of the processes.
        seed: Seed of all tokens.
        batch_size: Sequences that each process samples at a time, which a round fills.
    """

    prompts: Sequence[Prompt]
    task: Task | RewardFunction
    sampler: PromptSampler
    groups: Groups
    seed: int = 0
    batch_size: int = 128
    _warned: bool = field(default=False, init=False)

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
        prompts: list[int] = []
        mean_rewards: list[float] = []
        generator = generator_of(self.seed, step, 0)

        def draw_groups(number: int) -> Rollouts:
            indices = self.sampler.draw(number, step)
            difficulty.update({self.prompts[i].key: self.sampler.difficulty(i) for i in indices})
            size = number, self.groups.size, self.groups.max_new_tokens
            uniforms = torch.rand(*size, generator=generator, dtype=torch.float64)
            batch = self._respond(policy, indices, uniforms, respond)
            assert batch.rewards is not None
            prompts.extend(indices)
            mean_rewards.extend(batch.rewards.view(number, -1).nanmean(1).tolist())
            return batch

        at_once = self.batch_size * world_size()
        filling = Filling(
            self.groups,
            at_once,
            available=len(self.prompts),
            warn=self._warn,
            reward=describe_reward(self.task),
        )
        if world_size() == 1:  # several processes draw equally many
            longest = max(len(prompt.token_ids or ()) for prompt in self.prompts)
            max_new_tokens = self.groups.max_new_tokens
            filling.at_once = sequences_at_once(policy, longest, max_new_tokens, self.batch_size)
        rollouts, report = filling.fill(draw_groups)
        # those after the last one in the batch depend on how many a round draws
        self.sampler.keep(report.drawn)
        self.sampler.update(prompts[: report.drawn], mean_rewards[: report.drawn])
        keys = rollouts.prompt_keys or []
        unread = None
        if isinstance(self.task, ReadsAnswers):
            drawn = (rollouts, *filling.rejected)
            texts = [text for part in drawn for text in part.response_texts or ()]
            unread = sum(not self.task.readable(text) for text in texts)
        difficulties = [difficulty[key] for key in keys]
        return UpdateBatch(rollouts, report, difficulties, filling.rejected, unread)

    def _warn(self, sentence: str) -> None:
        """Warn of many rounds once in a run; later steps say it at a lower level."""
        log.log(logging.INFO if self._warned else logging.WARNING, sentence)
        self._warned = True

    def _respond(
        self, policy: Policy, indices: list[int], uniforms: Tensor, respond: Respond
    ) -> Rollouts:
        """Responses to these prompts; each process samples a contiguous share of equal size."""
        share = -(-len(indices) // world_size())
        slots = range(rank() * share, (rank() + 1) * share)
        places = [min(slot, len(indices) - 1) for slot in slots]  # padded with the last prompt
        prompts = [self.prompts[indices[i]] for i in places for _ in range(self.groups.size)]
        responses = respond(
            [torch.tensor(p.token_ids) for p in prompts], uniforms[places].flatten(0, 1)
        )
        rollouts = rollouts_of(
            policy,
            prompts,
            torch.arange(share).repeat_interleave(self.groups.size),
            **responses._asdict(),
            max_new_tokens=self.groups.max_new_tokens,
        )
        rows = range(len(indices) * self.groups.size)
        if isinstance(self.task, RewardsBatches):  # it sees the whole batch, however it is shared
            batch = concatenate(gather(rollouts)).select(rows)
            return from_first(lambda: self._reward(batch, policy))
        return concatenate(gather(self._reward(rollouts, policy))).select(rows)

    def _reward(self, rollouts: Rollouts, policy: Policy) -> Rollouts:
        try:
            return with_rewards(rollouts, self.task, policy, unscored=True)
        except ValueError:
            raise  # already a clear message
        except Exception as error:  # the task may be the user's own code
            raise RuntimeError(
                f"The reward function failed with {type(error).__name__}: {error}."
            ) from error


def step_metrics(
    batch: UpdateBatch, record: TokenRecord, eos_token_ids: Collection[int]
) -> dict[str, float]:
    """Sample means of a step's batch, for a log; no error bars.

    Args:
        batch: The update batch.
        record: Log-probabilities, entropies and weights of its tokens in training.
        eos_token_ids: A response that ends with none of them was truncated.

    Returns:
        `reward` of all responses drawn and `reward_kept` of those in the batch, `entropy` (nats
        per token of the batch, which is filtered: the probe's is not), `surprisal` (nats per
        sequence), `length`, `truncated`, the counts of the report, `unread` where the task reads
        answers, and the policy ratio.
    """
    rollouts = batch.rollouts
    means = describe_batch(rollouts, batch.report)
    truncated = [int(r[-1]) not in eos_token_ids for r in rollouts.response_ids]
    return {
        "reward": means.pop("mean_reward"),
        "reward_kept": float(cast(Tensor, rollouts.rewards).nanmean()),
        "entropy": float(torch.cat(record.entropies).mean()),
        "truncated": sum(truncated) / len(truncated),
        **({} if batch.unread is None else {"unread": batch.unread}),
        **means,
        **policy_ratio(rollouts, record),
    }


def describe_batch(batch: Rollouts, report: UpdateBatchReport) -> dict[str, float]:
    """Describe an update batch.

    Args:
        batch: The kept responses, with rewards and sampler log-probabilities.
        report: Statistics of all responses drawn.

    Returns:
        The report's counts and means; `pass_rate`, the share of correct responses among all drawn,
        rejected groups included; and of the kept responses `surprisal` (nats per sequence) and
        `length` (tokens).
    """
    group_size = len(batch) / batch.n_prompts
    correct = int((cast(Tensor, batch.rewards) == 1).sum()) + group_size * report.all_right
    surprisal = -sum(float(s.sum()) for s in cast(list[Tensor], batch.sampler_logprobs))
    return {name: value for name, value in vars(report).items() if value is not None} | {
        "pass_rate": correct / (group_size * report.drawn),
        "surprisal": surprisal / len(batch),
        "length": float(batch.lengths.double().mean()),
    }


def rollout_table(step: int, batch: UpdateBatch, record: TokenRecord) -> pd.DataFrame:
    """The rollouts of a step, one row per response."""
    U = batch.rollouts
    columns: dict[str, Any] = {
        "step": [step] * len(U),
        "prompt_key": U.prompt_keys,
        "prompt_index": U.prompt_index,
        "difficulty": batch.difficulty,
        "response": U.response_texts,
        "reference": U.references or [None] * len(U),
        "reward": U.rewards,
        "advantage": U.advantages,
        "length": U.lengths,
        "prompt_ids": U.prompt_ids,
        "response_ids": U.response_ids,
        "sampler_logprobs": U.sampler_logprobs,
        "logprobs": record.logprobs,
        "entropies": record.entropies,
        "token_weights": record.weights,
        "entropy_weights": record.entropy_weights,
    }
    return pd.DataFrame(
        {
            name: [x.tolist() if isinstance(x, Tensor) else x for x in column]
            for name, column in columns.items()
            if column is not None
        }
    )
