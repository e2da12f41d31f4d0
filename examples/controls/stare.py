"""STARE: a larger weight for the most surprising rewarded tokens, a smaller one for punished ones.

    c'_ik = (1 + x) c_ik   the share q of lowest s among the tokens with A > 0
    c'_ik = (1 − x) c_ik   the same among those with A < 0, with sides = "both"

Source: hp-luo/STARE, `compute_stare_token_weights` (arXiv 2606.19236): q = .1, x = .1; variant O1
is sides = "positive", C2 is "both".

Different here: the source acts only while h < .3 and moves x by ± .01 per step, up to .5; here
the feedback scales x, with either sign, and the quantile is of the batch instead of a micro-batch.
"""

from typing import ClassVar, Literal

from isentrope.control.base import Part, Rewritten, Signed, TokenRule, lowest_share, options


@options
class Stare(TokenRule):
    """Weight the most surprising tokens.

    Attributes:
        strength: x.
        share: q.
        sides: "positive" or "both".
    """

    strength: Signed = 0.1
    share: Part = 0.1
    sides: Literal["positive", "both"] = "positive"
    two_sided: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (1.0, 3.0, 10.0)

    def apply(self, tokens, strength):
        """Weight tokens."""
        A, s = tokens.token_advantages, tokens.logprobs
        factor = 1 + strength * lowest_share(s, A > 0, self.share).double()
        if self.sides == "both":
            factor -= strength * lowest_share(s, A < 0, self.share).double()
        return Rewritten(tokens.weights * factor)
