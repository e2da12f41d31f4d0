"""Scores after a short step against their derivatives, token by token on one sample.

    s(θ + ηv) − s(θ)  against  η ∂_v s + η²/2 ∂²_v s,        and the same of H

They come from different passes. Where a part of the model is in one of them only (a scale of the
logits, a kernel without a derivative), most tokens disagree at every rate. Curvature lets them
disagree too, and rounding, but not at every rate: so a few sequences are scored at smaller and
smaller ones, from moves of a tenth of a nat on, until both agree or rounding hides them. Jumps (an
exchange of experts) concern few tokens, of which a tenth is left out.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isentrope.models.architecture import name_of
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.chi_square import score_moved
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.language_model import Policy
from isentrope.policy.token_statistics import Scores

AGREE = 0.3
"""Mean distance from what the derivatives say, in units of that, that counts as agreement."""

FEW = 4
"""Sequences that are scored at smaller rates."""

LONGEST, SHORTER, RATES = 0.1, 0.1, 16
"""The longest move scored there, nats; each rate in units of the one before; and how many."""

RELATIVE_STEP = 0.01
"""And the longest step, in units of θ."""

ENOUGH = 3
"""Rates above rounding, at least, at which disagreement is an error."""

ROUNDING_STEPS = 1e3
"""Moves of a token that rounding may hide, in units of the type's roundoff."""


def require_short_steps(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    series: Sequence[Scores],
    etas: Sequence[float],
    moved: Sequence[Scores | None],
) -> None:
    """Refuse changes of scores that are not those of their derivatives.

    Args:
        policy: The policy at θ.
        rollouts: n sequences.
        direction: v.
        series: Their scores at θ, and derivatives along v as far as known.
        etas: Learning rates.
        moved: Their scores at each; None where they are not finite.

    Raises:
        DerivativeError: If they disagree at the smallest rate and at others.
    """
    known = [(abs(eta), eta, x) for eta, x in zip(etas, moved, strict=True) if eta and x]
    if len(series) < 2 or not known or not bool(series[0].mask.any()):
        return
    _, eta, there = min(known, key=lambda x: x[0])
    dtype = max((p.dtype for p in policy.theta.values()), key=lambda x: torch.finfo(x).eps)
    rounding = ROUNDING_STEPS * torch.finfo(dtype).eps
    measured, expected, gap = _means(series, eta, there)
    if gap <= AGREE * expected:
        return
    few = torch.arange(min(FEW, len(rollouts)))
    some = rollouts.select(few)
    here = slice(len(few)), slice(some.mask.shape[1])
    start = [
        replace(x, logprobs=x.logprobs[here], entropies=x.entropies[here], mask=some.mask)
        for x in series
    ]
    longest = RELATIVE_STEP * norm(policy.theta) / (norm(direction) or 1.0)
    rate = min(abs(eta) * LONGEST / max(measured, expected), longest)
    for k in range(RATES):
        (found,) = score_moved(policy, some, direction, [rate * SHORTER**k])
        if found is None:
            return
        *moves, apart = _means(start, rate * SHORTER**k, found[0])
        hidden = max(moves) < rounding
        if apart <= AGREE * moves[1] or (hidden and k < ENOUGH):
            return
        if hidden:
            break
    raise DerivativeError(
        f"At η = {eta:g} the scores of {name_of(policy.causal_lm)} move by {measured:.2g} nats, "
        f"where their derivatives say {expected:.2g} (means over tokens), and they disagree at "
        "other rates too: a part of the model acts in one of the two passes only, so no change is "
        "reported. Write that part in elementary operations of torch, or load the model without "
        "custom kernels."
    )


def _means(series: Sequence[Scores], eta: float, there: Scores) -> tuple[float, float, float]:
    """Mean moves of s and H, what they should be, and the distance; without the worst tenth."""

    def at(scores: Scores) -> Tensor:
        return torch.cat((scores.logprobs[there.mask], scores.entropies[there.mask]))

    here, *derivatives = map(at, series)
    measured = at(there) - here
    expected = torch.zeros_like(here)
    for k, derivative in enumerate(derivatives, start=1):
        expected += eta**k / k * derivative
    gap, order = (measured - expected).abs().sort()
    most = -(-len(gap) * 9 // 10)
    return (
        float(measured[order][:most].abs().mean()),
        float(expected.abs().mean()),
        float(gap[:most].mean()),
    )
