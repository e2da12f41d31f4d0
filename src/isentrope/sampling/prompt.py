"""A prompt: a stable key, text, messages or token ids, and the reference answer of a task.

The key is the same in every process and every run: tasks define theirs ("gsm8k/train/17"), bare
text and bare token ids get a digest of their content. No library of tensors is imported here.
"""

import json
import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast, runtime_checkable

from isentrope.sampling.tasks.lines import NO_COLUMNS, source_of
from isentrope.system.files import short_digest
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


def name_prompts(prompts: Iterable[Any]) -> list[Prompt]:
    """Give every prompt its key, without encoding it.

    Args:
        prompts: Prompts, texts, or token ids.

    Returns:
        At least one prompt, in the order given.

    Raises:
        ValueError: If there is no prompt, one is not understood, or some have a group and some
            have none.
    """
    if isinstance(prompts, str):
        raise ValueError("prompts is one text; give a list of prompts, such as [text].")
    named_prompts = [_name_prompt(p) for p in prompts]
    if not named_prompts:
        raise ValueError("The dataset is empty: there is no prompt to draw from.")
    without = [p.key for p in named_prompts if p.group is None]
    if 0 < len(without) < len(named_prompts):
        raise ValueError(f"Prompt {without[0]!r} has no group, and others have: give all or none.")
    return named_prompts


def first_prompts(prompts: Sequence[Prompt], number: int) -> Sequence[Prompt]:
    """The prompts of a U that takes them in turn, each once.

    Args:
        prompts: The prompts, in their order.
        number: Prompt groups of U.

    Returns:
        So many.

    Raises:
        ValueError: If fewer of the first prompts differ.
    """
    first = prompts[:number]
    distinct = len({prompt.content for prompt in first})
    if distinct < number:
        raise ValueError(
            f"batch_config.fixed_prompts=true takes the first {number} prompts (batch_config.B_U), "
            f"and {distinct} of them differ: set B_U to {distinct} or less, or fixed_prompts=E."
        )
    return first


def with_template(prompts: Sequence[Prompt], template: Mapping[str, Any] | None) -> list[Prompt]:
    """Give conversations the arguments of the chat template that training rendered them with.

    Args:
        prompts: Prompts; texts, token ids and conversations with arguments of their own stay.
        template: The arguments; None or empty for none.

    Returns:
        The prompts, in the order given.
    """
    bare = [bool(template) and p.messages is not None and not p.template for p in prompts]
    pairs = zip(prompts, bare, strict=True)
    return [replace(p, template=dict(template or {})) if new else p for p, new in pairs]


def _name_prompt(prompt: Any) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return Prompt(f"text/{_digest(prompt)}", text=prompt)
    if isinstance(prompt, Mapping):
        return prompt_of_row(cast(Mapping[str, Any], prompt), "A row of prompts")
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
        messages = list(cast(Sequence[Any], prompt))
        for i, message in enumerate(messages):
            complete = isinstance(message, Mapping) and "role" in message and "content" in message
            if not complete or not isinstance(message["content"], str):
                raise ValueError(
                    f"Message {i} of a conversation needs 'role' and a text in 'content', got "
                    f"{message!r}."
                )
        turns = tuple(map(dict, messages))
        return Prompt(f"chat/{_digest(json.dumps(turns, sort_keys=True))}", messages=turns)
    values = _list_ids(prompt)
    return Prompt(f"ids/{_digest(','.join(map(str, values)))}", token_ids=values)


def _list_ids(prompt: Any) -> tuple[int, ...]:
    """The token ids of a list, or of an array of any library."""
    ids = prompt.tolist() if isinstance(prompt, _Array) else prompt
    if not isinstance(ids, Sequence):
        raise ValueError(f"A prompt is a Prompt, a text or token ids, got {reprlib.repr(prompt)}.")
    try:
        values = tuple(map(operator.index, cast(Sequence[Any], ids)))
    except TypeError:
        values = ()
    if not values:
        raise ValueError(
            f"Token ids of a prompt are a non-empty 1-D list of integers, got "
            f"{reprlib.repr(prompt)}."
        )
    return values


def prompt_of_row(row: Mapping[str, Any], place: str) -> Prompt:
    """The prompt of a row of data, with its other columns for reward functions.

    Args:
        row: Has one of "prompt", "messages" and "prompt_ids".
        place: What messages call it.

    Returns:
        The prompt; named by its content where the row has no "key".

    Raises:
        ValueError: If the row has no prompt, or one that is not understood.
    """
    source = source_of(row, place)
    try:
        prompt = _name_prompt(row[source])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    labels = {name: row.get(name) for name in ("key", "reference", "group")}
    columns = {name: value for name, value in row.items() if name not in NO_COLUMNS}
    texts = {name: str(label) for name, label in labels.items() if label is not None}
    return replace(prompt, **texts, columns=columns)


@runtime_checkable
class _Array(Protocol):
    """An array of a library of tensors."""

    def tolist(self) -> Any:
        """Its numbers, in lists as deep as it has dimensions."""
        ...


def _digest(text: str) -> str:
    return short_digest(text, 8).hex()
