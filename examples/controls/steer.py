"""STEER: a smaller weight for every token that is predicted to move entropy, up or down.

    Ω_ik = A_i (1 − π_ik)(s_ik + H_ik),     c'_ik = c_ik (1 − x)^(|Ω_ik| / max(max |Ω|, Ω₀))

The maximum is over the tokens of the batch, so the weight lies between 1 − x and 1. The sign of Ω
is not used.
Source: zz-haooo/STEER, `compute_token_weights` with `linear=False` (arXiv 2510.10150): x = .2 and
Ω₀ = .02. There Ω = (A/π_old) π (1 − π)(s + H), which is the same on a fresh batch.

Different here: the maximum is of the batch instead of a micro-batch, π is that of the sampler also
in later updates of one batch, and the scale of A is that of the objective.
"""

from typing import ClassVar

from isentrope.control.base import Positive, Rewritten, Share, TokenRule, options


@options
class Steer(TokenRule):
    """Damp tokens by the size of their predicted change of entropy.

    Attributes:
        strength: x, the share of its weight that the token of the largest |Ω| loses.
        smallest: Ω₀; where no |Ω| is as large, no token loses as much as x.
    """

    strength: Share = 0.2
    smallest: Positive = 0.02
    targetable: ClassVar[bool] = False

    def apply(self, tokens, strength):
        """Damp tokens."""
        s = tokens.logprobs
        size = (tokens.token_advantages * s.expm1() * (s + tokens.entropies)).abs()
        largest = size.max().clamp_min(self.smallest)
        return Rewritten(tokens.weights * (1 - strength) ** (size / largest))
