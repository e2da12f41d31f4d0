"""Prompts named and encoded for a policy.

The key is the same in every process and every run: tasks define theirs ("gsm8k/train/17"), bare
text and bare token ids get a digest of their content.
"""

import json
import logging
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from isentrope.policy.language_model import Policy
from isentrope.sampling.chat_template import render_chats
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.prompt import Message, Prompt
from isentrope.sampling.tasks.lines import NO_COLUMNS, source_of
from isentrope.system.files import short_digest

_LOG = logging.getLogger("isentrope")

PromptLike = Prompt | str | Sequence[int] | Sequence[Message] | Mapping[str, Any] | Tensor
"""A prompt, its text, its messages, its token ids, or a row of a data set with its columns."""


def as_prompts(policy: Policy, prompts: Iterable[PromptLike]) -> list[Prompt]:
    """Encode prompts for a policy.

    Args:
        policy: Gives the tokenizer and the vocabulary size.
        prompts: Prompts, texts, conversations (lists of messages), token ids (lists or 1-D
            tensors), or rows of data, in any mixture.

    Returns:
        Prompts with `token_ids` set.

    Raises:
        ValueError: If there is no prompt, one is not understood, is empty, out of vocabulary or
            longer than the model's positions can hold, or text is given to a policy without
            tokenizer.
    """
    named = name_prompts(prompts)
    missing = [i for i, p in enumerate(named) if p.token_ids is None]
    if missing and policy.tokenizer is None:
        raise ValueError(
            f"Prompt {named[missing[0]].key!r} is text, but the policy has no tokenizer: save "
            "it into the checkpoint's folder by tokenizer.save_pretrained(FOLDER), or give token "
            "ids (prompt_ids)."
        )
    texts = {i: named[i].text or "" for i in missing}
    if chats := [i for i in missing if named[i].messages is not None]:
        if not getattr(policy.tokenizer, "chat_template", None):
            raise ValueError(
                f"Prompt {named[chats[0]].key!r} is a conversation, and the tokenizer has no chat "
                "template: give texts, or save the checkpoint with a tokenizer that has one."
            )
        conversations = [(named[i].messages or (), named[i].template) for i in chats]
        texts.update(zip(chats, render_chats(policy.tokenizer, conversations), strict=True))
    for i, text in texts.items():
        # a chat template has its own special tokens
        plain = named[i].messages is None
        (ids,) = encode_texts(policy, [text], [f"Prompt {named[i].key!r}"], special=plain)
        named[i] = replace(named[i], token_ids=tuple(ids))
    _warn_of_unknown(policy.tokenizer, [named[i] for i in missing])
    texts_of = [named[i] for i in missing if named[i].messages is None]
    _warn_of_two_starts(policy.tokenizer, texts_of)
    _require_vocabulary(policy, named)
    return named


def _warn_of_two_starts(tokenizer: Any, prompts: Sequence[Prompt]) -> None:
    """Warn of texts that have the token of the start, to which the tokenizer adds another."""
    start = getattr(tokenizer, "bos_token_id", None)
    if start is not None and any((p.token_ids or ())[:2] == (start, start) for p in prompts):
        _warn_once(
            f"The text of a prompt begins with {tokenizer.bos_token}, and the tokenizer puts "
            "another before it, as it does in TRL: the policy reads both. Give conversations as "
            "`messages`, or texts without it, if training had one."
        )


@cache
def _warn_once(sentence: str) -> None:
    """Log a sentence, which every batch of a process would repeat."""
    _LOG.warning(sentence)


