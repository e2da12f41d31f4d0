"""A task whose text prompts become the user's turn of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from isentrope.sampling.prompts import Message, Prompt
from isentrope.sampling.tasks.task import Task


class Conversations:
    """Another task's prompts as conversations; its rewards and demonstrations as they are.

    Attributes:
        prompts: The task's prompts, each with `messages`.
        reward: The task's own.
    """

    reward: Callable[[str, str | None], float]

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
        for name in ("reward", "format_reward", "demonstrations"):
            if hasattr(task, name):
                setattr(self, name, getattr(task, name))
        self.prompts = [_conversation(p, system_prompt, template or {}) for p in task.prompts]


def _conversation(prompt: Prompt, system: str | None, template: Mapping[str, Any]) -> Prompt:
    messages: tuple[Message, ...] = prompt.messages or ()
    if not messages:
        if prompt.text is None or prompt.token_ids is not None:
            raise ValueError(
                f"Prompt {prompt.key!r} is encoded already, so no chat template can be put around "
                "it: set chat_template=false, or give texts or messages."
            )
        messages = ({"role": "user", "content": prompt.text},)
    if system is not None and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": system}, *messages)
    return replace(prompt, text=None, messages=messages, template=dict(template))
