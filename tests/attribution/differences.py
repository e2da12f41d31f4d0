"""Scores of a policy along a direction by differences of the bare model's own logits."""

import torch
from torch.func import functional_call


def scores(policy, rollouts, direction, eta):
    """Two (n, t) arrays, 0 past each end: log-probabilities and entropies at θ + ηv, in nats."""
    moved = {n: p.detach() + eta * direction[n] for n, p in policy.theta.items()}
    longest = max(len(r) for r in rollouts.response_ids)
    found = torch.zeros(2, len(rollouts), longest, dtype=torch.float64)
    for i, response in enumerate(rollouts.response_ids):
        prompt = rollouts.prompt_ids[i]
        ids = torch.cat([prompt, response])[None]
        with torch.no_grad(), policy.precision.active(forward_mode=False):
            logits = functional_call(policy.model, moved, kwargs={"input_ids": ids}).logits[0]
        log_p = logits[len(prompt) - 1 : -1].log_softmax(-1)
        found[0, i, : len(response)] = log_p.gather(1, response[:, None])[:, 0]
        found[1, i, : len(response)] = -(log_p.exp() * log_p).sum(-1)
    return found


def derivatives(policy, rollouts, direction, h):
    """The scores at θ and their first two derivatives by η, by differences of fourth order."""
    far, near, here, after, beyond = (
        scores(policy, rollouts, direction, k * h) for k in (-2, -1, 0, 1, 2)
    )
    first = (far - 8 * near + 8 * after - beyond) / (12 * h)
    second = (-far + 16 * near - 30 * here + 16 * after - beyond) / (12 * h**2)
    return here, first, second


def error_over_units(influences, units):
    """√(P/(P−1) Σ_p (φ_p − φ̄)²), φ_p the sum of the influences of the members of unit p."""
    by_unit = torch.stack([influences[units == p].sum() for p in units.unique()])
    return float(len(by_unit) ** 0.5 * by_unit.std())
