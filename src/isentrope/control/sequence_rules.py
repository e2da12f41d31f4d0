"""Controls that change the advantages of whole responses.

W-REINFORCE: incorrect responses are punished, correct ones are rewarded with a small weight.

    A' = −1 where R < right,     A' = λ where R ≥ right,     c'_ik = w_i ((1 − x) A_i + x A'_i)

λ = 0 is NSR, negative sample reinforcement. Source: TianHongZXY/RLVR-Decomposed,
`compute_psr_nsr_outcome_advantage` (arXiv 2506.01347); λ = .1, x = 1.

Different here: with λ = 0 the source takes correct responses out of the batch, so that its mean
is over the others; here w_i stays. Groups whose rewards are all equal are redrawn as
without a control, where the source also learns from all-incorrect groups: it has no baseline that
would make their advantages zero.

QAE: the baseline is a quantile of the group's rewards instead of their mean.

    A'_i = R_i − Q_K(rewards of the group),     c'_ik = w_i ((1 − x) A_i + x A'_i)

Q_K is the least reward r such that a share K of the group's rewards or more is ≤ r. With rewards of
0 and 1, hard prompts (pass rate ≤ 1 − K) contribute through their correct responses alone, easy
ones through their incorrect ones. Source: junkangwu/QAE (arXiv 2509.22611); K = .4, or .6 where
entropy collapses.

Different here: A' is not divided by the group's standard deviation.

Pass@k training: advantages for at least one correct response among k.

    ρ = 1 − C(n−c, k)/C(n, k),   σ = √(ρ(1−ρ)),     of n responses to a prompt, c of them correct
    correct: A' = (1 − ρ)/σ,     incorrect: A' = (1 − ρ − C(n−c−1, k−1)/C(n−1, k−1))/σ

and c'_ik = w_i ((1 − x) A_i + x A'_i). A' is 0 where σ is. Source: RUCAIBox/Passk_Training,
`code/passk_adv.py` (arXiv 2508.10751).

Different here: σ is not made larger by 1e-6. Groups whose rewards are all equal are redrawn as
without a control; their A' would be 0. With k near the size of a group most groups have ρ = 1 and
no advantage: use larger groups then, as the source does.

Entrocraft: only incorrect responses if entropy is too low, only correct ones if it is too high.

    x > 0:  c'_ik = (1 − x) c_ik where A > 0,     x < 0:  c'_ik = (1 − |x|) c_ik where A < 0

Source: lblaoke/entrocraft, `compute_grpo_range_outcome_advantage` (arXiv 2604.26326): h above a
band: positives only, below it: negatives only, inside: the plain objective.

Different here: the source switches, with rewards ±1 instead of advantages; here one sign is
damped in proportion to the feedback, and the other keeps its advantages. With a small
feedback.limit it switches too. Groups whose rewards are all equal are redrawn as without a control.
"""

from math import ceil, comb, sqrt
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from isentrope.control.base import (
    NotNegative,
    Part,
    Rewritten,
    Share,
    Signed,
    TokenRule,
    mixed,
    options,
)


@options
class WReinforce(TokenRule):
    """Replace advantages by ±1, the correct ones scaled.

    Attributes:
        strength: x, the weight of these advantages against the batch's own.
        positive: λ.
        right: Smallest reward of a correct response.
    """

    strength: Share = 1.0
    positive: NotNegative = 0.1
    right: float = 1.0

    def apply(self, tokens, strength):
        """Replace advantages."""
        replacement = torch.full_like(tokens.advantages, -1.0)
        replacement[tokens.rewards >= self.right] = self.positive
        return mixed(tokens, replacement, strength)


@options
class QuantileAdvantage(TokenRule):
    """Replace the baseline of the advantages.

    Attributes:
        strength: x, the weight of these advantages against the batch's own.
        quantile: K.
    """

    strength: Share = 1.0
    quantile: Part = 0.4

    def apply(self, tokens, strength):
        """Replace the baseline."""
        baseline = torch.zeros_like(tokens.rewards)
        for group in tokens.group.unique():
            here = tokens.group == group
            rewards = tokens.rewards[here].sort().values
            baseline[here] = rewards[ceil(self.quantile * len(rewards) - 1e-9) - 1]
        return mixed(tokens, tokens.rewards - baseline, strength)


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


@options
class Entrocraft(TokenRule):
    """Damp the tokens of one sign of the advantage.

    Attributes:
        strength: x.
    """

    strength: Signed = 1.0
    two_sided: ClassVar[bool] = True

    def apply(self, tokens, strength):
        """Damp one sign."""
        damped = tokens.token_advantages * strength > 0
        return Rewritten(tokens.weights * (1 - abs(strength) * damped.double()))
