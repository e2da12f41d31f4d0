"""ΔH from arrays that were computed elsewhere: float64 in, an `Estimate` out, no model (T2).

Arrays hold the tokens that were drawn. The weight of all other tokens is in χ², which can be
computed from the logits:

    p, q = logits_of_the_sampler.softmax(-1), logits_at_theta_plus_eta_v.softmax(-1)    # (n, t, v)
    chi_square = (q.square() / p).sum(-1) - 1

Without it an interval is printed for nearly even weights only (ESS/n ≥ .98 in the batch), and even
then on the assumption that no likely token is missing from the batch.
"""

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.entropy_change import change_of_sample
from isentrope.estimators.functional import Functionals
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import Estimate
from isentrope.policy.chi_square import Divergence
from isentrope.policy.token_statistics import Scores

AnyArray = Tensor | ArrayLike
"""An array of any library, or nested lists."""


def estimate_entropy_change(
    log_ratios: AnyArray,
    entropies: AnyArray,
    base_entropies: AnyArray,
    mask: AnyArray,
    prompt_ids: AnyArray,
    lengths: AnyArray | None = None,
    *,
    estimator: EstimatorOptions = EstimatorOptions(),
    chi_square: AnyArray | None = None,
) -> Estimate:
    """ΔH from arrays that were computed elsewhere; no model needed.

    Args:
        log_ratios: (n, t) per-token s(θ+ηv) − s(sampler), nats.
        entropies: (n, t) H at θ + ηv, nats.
        base_entropies: (n, t) H at θ, nats.
        mask: (n, t) where there is a token.
        prompt_ids: (n,) integer labels of the independent units (prompt draws).
        lengths: (n,) tokens per sequence. If given, the arrays are whole-sequence sums with t = 1,
            for which only the "sequence" method has a meaning; it is the one used.
        estimator: Which entropy, the coverage of the interval, and the method: "prefix", "sequence"
            or "doubly-robust", whose baseline is fitted from `base_entropies`.
        chi_square: (n, t) χ²_ik of the policy at θ + ηv from the sampler over the whole vocabulary,
            from which the verdict follows. With `lengths`, t = 1: Σ_k W_ik² χ²_ik of the response,
            W_ik the weight of the tokens before k. Without it, an interval requires nearly even
            weights.

    Returns:
        ΔH with its error; the base is F at zero log-ratio, that is, sampler = θ.

    Raises:
        ValueError: If shapes disagree, a value under the mask is not finite, `chi_square` is
            negative, a row is padded on the left, lengths are given with more than one column, or
            the method is "surprisal", which has no entropies.
    """
    functional = estimator.functional
    method = estimator.method
    if method == "surprisal":
        raise ValueError(
            'The method "surprisal" needs the log-probabilities of the tokens, which these arrays '
            'do not hold: use "prefix", "sequence" or "doubly-robust".'
        )
    columns = [log_ratios, entropies, base_entropies]
    if chi_square is not None:
        columns.append(chi_square)
    arrays = [torch.as_tensor(column, dtype=torch.float64) for column in columns]
    mask = torch.as_tensor(mask, dtype=torch.bool)
    units = torch.as_tensor(prompt_ids)
    shapes = {tuple(x.shape) for x in (*arrays, mask)}
    if len(shapes) != 1 or mask.ndim != 2 or units.shape != mask.shape[:1]:
        raise ValueError(
            "log_ratios, entropies, base_entropies, mask and chi_square (where given) must share "
            f"one shape (n, t) and prompt_ids be (n,); got {sorted(shapes)} and "
            f"{tuple(units.shape)}."
        )
    if lengths is not None and mask.shape[1] != 1:
        raise ValueError(f"lengths go with whole-sequence sums, t = 1; got t = {mask.shape[1]}.")
    if method != "sequence" and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError(
            f"The method {method!r} takes column k as position k of the response, and the mask has "
            "a token after a gap: pad on the right."
        )
    r, h, h0, *spread = (torch.where(mask, x, 0.0) for x in arrays)
    signed = torch.stack((r, h, h0, *(x.where(x >= 0, math.nan) for x in spread)))
    if not bool(signed.isfinite().all()):
        raise ValueError(
            "A value under the mask is not finite, or chi_square is negative, which is "
            "Σ_a q_a²/p_a − 1 ≥ 0 over the vocabulary."
        )
    tokens = mask.double()
    if lengths is not None:
        method = "sequence"
        tokens = tokens * torch.as_tensor(lengths, dtype=torch.float64)[:, None]
    baseline = None
    if method == "doubly-robust":
        baseline = cross_fitted_baseline(h0, tokens, units, functional)
    f = Functionals(functional, method, tokens, baseline)
    zero = torch.zeros_like(r)  # the sampler is θ
    sample = ScoredBatch(f, zero, (Scores(zero, h0, mask),), units)
    moved_scores = (Scores(r, h, mask), Divergence(spread[0][..., None]) if spread else None)
    change = change_of_sample(sample, [math.nan], [moved_scores], confidence=estimator.confidence)
    return change.points[0].change
