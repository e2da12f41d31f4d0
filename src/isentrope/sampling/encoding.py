"""Texts as token ids: the only module that gives a text to a tokenizer.

Encoding takes hundreds of bytes per character, and a text may come from any file. What no context
of the model can hold is refused by its length first, prompts and responses alike.
"""

from collections.abc import Sequence
from typing import Any

from isentrope.policy.language_model import Policy

_SHORT = 16
"""Characters per position up to which a text is encoded without another look."""


def encode_texts(
    policy: Policy, texts: Sequence[str], names: Sequence[str], *, special: bool = False
) -> list[list[int]]:
    """Encode texts that the model's positions can hold.

    Args:
        policy: Gives the tokenizer and the number of positions.
        texts: What to encode.
        names: What each text is, the beginning of a sentence: "Prompt 'sum/3'".
        special: Whether the tokenizer adds its special tokens, as it does by default.

    Returns:
        Token ids of each text.

    Raises:
        ValueError: If a text has more characters than all positions could hold; none is encoded.
    """
    positions = policy.context
    if positions is not None:
        for text, name in zip(texts, names, strict=True):
            if len(text) > _SHORT * positions:
                _require_encodable(policy, positions, text, name)
    if not texts:
        return []
    encoded = policy.tokenizer(list(texts), add_special_tokens=special)["input_ids"]
    return [list(ids) for ids in encoded]


def count_prompt_tokens(tokenizer: Any, text: str) -> int:
    """Number of tokens of a prompt, where there is a tokenizer and no policy."""
    return len(tokenizer(text)["input_ids"])


def _require_encodable(policy: Policy, positions: int, text: str, name: str) -> None:
    longest = max(map(len, policy.tokenizer.get_vocab()))
    if len(text) > longest * positions:
        raise ValueError(
            f"{name} has {len(text)} characters, more than the model's {positions} positions can "
            f"hold at {longest} characters per token. Omit it."
        )
