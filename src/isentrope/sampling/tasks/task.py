"""What a task is, and which problems it asks, in which order.

Train and test of generated tasks are separated by a digest of the problem, so they never meet. Text
prompts can become the user's turn of a conversation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from isentrope.sampling.prompt import Message, Prompt
from isentrope.sampling.tasks.names import describe_reward
from isentrope.system.files import short_digest

if TYPE_CHECKING:
    from isentrope.nouns.rollouts import Rollouts


@runtime_checkable
class Task(Protocol):
    """Prompts and a reward.

    Attributes:
        prompts: The split's prompts, keys stable, with references where the reward needs them.
    """

    prompts: list[Prompt]

    def reward(self, response_text: str, reference: str | None) -> float:
        """Reward of one response.

        Args:
            response_text: The decoded response.
            reference: The prompt's reference answer.

        Returns:
            A finite number, 1 for correct and 0 for incorrect unless the task defines others.
        """
        ...


@runtime_checkable
class FormattedTask(Protocol):
    """A task that defines a format of its responses."""

    def format_reward(self, response_text: str) -> float:
        """Whether a response has the format.

        Args:
            response_text: The decoded response.

        Returns:
            1 or 0.
        """
        ...


@runtime_checkable
class RewardsBatches(Protocol):
    """A task whose reward looks at a whole batch, as reward functions of trainers may."""

    def batch_rewards(
        self,
        rollouts: Rollouts,
        texts: Sequence[str],
        trainer_state: Any = None,
        prompts: Sequence[Prompt] | None = None,
    ) -> list[float]:
        """Rewards of the responses of a batch.

        Args:
            rollouts: n sequences.
            texts: (n) the responses as reward functions read them.
            trainer_state: Of the checkpoint, if it has one.
            prompts: The task's prompts as they were put to the policy; None for its own.

        Returns:
            n numbers.
        """
        ...


@runtime_checkable
class ReadsAnswers(Protocol):
    """A task that reads an answer out of each response, and cannot read it from some."""

    def readable(self, response_text: str) -> bool:
        """Whether an answer can be read from a response.

        Args:
            response_text: The decoded response.

        Returns:
            True for a readable answer, correct or not.
        """
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """A task that can show how it is done."""

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """N (prompt, response text) pairs, fixed by the seed."""
        ...


class Conversations:
    """Another task's prompts as conversations; its rewards and demonstrations are unchanged.

    Attributes:
        prompts: The task's prompts, each with `messages`.
    """

    def __init__(
        self,
        task: Task,
        system_prompt: str | None = None,
        template: Mapping[str, Any] | None = None,
        *,
        texts: bool = True,
    ) -> None:
        """Wrap a task.

        Args:
            task: Its prompts are texts or conversations.
            system_prompt: First message of every conversation that has no system message.
            template: Arguments of the chat template.
            texts: Whether texts become conversations; where not, they stay texts.
        """
        converted = partial(_conversation, system=system_prompt, template=template or {})

        def wrap(prompt: Prompt) -> Prompt:
            return converted(prompt) if texts or prompt.messages else prompt

        self.prompts = [wrap(prompt) for prompt in task.prompts]
        self.reward = task.reward
        self.reward_name = describe_reward(task)
        if isinstance(task, FormattedTask):
            self.format_reward = task.format_reward
        if isinstance(task, RewardsBatches):
            self.batch_rewards = partial(task.batch_rewards, prompts=self.prompts)
        if isinstance(task, ReadsAnswers):
            self.readable = task.readable
        if isinstance(task, Demonstrator):
            draw = task.demonstrations

            def demonstrations(n: int, seed: int) -> list[tuple[Prompt, str]]:
                return [(wrap(p), text) for p, text in draw(n, seed)]

            self.demonstrations = demonstrations


def _conversation(prompt: Prompt, system: str | None, template: Mapping[str, Any]) -> Prompt:
    messages: tuple[Message, ...] = prompt.messages or ()
    if not messages:
        if prompt.text is None or prompt.token_ids is not None:
            raise ValueError(
                f"Prompt {prompt.key!r} is already encoded, so no chat template can be applied to "
                "it: set chat_template=false, or give texts or messages."
            )
        messages = ({"role": "user", "content": prompt.text},)
    if system is not None and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": system}, *messages)
    return replace(prompt, text=None, messages=messages, template=dict(template))


TEST_SHARE = 0.2

_Item = TypeVar("_Item")


def require_split(split: str, task: str) -> None:
    """Refuse a split that generated tasks do not have.

    Args:
        split: "train" or "test".
        task: Name of the task, for the message.

    Raises:
        ValueError: If it is neither.
    """
    if split not in ("train", "test"):
        raise ValueError(f"{task} has the splits train and test, not {split!r}.")


def in_test(problem: str) -> bool:
    """Whether a problem is of the test split: a digest of its text decides.

    Args:
        problem: The problem as text, the same in every kind of prompt that asks it.

    Returns:
        True for one fifth of all problems.
    """
    return int.from_bytes(short_digest(problem, 4)) < TEST_SHARE * 2**32


def limited(items: Sequence[_Item], limit: Any, seed: int) -> list[_Item]:
    """All items, or `limit` of them in seeded order.

    Args:
        items: The split.
        limit: How many; None for all.
        seed: Order in which they are taken.

    Returns:
        The items.

    Raises:
        ValueError: If there are not so many.
    """
    if limit is None:
        return list(items)
    if not isinstance(limit, int) or not 0 < limit <= len(items):
        raise ValueError(f"limit must be 1 to {len(items)}, the size of the split: {limit}.")
    return random.Random(seed).sample(items, limit)


def require_probability(name: str, value: Any) -> None:
    """Refuse a number that is not a probability below 1.

    Args:
        name: Name of the option.
        value: Its value.

    Raises:
        ValueError: If it lies outside [0, 1).
    """
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{name} is a probability below 1, got {value}.")


def require_share(test_share: Any, split: str, path: Any) -> None:
    """Refuse a share of a file that no split can have, and a split that there is none of.

    Args:
        test_share: Share of the different prompts that are those of "test".
        split: The one that is wanted.
        path: What messages call the file.

    Raises:
        ValueError: In a sentence.
    """
    require_probability("test_share", test_share)
    require_split(split, f"{path} with test_share")


def shuffled_epochs(size: int, n: int, seed: int) -> list[int]:
    """Row indices: every row once in random order, then again in another order, and so on.

    Args:
        size: Rows of the data set, at least one.
        n: Number of indices.
        seed: Fixes the orders.

    Returns:
        n numbers below `size`.
    """
    rng = random.Random(seed)
    order: list[int] = []
    while len(order) < n:
        order += rng.sample(range(size), size)
    return order[:n]
