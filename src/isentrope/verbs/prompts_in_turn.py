"""Prompts that are taken in turn and come again: each counts once, or they are refused.

Draws at random of one prompt are independent of each other. Repetitions in turn are not: errors
over them would be too small by the square root of how often each comes.
"""

from collections.abc import Sequence

import torch

from isentrope.nouns.rollout_columns import numbered
from isentrope.nouns.rollouts import Rollouts
from isentrope.sampling.prompt import Prompt


def by_distinct_prompt(E: Rollouts) -> Rollouts:
    """E whose responses to one prompt are one group, however often the prompt came in turn.

    Args:
        E: Responses to prompts that were not drawn at random.

    Returns:
        E with the groups over which its errors are.
    """
    return E.with_columns(prompt_index=torch.tensor(numbered(E.prompt_ids)))


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
