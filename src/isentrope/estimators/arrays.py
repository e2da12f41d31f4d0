"""ΔH from arrays that were computed elsewhere: float64 in, an `Estimate` out, no model (T2)."""

from __future__ import annotations

import math

import torch

from isentrope.estimate import Estimate
from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.entropy_change import change_of_sample
from isentrope.estimators.functional import Functional, Functionals, Method
from isentrope.estimators.sample import EntropySample
from isentrope.policy.scoring import Scores


def estimate_entropy_change(
    log_ratios,
    entropies,
    base_entropies,
    mask,
    prompt_ids,
    lengths=None,
    *,
    functional: Functional = "per_token",
    method: Method = "prefix",
    baseline=None,
    confidence: float = 0.95,
) -> Estimate:
    """ΔH from arrays that were computed elsewhere; no model needed.

    Args:
        log_ratios: (n, t) per-token s(θ+ηv) − s(sampler), nats.
        entropies: (n, t) H at θ + ηv, nats.
        base_entropies: (n, t) H at θ, nats.
        mask: (n, t) where there is a token.
        prompt_ids: (n,) integer labels of the independent units (prompt draws).
        lengths: (n,) tokens a sequence. Given, the arrays are whole-sequence sums with t = 1, for
            which only the "sequence" method has a meaning; it is the one used.
        functional: "per_token" or "per_sequence".
        method: "prefix", "sequence" or "doubly-robust".
        baseline: (n, t) b of the doubly-robust method; fitted from `base_entropies` if left out.
        confidence: Nominal coverage of the interval.

    Returns:
        ΔH with its error; the base is F at zero log-ratio, that is, sampler = θ.

    Raises:
        ValueError: If shapes disagree, a value under the mask is not finite, a row is padded on
            the left, or lengths are given with more than one column.
    """
    arrays = [torch.as_tensor(x, dtype=torch.float64) for x in (log_ratios, entropies)]
    base = torch.as_tensor(base_entropies, dtype=torch.float64)
    mask = torch.as_tensor(mask, dtype=torch.bool)
    units = torch.as_tensor(prompt_ids)
    shapes = {tuple(x.shape) for x in (*arrays, base, mask)}
    if len(shapes) != 1 or mask.ndim != 2 or units.shape != mask.shape[:1]:
        raise ValueError(
            f"log_ratios, entropies, base_entropies and mask must share one shape (n, t) and "
            f"prompt_ids be (n,); got {sorted(shapes)} and {tuple(units.shape)}."
        )
    if lengths is not None and mask.shape[1] != 1:
        raise ValueError(f"lengths go with whole-sequence sums, t = 1; got t = {mask.shape[1]}.")
    if method != "sequence" and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError(
            f"The method {method!r} takes column k as position k of the response, and the mask has "
            "a token after a gap: pad on the right."
        )
    for x in (*arrays, base):
        if not bool(x[mask].isfinite().all()):
            raise ValueError("A value under the mask is not finite.")
    r, h, h0 = (torch.where(mask, x, 0.0) for x in (*arrays, base))
    tokens = mask.double()
    if lengths is not None:
        method = "sequence"
        tokens = tokens * torch.as_tensor(lengths, dtype=torch.float64)[:, None]
    if method == "doubly-robust":
        baseline = (
            cross_fitted_baseline(h0, tokens, units, functional)
            if baseline is None
            else torch.as_tensor(baseline, dtype=torch.float64) * tokens
        )
    f = Functionals(functional, method, tokens, baseline)
    sample = EntropySample(f, torch.zeros_like(r), (Scores(torch.zeros_like(r), h0, mask),), units)
    moved = Scores(r, h, mask)
    return change_of_sample(sample, [math.nan], [moved], confidence=confidence).points[0].change
