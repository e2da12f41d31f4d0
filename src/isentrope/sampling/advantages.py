"""Rewards r and advantages A(t) of rollouts.

    dr_grpo   A_i = r_i − mean_group r                                   (arXiv 2503.20783)
    grpo      A_i = (r_i − mean_group r) / (std_group r + 1e-4)          (arXiv 2402.03300)
    rloo      A_i = r_i − mean of the group's other rewards              (arXiv 2402.14740)

A group is the sequences of one prompt draw (`prompt_index`); std is the unbiased one, as in TRL.

A response that no reward function applies to is unscored: its reward is nan. As in TRL it is a
sequence of U with the advantage 0, and no part of mean and std of its group, where at least two
responses are scored; else the whole group has 0. It is no response of E: J is the mean reward of
what the policy draws, and a mean over scored responses is that of a selection by their text.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import plain_texts
from isentrope.sampling.tasks.names import describe_reward
from isentrope.sampling.tasks.reward_form import RewardForm
from isentrope.sampling.tasks.task import RewardsBatches, Task
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.reading import read_json

ADVANTAGE_RULES = ("dr_grpo", "grpo", "rloo")
"""Names of the advantage rules."""

GRPO_EPSILON = 1e-4
"""Added to the group's standard deviation, as TRL does."""

LARGEST_REWARD = 1e100
"""A larger reward may overflow in an advantage."""

RewardFunction = Callable[[Rollouts], Sequence[float | None] | Tensor]
"""n rewards for n rollouts; None or nan where it does not apply."""


_log = logging.getLogger("isentrope")


