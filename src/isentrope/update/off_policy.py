"""Weights of a stale batch: responses of an earlier policy, replayed at today's θ (T5).

    r_ik = exp( s_ik(θ) − s_ik(sampler) )
    J = Σ_ik w_i min( r_ik A_i, clip(r_ik, 1 − lo, 1 + hi) A_i )
    ∂J = Σ_ik c_ik ∂s_ik,     c_ik = w_i A_i r_ik 1{not clipped}

A token is clipped, and has no gradient, where A > 0 and r > 1 + hi, or A < 0 and r < 1 − lo. A
ratio beyond the other bound is let through: there the clip does not act. "cispo" clips no token
and caps the ratio by hi alone (not by 1 + hi): c_ik = w_i A_i min(r_ik, hi). The weights are
written to `Rollouts.token_weights`, so that `compute_step(..., objective="recorded")` replays the
step. At r = 1 they are those of the first update on a fresh batch.

"sapo", "luspo" and "vespo" are other functions of the ratio, and "sft" has none: they are refused.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from dataclasses import dataclass, field

from torch import Tensor

from isentrope.nouns.choices import CLIPPED
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.sampler_record import check_scored, require_possible
from isentrope.policy.scoring import score
from isentrope.update.objective import token_weights

Clip = tuple[float, float]


@dataclass(frozen=True)
class ImportanceRatios:
    """What became of each token's probability since it was drawn.

    Attributes:
        ratios: (n, t) float64 r_ik; 1 where there is no token.
        clipped: (n, t) bool, tokens whose gradient the clip drops.
        cap: Upper bound of the clip, which caps the ratios of "cispo"; None for no clip.
        warnings: Sentences on what limits the weights' use.
    """

    ratios: Tensor = field(repr=False)
    clipped: Tensor = field(repr=False)
    cap: float | None = None
    warnings: tuple[str, ...] = ()

    def weighted(
        self,
        rollouts: Rollouts,
        objective: str = "dr_grpo",
        max_response_length: int | None = None,
        *,
        clip_high: float | None = None,
        micro_batch: int | None = None,
    ) -> Rollouts:
        """The batch with c_ik as its token weights.

        Args:
            rollouts: The batch of the ratios.
            objective: One of `CLIPPED`, which gives w_i.
            max_response_length: L of "dr_grpo".
            clip_high: ε_high of "cispo", which drops no token; None for the clip's own.
            micro_batch: Responses per backward pass of "bnpo".

        Returns:
            A copy whose `token_weights` are c_ik.

        Raises:
            ValueError: If the objective is none of `CLIPPED`, or the batch has entropy weights.
        """
        if objective not in CLIPPED:
            raise ValueError(
                f"The weights of a stale batch under {objective!r} are not known here: choose one "
                f"of {', '.join(CLIPPED)}, or record them while training (objective 'recorded')."
            )
        if rollouts.entropy_weights is not None:
            raise ValueError(
                "The batch has recorded entropy weights, and the clipped surrogate has no entropy "
                "term: replay it as recorded (objective 'recorded'), or drop them "
                "(rollouts.with_columns(entropy_weights=None)) for a step without that term."
            )
        weights = token_weights(rollouts, objective, max_response_length, micro_batch=micro_batch)
        if objective == "cispo":
            weights = weights * self.ratios.clamp(max=clip_high or self.cap or float("inf"))
        else:
            weights = (weights * self.ratios).masked_fill(self.clipped, 0.0)
        return rollouts.with_columns(token_weights=rollouts.ragged(weights))


def importance_ratios(
    policy: Policy, rollouts: Rollouts, clip: Clip | None = (0.2, 0.2)
) -> ImportanceRatios:
    """Score a stale batch at θ and say which tokens the clip drops.

    Args:
        policy: The policy at θ.
        rollouts: The batch, with advantages and the sampler's log-probabilities.
        clip: (lo, hi), or None for no clip.

    Returns:
        Ratios and clipped tokens.

    Raises:
        ValueError: If advantages or the sampler's log-probabilities are missing, or these cannot be
            those of the responses.
    """
    if rollouts.advantages is None:
        raise ValueError("The rollouts have no advantages, whose sign decides what is clipped.")
    require_possible(rollouts)
    scores = score(policy, rollouts)
    record = check_scored(policy, rollouts, scores)
    if record.fault is not None:
        raise ValueError(f"A stale batch is weighted by its sampler's record. {record.sentence}")
    mask = scores.mask
    ratios = (scores.logprobs - rollouts.padded("sampler_logprobs")).exp()
    lo, hi = clip or (math.inf, math.inf)
    gains = rollouts.advantages[:, None] > 0
    losses = rollouts.advantages[:, None] < 0
    clipped = ((gains & (ratios > 1 + hi)) | (losses & (ratios < 1 - lo))) & mask
    of_tokens = ratios[mask]
    dropped = int(clipped.sum())
    warnings: list[str] = []
    if dropped:
        warnings.append(f"The clip drops the gradient of {dropped} of {len(of_tokens)} tokens.")
    if (largest := float(of_tokens.max())) > 10:
        warnings.append(
            f"{int((of_tokens > 10).sum())} of {len(of_tokens)} tokens have become more than ten "
            f"times likelier (ratio up to {largest:.3g}): few tokens determine the step."
        )
    return ImportanceRatios(ratios, clipped, None if clip is None else clip[1], tuple(warnings))
