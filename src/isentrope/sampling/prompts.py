"""Prompts encoded for a policy, and whether its context has room for them."""

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
from isentrope.sampling.prompt import Message, Prompt, name_prompts

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
    encoded = name_prompts(prompts)
    missing = [i for i, p in enumerate(encoded) if p.token_ids is None]
    if missing and policy.tokenizer is None:
        raise ValueError(
            f"Prompt {encoded[missing[0]].key!r} is text, but the policy has no tokenizer: save "
            "it into the checkpoint's folder by tokenizer.save_pretrained(FOLDER), or give token "
            "ids (prompt_ids)."
        )
    texts = {i: encoded[i].text or "" for i in missing}
    if chats := [i for i in missing if encoded[i].messages is not None]:
        if not getattr(policy.tokenizer, "chat_template", None):
            raise ValueError(
                f"Prompt {encoded[chats[0]].key!r} is a conversation, and the tokenizer has no "
                "chat template: give texts, or save the checkpoint with a tokenizer that has one."
            )
        conversations = [(encoded[i].messages or (), encoded[i].template) for i in chats]
        texts.update(zip(chats, render_chats(policy.tokenizer, conversations), strict=True))
    for i, text in texts.items():
        # a chat template has its own special tokens
        plain = encoded[i].messages is None
        (ids,) = encode_texts(policy, [text], [f"Prompt {encoded[i].key!r}"], special=plain)
        encoded[i] = replace(encoded[i], token_ids=tuple(ids))
    _warn_of_unknown(policy.tokenizer, [encoded[i] for i in missing])
    texts_of = [encoded[i] for i in missing if encoded[i].messages is None]
    _warn_of_two_starts(policy.tokenizer, texts_of)
    _require_vocabulary(policy, encoded)
    return encoded


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
