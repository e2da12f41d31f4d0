"""The two batches: E, on which entropy is measured, and U, from which a step is computed.

E: prompts uniformly with replacement, as a rule one response each, nothing filtered.
U: prompts without replacement within a pass over the set, G responses each; a group whose
rewards are all equal has no advantage, is rejected, and another prompt is drawn in its place.
The report counts what was rejected. E and U are drawn by separate calls: they never share samples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.policy.language_model import Policy
from isentrope.sampling.advantages import RewardFunction, with_advantages, with_rewards
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import Prompt, PromptLike, as_prompts, name_prompts
from isentrope.sampling.tasks import Task
from isentrope.system.progress import ProgressCallback, silent


@dataclass(frozen=True)
class UpdateBatchReport:
    """Counts of the sampling that filled an update batch.

    Attributes:
        drawn: Prompt groups sampled.
        rejected: Of those, groups without advantage (all rewards equal).
        all_right: Of the rejected, groups in which every reward is 1.
        all_wrong: Of the rejected, groups in which every reward is 0.
        mean_reward: Of all responses drawn, those of rejected groups counted.
        entropy_drawn: Mean over all tokens drawn, those of rejected groups too, of the entropy
            they were drawn with, nats. None where the sampler does not give it.
    """

    drawn: int
    rejected: int
    all_right: int
    all_wrong: int
    mean_reward: float
    entropy_drawn: float | None = None


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
        batch_size: Sequences at a time.
        progress: Called with (sequences kept, sequences to draw) after each round.

    Returns:
        Its sequences with rewards and advantages, and the report.
    """
    generator = torch.Generator().manual_seed(seed)
    named = name_prompts(prompts)
    queue = _pass_over(named, generator, weights)

    def draw(number: int, _round: int) -> Rollouts:
        batch = respond(
            policy,
            as_prompts(policy, [next(queue) for _ in range(number)]),
            groups.size,
            generator,
            max_new_tokens=groups.max_new_tokens,
            batch_size=batch_size,
        )
        return policy.from_first(lambda: with_rewards(batch, task, policy))

    return draw_until_full(draw, groups, progress)


def draw_until_full(
    draw: Callable[[int, int], Rollouts],
    groups: Groups,
    progress: ProgressCallback | None = None,
    rejected: list[Rollouts] | None = None,
) -> tuple[Rollouts, UpdateBatchReport]:
    """Draw prompt groups until n of them have an advantage.

    Args:
        draw: Called with (number of groups, round); returns that many groups with rewards.
        groups: What is drawn.
        progress: Called with (sequences kept, sequences to draw) after each round.
        rejected: Where to put the groups without advantage; None to forget them.

    Returns:
        The groups that have an advantage, and the report.

    Raises:
        ValueError: If n groups are not found within the limit.
    """
    kept: list[Rollouts] = []
    rewards = torch.empty(0, groups.size, dtype=torch.float64)
    entropies: list[Tensor] = []
    found = 0
    for round_ in range(groups.redraw_limit + 1):
        batch = with_advantages(draw(groups.n - found, round_), groups.advantages)
        assert batch.rewards is not None
        here = batch.rewards.view(-1, groups.size)
        useful = here.amax(1) > here.amin(1)
        rewards = torch.cat((rewards, here))
        entropies += batch.sampler_entropies or ()
        for which, into in ((useful, kept), (~useful, rejected)):
            if into is not None and bool(which.any()):
                into.append(batch.select(which.repeat_interleave(groups.size).nonzero()[:, 0]))
        found += int(useful.sum())
        (progress or silent)(found * groups.size, groups.n * groups.size)
        if found == groups.n:
            break
    drawn = len(rewards)
    report = UpdateBatchReport(
        drawn=drawn,
        rejected=drawn - found,
        all_right=int((rewards == 1).all(1).sum()),
        all_wrong=int((rewards == 0).all(1).sum()),
        mean_reward=float(rewards.mean(1).sum()) / drawn,
        entropy_drawn=float(torch.cat(entropies).mean()) if entropies else None,
    )
    if found == groups.n:
        return concatenate(kept), report
    raise ValueError(
        f"After {groups.redraw_limit} redraws only {found} of {groups.n} prompt groups have "
        f"an advantage: of {drawn} groups drawn, {report.all_right} were all correct and "
        f"{report.all_wrong} all incorrect. Use prompts that the policy solves sometimes, "
        "more responses per group (batch_config.G, training.group_size in training), or a higher "
        "redraw_limit of the same section."
    )


def _pass_over(
    prompts: list[Prompt], generator: torch.Generator, weights: Sequence[float] | None
) -> Iterator[Prompt]:
    """Endless passes over the prompts, each in a new random order."""
    while True:
        if weights is None:
            order = torch.randperm(len(prompts), generator=generator)
        else:
            uniform = torch.rand(len(prompts), generator=generator, dtype=torch.float64)
            # Efraimidis and Spirakis
            order = (uniform.log() / torch.tensor(weights).double()).argsort(descending=True)
        for i in order:
            yield prompts[int(i)]
