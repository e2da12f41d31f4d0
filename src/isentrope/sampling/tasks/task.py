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
            A finite number, 1 for right and 0 for wrong unless the task says otherwise.
        """
        ...
