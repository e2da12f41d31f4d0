"""Entrocraft: only incorrect responses where entropy is too low, only correct ones where too high.

    x > 0:  c'_ik = (1 − x) c_ik where A > 0,     x < 0:  c'_ik = (1 − |x|) c_ik where A < 0

Source: lblaoke/entrocraft, `compute_grpo_range_outcome_advantage` (arXiv 2604.26326): h above a
band: positives only, below it: negatives only, inside: the plain objective.

Different here: the source switches, with rewards ±1 in place of advantages; here what is left out
is left out in proportion to the feedback, and the rest keeps its advantages. With
feedback.limit small it switches too. Groups whose rewards are all equal are redrawn as ever.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from isentrope.training.control.base import OPTIONS, TokenRule
from isentrope.training.control.tokens import Rewritten, Tokens


@dataclass(frozen=True, config=OPTIONS)
class Entrocraft(TokenRule):
    """Leave one sign of advantages out.

    Attributes:
        strength: x.
    """

    strength: Annotated[float, Field(ge=-1, le=1)] = 1.0
    two_sided: ClassVar[bool] = True

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Leave one sign out.

        Args:
            tokens: The batch.
            strength: x.

        Returns:
            c'.
        """
        left_out = tokens.token_advantages * strength > 0
        return Rewritten(tokens.weights * (1 - abs(strength) * left_out.double()))
