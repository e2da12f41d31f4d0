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


@runtime_checkable
class ManyAnswers(Protocol):
    """A task whose prompts have several correct answers, all of them known."""

    def answer(self, response_text: str, reference: str | None) -> str | None:
        """Canonical form of the answer that a response gives; None where it is not correct."""
        ...

    def answers(self, reference: str) -> frozenset[str]:
        """Canonical forms of all correct answers to the prompt with this reference."""
        ...
