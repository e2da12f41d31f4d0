"""The two batches: E, on which entropy is measured, and U, from which a step is computed.

E: prompts uniformly with replacement, as a rule one response each, nothing filtered.
U: prompts without replacement within a pass over the set, G responses each; a group whose
rewards are all equal has no advantage, is rejected, and another prompt is drawn in its place.
The report counts what was rejected. E and U are drawn by separate calls: they never share samples.

Rewards r and advantages A(t) of rollouts:

    dr_grpo   A_i = r_i − mean_group r                                   (arXiv 2503.20783)
    grpo      A_i = (r_i − mean_group r) / (std_group r + 1e-4)          (arXiv 2402.03300)
    rloo      A_i = r_i − mean of the group's other rewards              (arXiv 2402.14740)

A group is the sequences of one prompt draw (`prompt_index`); std is the unbiased one, as in TRL.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import plain_texts, respond
from isentrope.sampling.prompts import Prompt, PromptLike, as_prompts, name_prompts
from isentrope.sampling.tasks import Task
from isentrope.sampling.tasks.task import RewardsBatches
from isentrope.system.progress import Report, silent

ADVANTAGES = ("dr_grpo", "grpo", "rloo")
"""Names of the advantage rules."""

GRPO_EPSILON = 1e-4
"""Added to the group's standard deviation, as TRL does."""

LARGEST = 1e100
"""A larger reward may overflow in an advantage."""

RewardFunction = Callable[[Rollouts], Sequence[float] | Tensor]
"""n rewards for n rollouts."""


def with_rewards(
    rollouts: Rollouts, task: Task | RewardFunction, policy: Policy | None = None
) -> Rollouts:
    """Attach a reward to every response.

    Args:
        rollouts: n sequences; a task needs their `response_texts`.
        task: A task, whose reward is called for each response, or once if it is of batches; or a
            function of the rollouts that returns n rewards.
        policy: Decodes without special tokens, as TRL; None: rewards of batches read the texts.

    Returns:
        A copy with `rewards` (n,) float64.

    Raises:
        ValueError: If texts are missing, or the rewards are not n numbers below `LARGEST`.
    """
    texts = rollouts.response_texts
    if isinstance(task, Task):
        if texts is None:
            raise ValueError(
                "A task rewards texts, and these rollouts have none: sample with a policy that has "
                "a tokenizer, or pass a function."
            )
        references = rollouts.references or [None] * len(rollouts)
        if isinstance(task, RewardsBatches):
            values = task.batch_rewards(rollouts, plain_texts(rollouts, policy))
        else:
            values = [task.reward(*pair) for pair in zip(texts, references, strict=True)]
    else:
        values = task(rollouts)
    rewards = torch.as_tensor(values, dtype=torch.float64).cpu()
    if rewards.shape != (len(rollouts),):
        raise ValueError(
            f"The reward function returned shape {tuple(rewards.shape)} for {len(rollouts)} "
            "responses; one number per response is needed."
        )
    if bool((wrong := ~(rewards.abs() < LARGEST)).any()):
        first = int(wrong.nonzero()[0])
        raise ValueError(
            f"The reward of response {first} is {float(rewards[first])}, not a number between "
            f"±{LARGEST:g}."
        )
    return rollouts.with_columns(rewards=rewards)


def with_advantages(rollouts: Rollouts, rule: str) -> Rollouts:
    """Attach advantages, computed from the rewards within each prompt draw.

    Args:
        rollouts: n sequences with rewards, at least two per group.
        rule: "dr_grpo", "grpo" or "rloo".

    Returns:
        A copy with `advantages` (n,) float64; exactly 0 throughout a group of equal rewards.

    Raises:
        ValueError: If the rule is unknown, rewards are missing, or a group has one response.
    """
    if rule not in ADVANTAGES:
        raise ValueError(f"Unknown advantages {rule!r}; choose one of {', '.join(ADVANTAGES)}.")
    if rollouts.rewards is None:
        raise ValueError("Advantages need rewards: call with_rewards first.")
    draws, group, size = rollouts.prompt_index.unique(return_inverse=True, return_counts=True)
    if int(size.min()) < 2:
        raise ValueError(
            f"Prompt draw {int(draws[size.argmin()])} has one response: an advantage compares "
            "responses to the same prompt. Sample with group_size >= 2."
        )
    # Differences from one reward of the same group are exactly zero for equal rewards.
    counts = size.double()
    some = torch.zeros_like(counts).scatter_(0, group, rollouts.rewards)
    rewards = rollouts.rewards - some[group]

    def sums(values: Tensor) -> Tensor:
        return torch.zeros_like(counts).index_add_(0, group, values)

    centred = rewards - (sums(rewards) / counts)[group]
    if rule == "grpo":
        variance = sums(centred**2) / (counts - 1)
        centred = centred / (variance.sqrt() + GRPO_EPSILON)[group]
    elif rule == "rloo":
        centred = centred * (counts / (counts - 1))[group]
    return rollouts.with_columns(advantages=centred)


def rules_of_advantages(rollouts: Rollouts) -> list[str]:
    """The rules by which the rewards give the advantages that rollouts have; none of their own."""
    given = rollouts.advantages
    groups = rollouts.prompt_index.unique(return_counts=True)[1]
    if rollouts.rewards is None or given is None or int(groups.min()) < 2:
        return []
    anew = {rule: with_advantages(rollouts, rule).advantages for rule in ADVANTAGES}
    return [r for r, x in anew.items() if x is not None and torch.allclose(x, given, 1e-5, 1e-7)]


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
    progress: Report | None = None,
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
    queue = _passes(named, generator, weights)

    def draw(number: int, _round: int) -> Rollouts:
        batch = respond(
            policy,
            as_prompts(policy, [next(queue) for _ in range(number)]),
            groups.size,
            generator,
            max_new_tokens=groups.max_new_tokens,
            batch_size=batch_size,
        )
        return policy.ranks.from_first(lambda: with_rewards(batch, task, policy))

    return draw_until_full(draw, groups, progress)


def draw_until_full(
    draw: Callable[[int, int], Rollouts],
    groups: Groups,
    progress: Report | None = None,
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


def _passes(
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
