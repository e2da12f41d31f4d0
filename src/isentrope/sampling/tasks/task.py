"""What a task is: prompts with a reward for the response."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from isentrope.sampling.prompts import Prompt


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
class Demonstrator(Protocol):
    """A task that can show how it is done."""

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """N (prompt, response text) pairs, fixed by the seed."""
        ...
