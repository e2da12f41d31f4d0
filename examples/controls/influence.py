"""Influence clipping: damp the tokens that reduce entropy most by measurement.

    c'_ik = (1 − κ) c_ik  for those of the share q of lowest δH_ik that have δH_ik < 0

δH_ik = c_ik ∂_u s_ik, u = P g_H, is the first-order effect of the token on the entropy of fresh
responses, per unit of the learning rate (`attribution.influence`). It is measured, it includes the
effect on the distributions of all other tokens, and it includes the optimizer's scaling P; all
other controls assess a token by its own distribution alone.

This control is new here; q = .02, κ = 1. The trainer draws E on held-out prompts
(`control.measured`).
"""

from typing import Annotated, ClassVar, cast

from pydantic import Field
from torch import Tensor

from isentrope.control.base import Part, Rewritten, Share, TokenRule, lowest_share, options


@options
class InfluenceClip(TokenRule):
    """Damp the tokens that reduce entropy most.

    Attributes:
        strength: κ, the share of its weight that such a token loses.
        share: q, as a share of all tokens of the batch.
        size: Held-out prompts of E, one response each.
    """

    strength: Share = 1.0
    share: Part = 0.02
    size: Annotated[int, Field(ge=2)] = 64
    needs: ClassVar[str | None] = "influence"

    def apply(self, tokens, strength):
        """Damp tokens: c', and δH summed over the batch and over the damped tokens."""
        influence, mask = cast(Tensor, tokens.influence), tokens.mask
        damped = lowest_share(influence, mask, self.share) & (influence < 0)
        total = float(influence[mask].sum())
        numbers = {"influence": total, "influence_damped": float(influence[damped].sum())}
        return Rewritten(tokens.weights * (1 - strength * damped.double()), numbers=numbers)
