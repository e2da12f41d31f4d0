"""Prompts that are taken in turn and come again: each counts once, or they are refused.

Draws at random of one prompt are independent of each other. Repetitions in turn are not: errors
over them would be too small by the square root of how often each comes.
"""

import torch

from isentrope.nouns.rollout_columns import numbered
from isentrope.nouns.rollouts import Rollouts


def by_distinct_prompt(E: Rollouts) -> Rollouts:
    """E whose responses to one prompt are one group, however often the prompt came in turn.

    Args:
        E: Responses to prompts that were not drawn at random.

    Returns:
        E with the groups over which its errors are.
    """
    return E.with_columns(prompt_index=torch.tensor(numbered(E.prompt_ids)))