@refuse_other_types
def with_rewards(
    rollouts: Rollouts,
    task: Task | RewardFunction,
    policy: Policy | None = None,
    *,
    unscored: bool = False,
) -> Rollouts:
    """Attach a reward to every response.

    Args:
        rollouts: n sequences; a task needs their `response_texts`.
        task: A task, whose reward is called for each response, or once if it is of batches; or a
            function of the rollouts that returns n rewards.
        policy: Decodes without special tokens, as TRL; None: rewards of batches read the texts.
        unscored: Whether a response may have no reward, which is nan then: of an update batch.

    Returns:
        A copy with `rewards` (n,) float64.

    Raises:
        TypeError: If a function rewards responses, as TRL calls it.
        ValueError: If texts are missing, a response is unscored where none may be, or the rewards
            are not n numbers below `LARGEST_REWARD`.
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
        _require_of_rollouts(task)
        values = task(rollouts)
    try:
        if not isinstance(values, Tensor):
            values = [math.nan if value is None else value for value in values]
        rewards = torch.as_tensor(values, dtype=torch.float64).cpu()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The rewards are {values!r:.80}: one number per response is needed, or None where "
            "there is none."
        ) from error
    if rewards.shape != (len(rollouts),):
        raise ValueError(
            f"The reward function returned shape {tuple(rewards.shape)} for {len(rollouts)} "
            "responses; one number per response is needed."
        )
    if bool((too_large := rewards.abs() >= LARGEST_REWARD).any()):
        first = int(too_large.nonzero()[0])
        raise ValueError(
            f"The reward of response {first} is {float(rewards[first])}, not a number between "
            f"±{LARGEST_REWARD:g}."
        )
    rewarded = rollouts.with_columns(rewards=rewards)
    if bool((missing := rewards.isnan()).any()):
        if not unscored:
            raise ValueError(refuse_unscored(rewarded))
        _log.warning(
            "%s: %d of %d responses of the update batch have the advantage 0, as in TRL.",
            _name_unscored(rewarded),
            int(missing.sum()),
            len(rewarded),
        )
    return rewarded


def _require_of_rollouts(function: RewardFunction) -> None:
    """Refuse a function that rewards the responses to prompts, which rollouts do not have."""
    name = describe_reward(function)
    try:
        form = signature(function)
        RewardForm(name, form)
    except (TypeError, ValueError):
        return  # it names no response
    raise TypeError(
        f"with_rewards: {name}{form} rewards responses to prompts, and a function of the rollouts "
        f'or a task is needed: ise.load_task("FILE.py:{name}", path=PROMPTS) makes one of it.'
    )


def rewarding(task: Task, policy: Policy, checkpoint: Path) -> Any:
    """A task as a function of rollouts that knows the checkpoint, if its reward is of batches.

    Args:
        task: Any task.
        policy: Decodes the responses.
        checkpoint: Its folder, with the state of the trainer.

    Returns:
        A function of the rollouts; the task itself if it rewards one response at a time.
    """
    if not isinstance(task, RewardsBatches):
        return task
    file = checkpoint / "trainer_state.json"

    def rewards(rollouts: Rollouts) -> list[float]:
        from transformers import TrainerState

        state = None
        if file.is_file():
            content = read_json(file, finite=False)
            names = {field.name for field in fields(TrainerState)}  # scripts write keys beside
            state = TrainerState(**{k: content[k] for k in content.keys() & names})
        return task.batch_rewards(rollouts, plain_texts(rollouts, policy), state)

    rewards.__name__ = describe_reward(task)
    return rewards


UNREWARDED = 8
"""Prompt groups without any reward after which no more are drawn: a reward function may apply to
some prompts alone, and a few of the others say nothing of it."""


def no_reward(reward: str, groups: int) -> str:
    """Why drawing ends where no prompt group has a reward.

    Args:
        reward: Of `describe_reward`.
        groups: Prompt groups drawn.

    Returns:
        A sentence.
    """
    return (
        f"No response of the first {groups} prompt groups drawn has a reward: {reward} returned "
        "None for every one, as if it applied to none. Correct it, or give prompts that it "
        "applies to."
    )


def refuse_unscored(rollouts: Rollouts) -> str:
    """Why rollouts with an unscored response have no J; empty where each has a reward."""
    if rollouts.rewards is None or not bool(rollouts.rewards.isnan().any()):
        return ""
    return (
        f"{_name_unscored(rollouts)}, and J is the mean reward of all responses: a mean over the "
        "others would be that of a selection. Give every response a reward, or omit its prompt."
    )


def _name_unscored(rollouts: Rollouts) -> str:
    """What is said of the first unscored response of some."""
    first = int(torch.as_tensor(rollouts.rewards).isnan().nonzero()[0])
    texts = rollouts.response_texts
    text = "" if texts is None else f" ({texts[first]!r:.80})"
    return f"Response {first}{text} has no reward, because no reward function applies to it"


@refuse_other_types
def with_advantages(rollouts: Rollouts, rule: str) -> Rollouts:
    """Attach advantages, computed from the rewards within each prompt draw.

    Args:
        rollouts: n sequences with rewards, at least two per group.
        rule: "dr_grpo", "grpo" or "rloo".

    Returns:
        A copy with `advantages` (n,) float64; exactly 0 throughout a group of equal rewards, and
        of an unscored response.

    Raises:
        ValueError: If the rule is unknown, rewards are missing, or a group has one response.
    """
    if rule not in ADVANTAGE_RULES:
        choices = ", ".join(ADVANTAGE_RULES)
        raise ValueError(f"Unknown advantages {rule!r}; choose one of {choices}.")
    if rollouts.rewards is None:
        raise ValueError("Advantages need rewards: call with_rewards first.")
    draws, groups, size = rollouts.prompt_index.unique(return_inverse=True, return_counts=True)
    if int(size.min()) < 2:
        raise ValueError(
            f"Prompt draw {int(draws[size.argmin()])} has one response: an advantage compares "
            "responses to the same prompt. Sample with group_size >= 2."
        )
    scored = ~rollouts.rewards.isnan()
    group = groups[scored]
    counts = group.bincount(minlength=len(size)).double()
    # Differences from one reward of the same group are exactly zero for equal rewards.
    references = torch.zeros_like(counts).scatter_(0, group, rollouts.rewards[scored])
    rewards = rollouts.rewards[scored] - references[group]

    totals = torch.zeros_like(counts).index_add_(0, group, rewards)
    centred = rewards - (totals / counts)[group]
    if rule == "grpo":
        squares = torch.zeros_like(counts).index_add_(0, group, centred**2)
        variance = squares / (counts - 1)
        centred = centred / (variance.sqrt() + GRPO_EPSILON)[group]
    elif rule == "rloo":
        centred = centred * (counts / (counts - 1))[group]
    advantages = torch.zeros_like(rollouts.rewards)
    advantages[scored] = centred.masked_fill(counts[group] < 2, 0.0)  # 0/0 of an only one
    return rollouts.with_columns(advantages=advantages)


def rules_of_advantages(rollouts: Rollouts) -> list[str]:
    """The rules by which the rewards give the advantages that rollouts have; none of their own."""
    recorded = rollouts.advantages
    groups = rollouts.prompt_index.unique(return_counts=True)[1]
    if rollouts.rewards is None or recorded is None or int(groups.min()) < 2:
        return []
    computed = {rule: with_advantages(rollouts, rule).advantages for rule in ADVANTAGE_RULES}
    return [
        rule
        for rule, advantages in computed.items()
        if advantages is not None and torch.allclose(advantages, recorded, 1e-5, 1e-7)
    ]
