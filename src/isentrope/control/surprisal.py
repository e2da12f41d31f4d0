"""Controls by how surprising a token is: REPO-R, STARE, EntroPIC, Lp-Reg.

REPO-R: rare rewarded tokens have a larger weight, rare punished tokens a smaller one.

    A > 0:  A' = max(0, A (1 − ζ s)),     A < 0:  A' = min(0, A (1 + ζ s))

s ≤ 0, so with ζ > 0 a rare rewarded token is pushed up more and a rare punished one down less;
with ζ < 0 it is the reverse. Source: SkyRL, `examples/train/algorithms/repo_r` (arXiv
2603.11682).

Different here: the source starts at ζ = .001 and doubles or halves it at each step, between 1e-4
and .05, to reach a target; here the default is the largest published ζ, and the feedback scales it.

STARE: a larger weight for the most surprising rewarded tokens, a smaller one for punished ones.

    c'_ik = (1 + x) c_ik   the share q of lowest s among the tokens with A > 0
    c'_ik = (1 − x) c_ik   the same among those with A < 0, with sides = "both"

Source: hp-luo/STARE, `compute_stare_token_weights` (arXiv 2606.19236): q = .1, x = .1; variant O1
is sides = "positive", C2 is "both".

Different here: the source acts only while h < .3 and moves x by ± .01 per step, up to .5; here
the feedback scales x, with either sign, and the quantile is of the batch instead of a micro-batch.

EntroPIC: likely tokens are pushed down, or up, whatever the sign of their advantage.

    c'_ik = c_ik + w_i α |A_i| 1{token among the likely},     α = −strength

Source: yk7333/EntroPIC, `core_algos.py`, `dp_actor.py` (arXiv 2511.15248):
α = clip(k_p e + k_i Σe, −1, 1), e = h − h*, k_p = 1, k_i = .01, h* = .1; likely is π > .95. A
positive strength raises entropy, as in every control here.

Different here: the likely tokens are a share of the batch, those with the highest log-probability,
and the published threshold is an option. The source takes its term as a mean over the likely tokens
alone; here it has the weight w_i of every token, so it is smaller by their share. Feedback replaces
the source's own controller.

Lp-Reg: rare punished tokens that pass a min-p filter are pulled up to the filtered policy.

    c'_ik = c_ik + w_i β (1/M_ik − 1)    the share q of lowest s among A < 0, where min-p keeps them

M_ik is the probability mass that min-p keeps at the position: that of the tokens with at least
`min_p` times the largest probability. The proxy of the source is that distribution renormalised,
π/M, and its term β(e^d − d − 1), d = log π_proxy − s, has the derivative −β(e^d − 1) by s. It is
small where M is near 1. Source: CarlanLark/Lp-Reg-dev, `compute_policy_loss_lp_reg` (arXiv
2510.03222): β = 1, q = .01, min_p = .02.

Different here: the lowest share is of the batch instead of a micro-batch. M needs the whole
distribution at each position: `kept_mass` of the batch, which takes one scoring pass.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from isentrope.control.base import (
    NotNegative,
    Part,
    Rewritten,
    Signed,
    TokenRule,
    lowest_share,
    options,
)


@options
class RepoR(TokenRule):
    """Weight tokens by their surprisal.

    Attributes:
        strength: ζ, per nat.
    """

    strength: float = 0.05
    two_sided: ClassVar[bool] = True

    def apply(self, tokens, strength):
        """Weight tokens."""
        signed = strength * tokens.logprobs * torch.sign(tokens.token_advantages)
        return Rewritten(tokens.weights * (1 - signed).clamp(min=0))


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

    def apply(self, tokens, strength):
        """Weight tokens."""
        A, s = tokens.token_advantages, tokens.logprobs
        factor = 1 + strength * lowest_share(s, A > 0, self.share).double()
        if self.sides == "both":
            factor -= strength * lowest_share(s, A < 0, self.share).double()
        return Rewritten(tokens.weights * factor)


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

    def apply(self, tokens, strength):
        """Push tokens."""
        if self.threshold is None:
            likely = lowest_share(-tokens.logprobs, tokens.mask, self.share)
        else:
            likely = tokens.mask & (tokens.logprobs.exp() > self.threshold)
        return Rewritten(tokens.weights - strength * tokens.weights.abs() * likely)


@options
class LpReg(TokenRule):
    """Pull rare punished tokens up.

    Attributes:
        strength: β.
        share: q.
        min_p: Least probability of a kept token, as a share of the largest.
    """

    strength: NotNegative = 1.0
    share: Part = 0.01
    min_p: Annotated[float, Field(gt=0, lt=1)] = 0.02
    needs: ClassVar[str | None] = "kept_mass"

    def apply(self, tokens, strength):
        """Pull tokens up: c', and the number of selected tokens that the filter keeps."""
        assert tokens.kept_mass is not None
        kept = tokens.kept_mass
        rare = lowest_share(tokens.logprobs, tokens.token_advantages < 0, self.share)
        rare &= kept > 0
        pull = torch.where(rare, 1 / kept.clamp(min=1e-12) - 1, 0.0)
        weights = tokens.weights + strength * tokens.sequence_weights[:, None] * pull
        return Rewritten(weights, numbers={"pulled": float(rare.sum())})
