"""REPO-R: rare rewarded tokens have a larger weight, rare punished tokens a smaller one.

    A > 0:  A' = max(0, A (1 − ζ s)),     A < 0:  A' = min(0, A (1 + ζ s))

s ≤ 0, so with ζ > 0 a rare rewarded token is pushed up more and a rare punished one down less;
with ζ < 0 it is the reverse. Source: SkyRL, `examples/train/algorithms/repo_r` (arXiv
2603.11682).

Different here: the source starts at ζ = .001 and doubles or halves it at each step, between 1e-4
and .05, to reach a target; here the default is the largest published ζ, and the feedback scales it.
"""

from typing import ClassVar

from isentrope.control.base import Rewritten, TokenRule, options


@options
class RepoR(TokenRule):
    """Weight tokens by their surprisal.

    Attributes:
        strength: ζ, per nat.
    """

    strength: float = 0.05
    two_sided: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (1.0, 4.0, 16.0)

    def apply(self, tokens, strength):
        """Weight tokens."""
        signed = strength * tokens.logprobs * tokens.token_advantages.sign()
        return Rewritten(tokens.weights * (1 - signed).clamp(min=0))
