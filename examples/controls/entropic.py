"""EntroPIC: likely tokens are pushed down, or up, whatever the sign of their advantage.

    c'_ik = c_ik + w_i α |A_i| 1{token among the likely},     α = −strength

Source: yk7333/EntroPIC, `core_algos.py`, `dp_actor.py` (arXiv 2511.15248):
α = clip(k_p e + k_i Σe, −1, 1), e = h − h*, k_p = 1, k_i = .01, h* = .1; likely is π > .95. A
positive strength raises entropy, as in every control here.

Different here: the likely tokens are a share of the batch, those with the highest log-probability,
and the published threshold is an option. The source takes its term as a mean over the likely tokens
alone; here it has the weight w_i of every token, so it is smaller by their share. Feedback replaces
the source's own controller.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from isentrope.control.base import Part, Rewritten, Signed, TokenRule, lowest_share, options


@options
class EntroPIC(TokenRule):
    """Push likely tokens.

    Attributes:
        strength: −α.
        share: Share of the batch's tokens that counts as likely.
        threshold: Smallest π of a likely token (.95 in the source), used instead of the share; null
            for the share.
    """

    strength: Signed = 0.1
    share: Part = 0.5
    threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    two_sided: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (1.0, 3.0, 10.0)

    def apply(self, tokens, strength):
        """Push tokens."""
        if self.threshold is None:
            likely = lowest_share(-tokens.logprobs, tokens.mask, self.share)
        else:
            likely = tokens.mask & (tokens.logprobs.exp() > self.threshold)
        return Rewritten(tokens.weights - strength * tokens.weights.abs() * likely)
