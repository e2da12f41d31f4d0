"""Classes of positions of E, each decided by what stands before the position (`price`).

    first token     the first of a response
    high entropy    the fifth of E's tokens with the highest H_k
    after /…/       the text before the position ends in a pattern
    solved prompt   the other responses to the prompt earn more than half, on average
    unsolved prompt the others

A response is no part of what decides that its prompt is solved: it would select itself.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.units import Units
from isentrope.policy.token_statistics import Scores
from isentrope.system.errors import IsentropeError

HIGH = 0.8
"""Quantile of H above which an entropy is high; the fifth above is that of arXiv 2506.01939."""

WINDOW = 64
"""Tokens before a position that a pattern sees. Where there are more, "…" stands for them."""


def position_classes(
    E: Rollouts, scores: Scores, *, pattern: str | None = None, tokenizer: Any = None
) -> dict[str, Tensor]:
    """The classes of positions that a batch has.

    Args:
        E: n responses; solved and unsolved prompts need rewards and several responses to a prompt.
        scores: At θ.
        pattern: A regular expression; its class has the positions at which it has just matched.
        tokenizer: Decodes what a pattern reads.

    Returns:
        (n, t) bool by name. Without a pattern, rewards or repeated prompts the class is absent.

    Raises:
        IsentropeError: If the pattern is none, or matches nowhere.
    """
    mask = scores.mask
    first = torch.zeros_like(mask)
    first[:, 0] = True
    threshold = scores.entropies[mask].quantile(HIGH)
    classes = {"first token": first & mask, "high entropy": (scores.entropies >= threshold) & mask}
    if pattern is not None:
        classes[f"after /{pattern}/"] = _after(E, mask, pattern, tokenizer)
    solved = solved_prompts(E)
    if solved is not None:
        known, solved = solved.isfinite()[:, None], (solved > 0.5)[:, None]
        classes |= {
            "solved prompt": mask & known & solved,
            "unsolved prompt": mask & known & ~solved,
        }
    return classes


def solved_prompts(E: Rollouts) -> Tensor | None:
    """What the other responses to a prompt earn, between the lowest and the highest reward of E.

    Args:
        E: n responses.

    Returns:
        (n,) in 0 .. 1, NaN for the only response to a prompt; None where E has no rewards, one
        reward only, or no prompt twice.
    """
    if E.rewards is None or bool((E.rewards == E.rewards[0]).all()):
        return None
    units = Units.of(E.prompt_index)
    if units.count == len(E):
        return None
    low, high = E.rewards.min(), E.rewards.max()
    earned = ((E.rewards - low) / (high - low)).double()
    others = units.sums(earned)[units.place] - earned
    return others / (units.sizes[units.place] - 1)  # 0/0 is NaN for an only response


def _after(E: Rollouts, mask: Tensor, pattern: str, tokenizer: Any) -> Tensor:
    """(n, t) whether the text before each token ends in a match."""
    try:
        ends = re.compile(rf"(?:{pattern})\Z")
    except re.error as error:
        raise IsentropeError(f"{pattern!r} is no regular expression: {error}.") from error
    found = torch.zeros_like(mask)
    for i, response in enumerate(E.response_ids):
        ids = [int(token) for token in response]
        for k in range(len(ids)):
            cut = max(0, k - WINDOW)
            text = ("…" if cut else "") + tokenizer.decode(ids[cut:k])
            found[i, k] = ends.search(text) is not None
    found &= mask
    if not bool(found.any()):
        raise IsentropeError(
            f"The text before no token of E ends in /{pattern}/, so there is no such position."
        )
    return found
