"""Lp-Reg: rare punished tokens that pass a min-p filter are pulled up to the filtered policy.

    c'_ik = c_ik + w_i β (1/M_ik − 1)    the share q of lowest s among A < 0, where min-p keeps them

M_ik is the probability mass that min-p keeps at the position: that of the tokens with at least
`min_p` times the largest probability. The proxy of the source is that distribution renormalised,
π/M, and its term β(e^d − d − 1), d = log π_proxy − s, has the derivative −β(e^d − 1) by s. It is
small where M is near 1. Source: CarlanLark/Lp-Reg-dev, `compute_policy_loss_lp_reg` (arXiv
2510.03222): β = 1, q = .01, min_p = .02.

Different here: the lowest share is of the batch instead of a micro-batch. M needs the whole
distribution at each position: `kept_mass` of the batch, which takes one scoring pass.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from isentrope.control.base import NotNegative, Part, Rewritten, TokenRule, lowest_share, options


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
    multiples: ClassVar[tuple[float, ...]] = (1.0, 4.0, 16.0)

    def apply(self, tokens, strength):
        """Pull tokens up: c', and the number of selected tokens that the filter keeps."""
        assert tokens.kept_mass is not None
        kept = tokens.kept_mass
        rare = lowest_share(tokens.logprobs, tokens.token_advantages < 0, self.share)
        rare &= kept > 0
        pull = torch.where(rare, 1 / kept.clamp(min=1e-12) - 1, 0.0)
        weights = tokens.weights + strength * tokens.sequence_weights[:, None] * pull
        return Rewritten(weights, numbers={"pulled": float(rare.sum())})