def _warn_of_unknown(tokenizer: Any, prompts: Sequence[Prompt]) -> None:
    """Warn of texts with parts that the tokenizer does not know."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    name = getattr(tokenizer, "unk_token", "")
    if unknown is None:
        return
    misread = [p for p in prompts if unknown in (p.token_ids or ()) and name not in p.content]
    if misread:
        _LOG.warning(
            "The tokenizer does not know all of %d prompt(s): what it does not know is read as %s. "
            "The first is %s.",
            len(misread),
            name,
            reprlib.repr(misread[0].content),
        )


def name_prompts(prompts: Iterable[PromptLike]) -> list[Prompt]:
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
    named = [_name_prompt(p) for p in prompts]
    if not named:
        raise ValueError("The dataset is empty: there is no prompt to draw from.")
    without = [p.key for p in named if p.group is None]
    if 0 < len(without) < len(named):
        raise ValueError(f"Prompt {without[0]!r} has no group, and others have: give all or none.")
    return named


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


def runs_of(prompts: Sequence[Prompt]) -> Tensor:
    """Number the prompt draws where consecutive responses to one prompt are one draw.

    Args:
        prompts: The prompt of each response.

    Returns:
        (n,) integers from 0.
    """
    new = [before.key != prompt.key for before, prompt in pairwise(prompts)]
    return torch.tensor([0, *accumulate(new)])


def require_room(policy: Policy, prompts: Iterable[Prompt], max_new_tokens: int) -> None:
    """Refuse prompts that leave no room for their response in the model's context.

    Args:
        policy: Gives the model's longest sequence.
        prompts: Encoded prompts.
        max_new_tokens: Longest response in tokens, >= 1.

    Raises:
        ValueError: Naming the first prompt that is too long, or if `max_new_tokens` is < 1.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}.")
    context = policy.context
    for prompt in prompts:
        length = len(prompt.token_ids or ())
        if context is not None and length + max_new_tokens > context:
            raise ValueError(
                f"Prompt {prompt.key!r} has {length} tokens; with max_new_tokens={max_new_tokens} "
                f"that is more than the model's {context} positions. Omit the prompt, or "
                "lower max_new_tokens (sampling.max_new_tokens)."
            )


def _name_prompt(prompt: PromptLike) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return Prompt(f"text/{_digest(prompt)}", text=prompt)
    if isinstance(prompt, Mapping):
        return prompt_of_row(prompt, "A row of prompts")
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
        messages: list[Any] = list(prompt)
        for i, message in enumerate(messages):
            complete = isinstance(message, Mapping) and "role" in message and "content" in message
            if not complete or not isinstance(message["content"], str):
                raise ValueError(
                    f"Message {i} of a conversation needs 'role' and a text in 'content', got "
                    f"{message!r}."
                )
        turns = tuple(map(dict, messages))
        return Prompt(f"chat/{_digest(json.dumps(turns, sort_keys=True))}", messages=turns)
    try:
        ids = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"A prompt is a Prompt, a text or token ids, got {prompt!r}.") from error
    if ids.ndim != 1 or ids.numel() == 0 or ids.is_floating_point():
        raise ValueError(
            f"Token ids of a prompt are a non-empty 1-D list of integers, got shape "
            f"{tuple(ids.shape)} and dtype {ids.dtype}."
        )
    values = tuple(int(i) for i in ids)
    return Prompt(f"ids/{_digest(','.join(map(str, values)))}", token_ids=values)


def prompt_of_row(row: Mapping[str, Any], where: str) -> Prompt:
    """The prompt of a row of data, with its other columns for reward functions.

    Args:
        row: Has one of "prompt", "messages" and "prompt_ids".
        where: What messages call it.

    Returns:
        The prompt; named by its content where the row has no "key".

    Raises:
        ValueError: If the row has no prompt, or one that is not understood.
    """
    source = source_of(row, where)
    try:
        named = _name_prompt(row[source])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    labels = {name: row.get(name) for name in ("key", "reference", "group")}
    columns = {name: value for name, value in row.items() if name not in NO_COLUMNS}
    texts = {name: str(label) for name, label in labels.items() if label is not None}
    return replace(named, **texts, columns=columns)


def _digest(text: str) -> str:
    return short_digest(text, 8).hex()


def _require_vocabulary(policy: Policy, prompts: Iterable[Prompt]) -> None:
    size = policy.model.get_input_embeddings().weight.shape[0]
    for prompt in prompts:
        ids = prompt.token_ids or ()
        if not ids:
            raise ValueError(f"Prompt {prompt.key!r} is empty: its text has no token.")
        if min(ids) < 0 or max(ids) >= size:
            raise ValueError(
                f"Prompt {prompt.key!r} has token id {max(ids) if max(ids) >= size else min(ids)}, "
                f"outside the model's vocabulary of {size}: it was encoded with another tokenizer."
            )
