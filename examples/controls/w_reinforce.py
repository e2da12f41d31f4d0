"""W-REINFORCE: incorrect responses are punished, correct ones are rewarded with a small weight.

    A' = −1 where R < right,     A' = λ where R ≥ right,     c'_ik = w_i ((1 − x) A_i + x A'_i)

λ = 0 is NSR, negative sample reinforcement. Source: TianHongZXY/RLVR-Decomposed,
`compute_psr_nsr_outcome_advantage` (arXiv 2506.01347); λ = .1, x = 1.

Different here: with λ = 0 the source takes correct responses out of the batch, so that its mean
is over the others; here w_i stays. Groups whose rewards are all equal are redrawn as
without a control, where the source also learns from all-incorrect groups: it has no baseline that
would make their advantages zero.
"""

import torch

from isentrope.control.base import NotNegative, Share, TokenRule, mixed, options


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
