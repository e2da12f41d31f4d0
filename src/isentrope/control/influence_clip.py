"""Influence clipping: damp the tokens that reduce entropy most by measurement.

    c'_ik = (1 − κ) c_ik  for the share q of the tokens with the lowest ρ_ik

    by = "entropy":  ρ_ik = δH_ik, of those with δH_ik < 0
    by = "ratio":    ρ_ik = δH_ik / max(δJ_ik, ε),  of those with ρ_ik < 0,
                     ε = the median of |δJ_ik|

δH_ik = c_ik ∂_u s_ik, u = P g_H, is the first-order effect of the token on the entropy of fresh
responses, per unit of the learning rate; δJ_ik is the same for the expected reward
(`attribution.influence`). It is measured, it includes the effect on the distributions of all other
tokens, and it includes the optimizer's scaling P; all other controls assess a token by its own
distribution alone.

This control is new here; q = .02, κ = 1. The trainer draws E on held-out prompts
(`control.measured`).
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal, cast

from pydantic import Field
from torch import Tensor

from isentrope.control.base import Column, Part, Share, TokenRule, lowest_share, options
from isentrope.control.tokens import Rewritten, Tokens


@options
class InfluenceClip(TokenRule):
    """Damp the tokens that reduce entropy most.

    Attributes:
        strength: κ, the share of its weight that such a token loses.
        share: q, as a share of all tokens of the batch.
        by: "entropy", or "ratio" of the effects on entropy and on reward.
        size: Held-out prompts of E, one response each.
    """

    strength: Share = 1.0
    share: Part = 0.02
    by: Literal["entropy", "ratio"] = "entropy"
    size: Annotated[int, Field(ge=2)] = 64

    @property
    def needs(self) -> tuple[Column, ...]:
        """δH, and δJ where the criterion is their ratio."""
        return ("influence",) if self.by == "entropy" else ("influence", "reward_influence")

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Damp tokens: c', and δH summed over the batch and over the damped tokens."""
        influence, mask = cast(Tensor, tokens.influence), tokens.mask
        criterion = influence
        if self.by == "ratio":
            reward_effect = cast(Tensor, tokens.reward_influence)
            least = max(float(reward_effect[mask].abs().median()), sys.float_info.min)
            criterion = influence / reward_effect.clamp(min=least)
        negative = mask & (criterion < 0)
        damped = lowest_share(criterion, mask, self.share) & negative
        total = float(influence[mask].sum())
        numbers = {"influence": total, "influence_damped": float(influence[damped].sum())}
        return Rewritten(tokens.weights * (1 - strength * damped.double()), numbers=numbers)
