"""Entropy bonuses, pathwise or complete.

    J + β h,   h = Σ_i Σ_k H_ik / Σ_i T_i
    ∂h = 1/N Σ_ik (∂H_ik + G_ik ∂s_ik),     G_ik = Σ_{j>k} (H_ij − h) − b_ik,     N = Σ_i T_i

The pathwise part differentiates H at the positions that were sampled (d = β/N). The score part is
the effect of a token on the positions that follow (c' = c + β G/N): H_ij depends on the tokens
before j, so G_ik sums over j > k, and subtracts h per following token. b_ik is the mean of the same
sum over the other responses to the prompt that have a token at k; it depends on other responses
alone, so it changes no expectation. Per sequence it is β ℋ, ℋ = Σ_ik H_ik / n:
G_ik = Σ_{j>k} H_ij − b_ik, over n in place of N.

Per sequence it is unbiased for responses as they are sampled; per token it has the error O(1/n) of
a ratio of means. An update batch omits groups with equal rewards, so both are gradients of the
entropy on the prompts and responses that are kept.

Source: the pathwise part is TRL's `entropy_coef`, verl's `entropy_coeff`, OpenRLHF's
`actor.entropy_coef`, all 0 by default; β = .005 is the largest of Skywork-OR1. Different here: the
mean is over the tokens of the batch, where TRL takes that of each micro-batch. The complete mode is
new here.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from isentrope.control.base import Rewritten, TokenRule, options
from isentrope.nouns.choices import Per, PerOption, require_per


@options
class Bonus(PerOption, TokenRule):
    """Add β times the mean entropy to the objective.

    Attributes:
        strength: β, per nat.
        mode: "pathwise" or "complete".
        per: "token" (h) or "sequence" (ℋ); `functional` in files, per_token or per_sequence.
        baseline: "group", or "none" for b = 0.
    """

    strength: float = 0.005
    mode: Literal["pathwise", "complete"] = "pathwise"
    per: Annotated[Per, BeforeValidator(require_per)] = "token"
    baseline: Literal["group", "none"] = "group"
    two_sided: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (1.0, 4.0, 16.0)

    def apply(self, tokens, strength):
        """Add the bonus."""
        from isentrope.estimators.jackknife import Units

        mask = tokens.mask.double()
        H = tokens.entropies
        per_token = self.per == "token"
        scale = strength / (float(mask.sum()) if per_token else len(mask))
        if self.mode == "pathwise":
            return Rewritten(tokens.weights, scale * mask)
        if per_token:
            H = (H - H[tokens.mask].mean()) * mask
        following = (H.flip(1).cumsum(1).flip(1) - H) * mask  # Σ_{j>k}
        if self.baseline == "group":  # the mean of its other responses with a token there
            groups = Units.of(tokens.group)
            sums, counts = (groups.sums(x.T)[:, groups.place].T for x in (following, mask))
            following = following - (sums - following) / (counts - mask).clamp(min=1)
        return Rewritten(tokens.weights + scale * following * mask, scale * mask)
