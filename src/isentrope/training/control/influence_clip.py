"""Influence clipping: the tokens whose measured push costs the most entropy.

    c'_ik = (1 − κ) c_ik  for the share q of the tokens with the lowest ρ_ik

    by = "entropy":  ρ_ik = δH_ik, of those with δH_ik < 0
    by = "ratio":    ρ_ik = δH_ik / max(δJ_ik, ε),  of those with ρ_ik < 0,
                     ε = the median of |δJ_ik|

δH_ik = c_ik ∂_u s_ik, u = P g_H, is what the token's push does to the entropy of fresh responses,
per unit of the learning rate; δJ_ik is the same for the expected reward (`kernel.influence`). It
is measured, it counts what a token does to the distributions of all others, and it is taken after
the optimizer's scaling P; all other controls judge a token by its own distribution alone.

Ours; q = .02, κ = 1. The trainer draws E on held-out prompts (`training.control.measured`).
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal, cast

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from isentrope.training.control.base import OPTIONS, Column, Share, TokenRule, lowest
from isentrope.training.control.tokens import Rewritten, Tokens


@dataclass(frozen=True, config=OPTIONS)
class InfluenceClip(TokenRule):
    """Damp the tokens that take the most entropy.

    Attributes:
        strength: κ, the share of its weight that such a token loses.
        share: q, of all tokens of the batch.
        by: "entropy", or "ratio" to what the token earns.
        size: Held-out prompts of E, one response each.
    """

    strength: Share = 1.0
    share: Annotated[float, Field(gt=0, le=1)] = 0.02
    by: Literal["entropy", "ratio"] = "entropy"
    size: Annotated[int, Field(ge=2)] = 64

    @property
    def needs(self) -> tuple[Column, ...]:
        """δH, and δJ where the criterion is their ratio."""
        return ("influence",) if self.by == "entropy" else ("influence", "reward_influence")

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Damp tokens.

        Args:
            tokens: The batch.
            strength: κ.

        Returns:
            c', and δH summed over the batch and over the damped tokens.
        """
        influence, mask = cast(Tensor, tokens.influence), tokens.mask
        criterion = influence
        if self.by == "ratio":
            earned = cast(Tensor, tokens.reward_influence)
            least = max(float(earned[mask].abs().median()), sys.float_info.min)
            criterion = influence / earned.clamp(min=least)
        negative = mask & (criterion < 0)
        damped = lowest(criterion, mask, self.share) & negative
        total = float(influence[mask].sum())
        numbers = {"influence": total, "influence_damped": float(influence[damped].sum())}
        return Rewritten(tokens.weights * (1 - strength * damped.double()), numbers=numbers)
