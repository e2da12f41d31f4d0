"""Classes of positions of E, each decided by what stands before the position (`price`).

    first token     the first of a response
    high entropy    the fifth of E's tokens with the highest H_k
    after /…/       the text before the position ends in a pattern
    solved prompt   the other responses to the prompt earn more than half, on average
    unsolved prompt the others

A response is no part of what decides that its prompt is solved: it would select itself.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.estimators.jackknife import Units
from isentrope.nouns.rollouts import Rollouts
from isentrope.system.errors import IsentropeError

HIGH_ENTROPY_CLASS = "high entropy"

HIGH = 0.8
"""Quantile of H above which an entropy is high; the fifth above is that of arXiv 2506.01939."""

PATTERN_WINDOW = 64
"""Tokens before a position that a pattern sees. Where there are more, "…" stands for them."""


def position_classes(
    E: Rollouts, entropies: Tensor, pattern: str | None = None, tokenizer: Any = None
) -> dict[str, Tensor]:
    """The classes of positions that a batch has.

    Args:
        E: Responses, with rewards where they are known.
        entropies: (n, t) H at θ, nats.
        pattern: A regular expression, for a class of its own; None for no such class.
        tokenizer: Decodes responses.

    Returns:
        (n, t) bool by name.

    Raises:
        IsentropeError: If the pattern is no regular expression.
    """
    mask = E.mask
    first = (torch.arange(mask.shape[1]) == 0).expand_as(mask)
    high = entropies >= entropies[mask].quantile(HIGH)
    classes = {"first token": first, HIGH_ENTROPY_CLASS: high}
    if pattern is not None:
        rows = find_matches(E.response_ids, pattern, tokenizer)
        classes[f"{_AFTER}/{pattern}/"] = pad_sequence(rows, batch_first=True)
    if (earnings := earnings_of_others(E.rewards, E.prompt_index)) is not None:
        # an only response has NaN and is in neither class
        classes["solved prompt"] = (earnings > 0.5)[:, None]
        classes["unsolved prompt"] = (earnings <= 0.5)[:, None]
    return {name: members & mask for name, members in classes.items()}


def earnings_of_others(rewards: Tensor | None, prompt_index: Tensor) -> Tensor | None:
    """What the other scored responses to a prompt earn, from the lowest to the highest reward of E.

    Args:
        rewards: (n,) the reward of each response; None where they are not known.
        prompt_index: (n,) its prompt draw.

    Returns:
        (n,) in 0 .. 1, NaN where no other response to the prompt is scored; None without rewards,
        with one reward only, or where no prompt has two responses.
    """
    units = Units.of(prompt_index)
    if rewards is None or units.count == len(rewards):
        return None
    scored = (~rewards.isnan()).double()
    of_scored = rewards[~rewards.isnan()]
    if not len(of_scored) or bool((of_scored == of_scored[0]).all()):
        return None
    low = of_scored.min()
    high = of_scored.max()
    earned = ((rewards - low) / (high - low)).double().nan_to_num(0.0)
    earnings = units.sums(earned)[units.place] - earned
    return earnings / (units.sums(scored)[units.place] - scored)  # 0/0 is NaN without another


def find_matches(responses: Sequence[Tensor], pattern: str, tokenizer: Any) -> list[Tensor]:
    """Where the text of a response so far ends in a match of a regular expression.

    Args:
        responses: Token ids of each response.
        pattern: The expression.
        tokenizer: Decodes them.

    Returns:
        (T,) bool for each response: whether the text before the token ends in a match.

    Raises:
        IsentropeError: If the pattern is no regular expression.
    """
    try:
        ends = re.compile(rf"(?:{pattern})\Z")
    except re.error as error:
        raise IsentropeError(f"{pattern!r} is no regular expression: {error}.") from error

    def before(ids: list[int], k: int) -> str:
        cut = max(0, k - PATTERN_WINDOW)
        return ("…" if cut else "") + tokenizer.decode(ids[cut:k])

    lists: list[list[int]] = [[*map(int, response)] for response in responses]
    return [
        torch.tensor([ends.search(before(ids, k)) is not None for k in range(len(ids))])
        for ids in lists
    ]


def require_matches(classes: Mapping[str, Tensor]) -> None:
    """Refuse a pattern that matches nowhere.

    Raises:
        IsentropeError: Naming it.
    """
    for name, mask in classes.items():
        if name.startswith(_AFTER) and not bool(mask.any()):
            pattern = name.removeprefix(_AFTER)
            raise IsentropeError(
                f"The text before no token of E ends in {pattern}, so there is no such position."
            )


def named_positions(E: Rollouts, name: str | None, tokenizer: Any) -> Tensor | None:
    """A class of positions by its name.

    Args:
        E: Responses with the entropies of their sampler.
        name: One of the classes, or a regular expression between slashes; None for no class.
        tokenizer: Decodes responses.

    Returns:
        (n, t) bool, which may be nowhere true; None for no class.

    Raises:
        IsentropeError: If E has no such class.
    """
    if name is None:
        return None
    pattern = re.fullmatch("(?s)/(.+)/", name)
    classes = position_classes(E, E.padded("sampler_entropies"), pattern and pattern[1], tokenizer)
    if (mask := classes.get(f"{_AFTER}{name}" if pattern else name)) is not None:
        return mask
    if name in CLASSES and E.rewards is not None:  # this once, all rewards are equal
        return torch.zeros_like(E.mask)
    raise IsentropeError(
        f"{name!r} is no class of positions here: choose one of {', '.join(classes)}, or a regular "
        "expression between slashes. Solved and unsolved prompts need the rewards."
    )


CLASSES = ("first token", HIGH_ENTROPY_CLASS, "solved prompt", "unsolved prompt")
"""Names of classes that are no pattern."""

_AFTER = "after "
