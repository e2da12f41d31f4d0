"""Pass@k training: advantages for at least one correct response among k.

    ρ = 1 − C(n−c, k)/C(n, k),   σ = √(ρ(1−ρ)),     of n responses to a prompt, c of them correct
    correct: A' = (1 − ρ)/σ,     incorrect: A' = (1 − ρ − C(n−c−1, k−1)/C(n−1, k−1))/σ

and c'_ik = w_i ((1 − x) A_i + x A'_i). A' is 0 where σ is. Source: RUCAIBox/Passk_Training,
`code/passk_adv.py` (arXiv 2508.10751).

Different here: σ is not made larger by 1e-6. Groups whose rewards are all equal are redrawn as
without a control; their A' would be 0. With k near the size of a group most groups have ρ = 1 and
no advantage: use larger groups then, as the source does.
"""

from math import comb, sqrt
from typing import Annotated

import torch
from pydantic import Field

from isentrope.control.base import Share, TokenRule, mixed, options


@options
class PassAtK(TokenRule):
    """Replace advantages by those of pass@k.

    Attributes:
        strength: x, the weight of these advantages against the batch's own.
        k: Number of responses of which at least one has to be correct.
        right: Smallest reward of a correct response.
    """

    strength: Share = 1.0
    k: Annotated[int, Field(ge=2)] = 4
    right: float = 1.0

    def refusal(self, group_size):
        """Groups that have no advantage."""
        if self.k < group_size:
            return ""
        return (
            f"k={self.k} leaves no group of {group_size} responses an advantage: k must be smaller"
        )

    def apply(self, tokens, strength):
        """Replace advantages.

        Args:
            tokens: The batch.
            strength: x.

        Returns:
            c'.

        Raises:
            ValueError: If a group has fewer than k responses.
        """
        replacement = torch.zeros_like(tokens.advantages)
        for group in tokens.group.unique():
            here = tokens.group == group
            correct, n = tokens.rewards[here] >= self.right, int(here.sum())
            if n < self.k:
                raise ValueError(f"pass_at_k with k={self.k} needs {self.k} responses, not {n}.")
            right, wrong = advantages(n, int(correct.sum()), self.k)
            replacement[here] = torch.full_like(tokens.rewards[here], wrong).masked_fill(
                correct, right
            )
        return mixed(tokens, replacement, strength)


def advantages(n: int, correct: int, k: int) -> tuple[float, float]:
    """The advantages of a correct and of an incorrect response.

    Args:
        n: Number of responses of the group.
        correct: Number of correct responses among them.
        k: Number of responses of which at least one has to be correct.

    Returns:
        Both; 0 where every, or no, subset of k responses contains a correct one.
    """
    rho = 1 - comb(n - correct, k) / comb(n, k)
    sigma = sqrt(rho * (1 - rho))
    if sigma == 0:
        return 0.0, 0.0
    without = comb(n - correct - 1, k - 1) / comb(n - 1, k - 1)
    return (1 - rho) / sigma, (1 - rho - without) / sigma
