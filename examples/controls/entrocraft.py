"""Entrocraft: only incorrect responses if entropy is too low, only correct ones if it is too high.

    x > 0:  c'_ik = (1 − x) c_ik where A > 0,     x < 0:  c'_ik = (1 − |x|) c_ik where A < 0

Source: lblaoke/entrocraft, `compute_grpo_range_outcome_advantage` (arXiv 2604.26326): h above a
band: positives only, below it: negatives only, inside: the plain objective.

Different here: the source switches, with rewards ±1 instead of advantages; here one sign is
damped in proportion to the feedback, and the other keeps its advantages. With a small
feedback.limit it switches too. Groups whose rewards are all equal are redrawn as without a control.
"""

from typing import ClassVar

from isentrope.control.base import Rewritten, Signed, TokenRule, options


@options
class Entrocraft(TokenRule):
    """Damp the tokens of one sign of the advantage.

    Attributes:
        strength: x.
    """

    strength: Signed = 1.0
    two_sided: ClassVar[bool] = True

    def apply(self, tokens, strength):
        """Damp one sign."""
        damped = tokens.token_advantages * strength > 0
        return Rewritten(tokens.weights * (1 - abs(strength) * damped.double()))
