"""The two batches: E, on which entropy is measured, and U, from which a step is computed.

E: prompts uniformly with replacement, as a rule one response each, nothing filtered.
U: prompts without replacement within a pass over the set, G responses each; a group whose rewards
are all equal has no advantage and is rejected. The first n groups with an advantage, in the order
of drawing, are the batch; the report counts the rejected. E and U never share samples.

Groups are drawn in rounds. A round fills the sequences that are sampled at a time, however few
groups are missing: a pass of the model takes as long for one of them. After the first round it
draws no more than half as many again as are expected to be enough. Groups with an advantage after
the n-th are dropped, and their prompts are drawn again later. How many a round draws depends on
earlier rounds alone, and changes no prompt, no token and no count of a batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.policy.language_model import Policy
from isentrope.sampling.advantages import (
    UNREWARDED,
    RewardFunction,
    no_reward,
    with_advantages,
    with_rewards,
)
from isentrope.sampling.draw import sequences_at_once
from isentrope.sampling.generate import respond
from isentrope.sampling.prompt import Prompt, name_prompts
from isentrope.sampling.prompts import PromptLike, as_prompts
from isentrope.sampling.streams import generator_of
from isentrope.sampling.tasks.names import describe_reward
from isentrope.sampling.tasks.task import Task
from isentrope.system.log import log
from isentrope.system.progress import ProgressCallback, progress, silent

ENOUGH = 1.5
"""Groups of a later round, over those that are expected to be enough."""

FEW_ROUNDS = 3
"""Rounds that a batch may need before a forecast warns of it."""


@dataclass(frozen=True)
class UpdateBatchReport:
    """Counts of the sampling that filled an update batch.

    All but `left_over` are of the groups up to the last one in the batch, in the order of drawing.

    Attributes:
        drawn: Prompt groups sampled.
        rejected: Of those, groups without advantage (all rewards equal).
        all_right: Of the rejected, groups in which every reward is 1.
        all_wrong: Of the rejected, groups in which every reward is 0.
        mean_reward: Of all scored responses drawn, those of rejected groups counted.
        entropy_drawn: Mean over all tokens drawn, those of rejected groups too, of the entropy
            they were drawn with, nats. None where the sampler does not give it.
        left_over: Groups with an advantage that were drawn when the batch was full, and dropped.
    """

    drawn: int
    rejected: int
    all_right: int
    all_wrong: int
    mean_reward: float
    entropy_drawn: float | None = None
    left_over: int = 0


@dataclass(frozen=True)
class Groups:
    """Prompt groups that fill an update batch.

    Attributes:
        n: Prompt groups to fill, B_U.
        size: Responses per group, G.
        max_new_tokens: Longest response in tokens.
        advantages: Rule of `with_advantages`.
        redraw_limit: Rounds of redrawing allowed after the first, for groups without advantage.
    """

    n: int
    size: int
    max_new_tokens: int
    advantages: str = "dr_grpo"
    redraw_limit: int = 20


def update_batch(
    policy: Policy,
    prompts: Sequence[PromptLike],
    task: Task | RewardFunction,
    groups: Groups,
    *,
    seed: int,
    weights: Sequence[float] | None = None,
    batch_size: int = 64,
    progress: ProgressCallback | None = None,
) -> tuple[Rollouts, UpdateBatchReport]:
    """Draw U: n prompt groups that have an advantage.

    Args:
        policy: The policy.
        prompts: The data set.
        task: Gives the rewards.
        groups: What is drawn.
        seed: Fixes the batch.
        weights: A positive weight per prompt: each next prompt of a pass has probability
            proportional to it among those that are left; None for equal ones.
        batch_size: Sequences at a time; changes nothing but speed, memory and `left_over`.
        progress: Called with (sequences kept, sequences to draw) after each round.

    Returns:
        Its sequences with rewards and advantages, and the report.
    """
    generator = torch.Generator().manual_seed(seed)
    queue = _pass_over(name_prompts(prompts), seed, generator, weights)
    queue = chain([next(queue)], queue)  # its pass is drawn before the first uniform

    def draw(number: int) -> Rollouts:
        batch = respond(
            policy,
            as_prompts(policy, [next(queue) for _ in range(number)]),
            groups.size,
            generator,
            max_new_tokens=groups.max_new_tokens,
            batch_size=batch_size,
        )
        return policy.from_first(lambda: with_rewards(batch, task, policy, unscored=True))

    longest = groups.max_new_tokens  # prompts are encoded when they are drawn
    at_once = sequences_at_once(policy, longest, groups.max_new_tokens, batch_size)
    filling = Filling(groups, batch_size, at_once, reward=describe_reward(task))
    return filling.fill(draw, progress or silent)


@dataclass
class Filling:
    """Rounds of drawing until n groups have an advantage.

    Attributes:
        groups: What is drawn.
        batch_size: Sequences that all processes sample at a time, of which a round is a multiple.
        at_once: Sequences that rounds after the first may have, where memory holds so many.
        available: Prompts that one batch may draw; None for any number.
        warn: Called with a sentence where many rounds are to be expected.
        reward: What messages call that which rewards.
        rejected: The groups without advantage that were drawn before the batch was full.
    """

    groups: Groups
    batch_size: int
    at_once: int = 0
    available: int | None = None
    warn: Callable[[str], object] = log.warning
    reward: str = "the reward function"
    rejected: list[Rollouts] = field(default_factory=list[Rollouts])

    _kept: list[Rollouts] = field(default_factory=list[Rollouts], init=False)
    _rewards: Tensor = field(default_factory=torch.DoubleTensor, init=False)
    _entropies: list[Tensor] = field(default_factory=list[Tensor], init=False)
    _useful: int = field(default=0, init=False)

    def fill(
        self, draw: Callable[[int], Rollouts], advance: ProgressCallback = silent
    ) -> tuple[Rollouts, UpdateBatchReport]:
        """Draw rounds until the batch is full.

        Args:
            draw: Called with a number of groups; returns the next ones, with rewards.
            advance: Called with (sequences kept, sequences to draw) after each round.

        Returns:
            The first n groups that have an advantage, and the report.

        Raises:
            ValueError: If n groups are not found within the limit, or among all prompts.
        """
        n = self.groups.n
        size = self.groups.size
        available = math.inf if self.available is None else self.available
        for round_ in range(1, self.groups.redraw_limit + 2):
            missing = n - self._useful
            # the missing ones, and what else their last batch has room for
            number = -(-missing * size // self.batch_size) * self.batch_size // size
            if round_ > 1:
                number = max(number, self.at_once // size)
                if self._useful:
                    enough = ENOUGH * missing * len(self._rewards) / self._useful
                    number = min(number, math.ceil(enough))
            number = max(missing, number if number < available else int(available))
            batch = with_advantages(draw(number), self.groups.advantages)
            assert batch.rewards is not None
            assert batch.advantages is not None
            rewards = batch.rewards.view(-1, size)
            useful = (batch.advantages.view(-1, size) != 0).any(1)
            # groups up to the one that fills the batch
            needed = useful.cumsum(0) - useful.long() + self._useful < n
            self._useful += int(useful.sum())
            self._rewards = torch.cat((self._rewards.view(-1, size), rewards[needed]))
            self._entropies += (batch.sampler_entropies or [])[: int(needed.sum()) * size]
            for selected, parts in ((useful, self._kept), (~useful, self.rejected)):
                rows = (selected & needed).repeat_interleave(size).nonzero()[:, 0]
                if len(rows):
                    parts.append(batch.select(rows))
            advance(min(self._useful, n) * size, n * size)
            if round_ > 1 or self._useful < n:
                progress().log_running(  # where rewards are sparse, each step has a dozen rounds
                    "Round %d of drawing: %d groups drawn, %d have an advantage, %d are needed.",
                    *(round_, len(self._rewards), self._useful, n),
                )
            if self._useful >= n:
                return concatenate(self._kept), self._report()
            if len(self._rewards) >= UNREWARDED and bool(self._rewards.isnan().all()):
                raise ValueError(no_reward(self.reward, len(self._rewards)))
            if round_ == 1 and self.groups.redraw_limit:
                self._forecast(number)
            available -= number
            if available < n - self._useful:
                raise ValueError(self._refusal(f"Among {len(self._rewards)} prompts"))
        raise ValueError(self._refusal(f"After {self.groups.redraw_limit} redraws"))

    def _refusal(self, when: str) -> str:
        if bool(self._rewards.isnan().all()):
            return no_reward(self.reward, len(self._rewards))
        report = self._report()
        prompts = "" if self.available is None else f" of {self.available} prompts"
        return (
            f"{when} only {self._useful} of {self.groups.n} prompt groups have an advantage: of "
            f"{report.drawn} groups drawn{prompts}, {report.all_right} were all correct and "
            f"{report.all_wrong} all incorrect. {_CHOICES}, more prompts, or a higher redraw_limit "
            "of the same section."
        )

    def _report(self) -> UpdateBatchReport:
        rewards = self._rewards
        used = min(self._useful, self.groups.n)
        return UpdateBatchReport(
            drawn=len(rewards),
            rejected=len(rewards) - used,
            all_right=int((rewards == 1).all(1).sum()),
            all_wrong=int((rewards == 0).all(1).sum()),
            mean_reward=float(rewards.nanmean()),
            entropy_drawn=float(torch.cat(self._entropies).mean()) if self._entropies else None,
            left_over=self._useful - used,
        )

    def _forecast(self, number: int) -> None:
        """After the first round: how many more are to be expected, and what to do about it."""
        report = self._report()
        drawn = f"{report.drawn} groups of {self.groups.size} responses"
        if not self._useful:
            self.warn(
                f"The first round drew {drawn}, and none has an advantage: {report.all_right} are "
                f"all correct and {report.all_wrong} all incorrect (mean reward "
                f"{report.mean_reward:.3g}). {_CHOICES}."
            )
            return
        missing = self.groups.n - self._useful
        rounds = math.ceil(missing * report.drawn / (self._useful * number))
        if rounds >= FEW_ROUNDS:
            self.warn(
                f"The first round drew {drawn}, of which {self._useful} have an advantage, and "
                f"{self.groups.n} are needed: about {rounds} more rounds like it. {_CHOICES}."
            )


_CHOICES = (
    "Use prompts that the policy solves sometimes (by difficulty: training.prompt_weighting or "
    "batch_config.U_weighting), or more responses per group (batch_config.G, training.group_size "
    "in training)"
)
"""What makes more groups useful."""


def _pass_over(
    prompts: list[Prompt],
    seed: int,
    generator: torch.Generator,
    weights: Sequence[float] | None,
) -> Iterator[Prompt]:
    """Endless passes over the prompts, each in a new random order."""
    for number in count(1):
        if weights is None:
            order = torch.randperm(len(prompts), generator=generator)
        else:
            uniform = torch.rand(len(prompts), generator=generator, dtype=torch.float64)
            # Efraimidis and Spirakis
            order = (uniform.log() / torch.tensor(weights).double()).argsort(descending=True)
        for i in order:
            yield prompts[int(i)]
        # the first generator continues with the uniforms, however many prompts a round takes
        generator = generator_of(seed, number)
