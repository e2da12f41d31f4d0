"""The tokens that end a response, and the one that pads prompts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast


def end_tokens(chosen: int | Iterable[int] | None, tokenizer: Any, lm: Any) -> tuple[int, ...]:
    """Every token that ends a response, each once.

    Args:
        chosen: One token or several; None: those of the tokenizer and of the model's generation
            config, else of its config.
        tokenizer: A tokenizer, or None.
        lm: The causal LM.

    Returns:
        The tokenizer's own first; empty for none.

    Raises:
        ValueError: If it is no token id.
    """

    def listed(value: Any) -> list[int]:
        if value is None:
            return []
        values = cast("Iterable[Any]", value) if isinstance(value, Iterable) else (value,)
        try:
            return [int(x) for x in values]
        except (TypeError, ValueError) as error:
            raise ValueError(f"eos_token_id is {value!r}, not one token id or several.") from error

    if chosen is not None:
        return tuple(dict.fromkeys(listed(chosen)))
    generation = getattr(lm, "generation_config", None)
    ends = [getattr(source, "eos_token_id", None) for source in (tokenizer, generation)]
    named = [token for value in ends for token in listed(value)]
    return tuple(dict.fromkeys(named or listed(getattr(lm.config, "eos_token_id", None))))


def padding_token(chosen: int | None, tokenizer: Any, config: Any) -> int | None:
    """The token that pads prompts.

    Args:
        chosen: A token; None: the tokenizer's, else that of the model's config.
        tokenizer: A tokenizer, or None.
        config: The model's configuration.

    Returns:
        The token, the first where several are named; None for none.
    """
    for value in (chosen, *(getattr(x, "pad_token_id", None) for x in (tokenizer, config))):
        if value is not None:
            return cast("list[int]", value)[0] if isinstance(value, list) else value
    return None
