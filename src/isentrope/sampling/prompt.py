"""A prompt: a stable key, text, messages or token ids, and the reference answer of a task."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isentrope.system.one_line import one_line, quoted

Message = Mapping[str, Any]
"""One turn of a conversation: "role" and "content", and what else the chat template reads."""


@dataclass(frozen=True)
class Prompt:
    """One prompt; text, messages or token ids must be there, and token ids win where several are.

    Attributes:
        key: Stable identifier.
        text: What the tokenizer encodes, special tokens added as the tokenizer does by default.
        token_ids: The encoded prompt.
        reference: Reference answer for the task's reward.
        messages: A conversation, each message with "role" and "content", that the tokenizer's
            chat template turns into text.
        template: Arguments of the chat template, such as {"enable_thinking": False}.
        group: What results are broken down by: an environment, a turn, a difficulty.
        columns: What else the data says of it, for reward functions, by name.
    """

    key: str
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    reference: str | None = None
    messages: tuple[Message, ...] | None = field(default=None, hash=False)
    template: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    group: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        if self.text is None and self.token_ids is None and self.messages is None:
            raise ValueError(f"Prompt {self.key!r} has neither text, messages nor token ids.")
        if self.token_ids is not None and len(self.token_ids) == 0:
            raise ValueError(f"Prompt {self.key!r} is empty: it has no token.")

    def __repr__(self) -> str:
        facts = [] if self.reference is None else [f"reference {quoted(self.reference)}"]
        return one_line(self, f"{quoted(self.key)}, {quoted(self.content)}", *facts)

    @property
    def content(self) -> str:
        """What the prompt says, encoded or not: equal for prompts with equal content."""
        if self.text is not None:
            return self.text
        if self.messages is not None:
            return json.dumps([self.messages, dict(self.template)], sort_keys=True)
        return ",".join(map(str, self.token_ids or ()))
