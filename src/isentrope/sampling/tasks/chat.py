"""A task whose text prompts become the user's turn of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isentrope.sampling.prompts import Message, Prompt
from isentrope.sampling.tasks.task import Demonstrator, FormattedTask, Task


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
    ) -> None:
        """Wrap a task.

        Args:
            task: Its prompts are texts or conversations.
            system_prompt: First message of every conversation that has no system message.
            template: Arguments of the chat template.
        """

        def wrap(prompt: Prompt) -> Prompt:
            return _conversation(prompt, system_prompt, template or {})

        self.prompts = [wrap(prompt) for prompt in task.prompts]
        self._reward = task.reward
        if isinstance(task, FormattedTask):
            self.format_reward = task.format_reward
        if isinstance(task, Demonstrator):
            draw = task.demonstrations

            def demonstrations(n: int, seed: int) -> list[tuple[Prompt, str]]:
                return [(wrap(p), text) for p, text in draw(n, seed)]

            self.demonstrations = demonstrations

    def reward(self, response_text: str, reference: str | None) -> float:
        """Reward of one response, the task's own."""
        return self._reward(response_text, reference)


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
