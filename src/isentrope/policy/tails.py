"""Filters of a sampler: the mass that each setting of top_k, top_p and min_p keeps at each token.

A filter keeps the tokens whose φ is up to a setting: φ is the rank of a token (top_k), the mass of
the tokens before it (top_p), or how far its probability is below the largest (min_p). What it keeps
of mass S is renormalised, so a token is drawn with log π − log S.
"""

import torch
from torch import Tensor

from isentrope.models.batching import MicroBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect_columns

LOGITS_SORTED = 2**21
"""Largest number of logits sorted at once."""

_USUAL_K = (20, 40, 50, 100, 200, 500, 1000)
_USUAL_P = (*(j / 20 for j in range(1, 20)), 0.98, 0.99)
FILTER_SETTINGS: dict[str, tuple[float, ...]] = {
    "top_k": tuple(
        sorted({*range(1, 17), *(int(2 ** (j / 4)) for j in range(17, 77)), *_USUAL_K, 2**30})
    ),
    "top_p": tuple(sorted({*_USUAL_P, *(1 - 10 ** (-j / 10) for j in range(9, 61)), 1.0})),
    "min_p": tuple(sorted({*(10 ** (-j / 10) for j in range(61)), 0.05, 0.02, 0.0}, reverse=True)),
}
"""Settings of each filter, the strictest first and "no filter" last."""


def nearest_filter(policy: Policy, rollouts: Rollouts, gap: Tensor) -> tuple[str, Tensor]:
    """The filter whose renormalisation is nearest to a difference of log-probabilities.

    Args:
        policy: The policy.
        rollouts: n sequences.
        gap: (n, t) sampler's log-probabilities less the policy's.

    Returns:
        The filter, such as "top_k=50", and (n, t) −log S of it.
    """

    def packed(batch: MicroBatch) -> list[Tensor]:
        size = max(1, LOGITS_SORTED // policy.vocabulary)
        pieces = zip(
            torch.split(policy.packed_hidden(batch), size),
            torch.split(batch.targets, size),
            strict=True,
        )
        parts: list[Tensor] = []
        for states, targets in pieces:
            with policy.precision.active():
                logits = policy.head(states).to(policy.precision.entropy) / policy.temperature
            masses = [mass for mass, _ in tail_places(logits.softmax(-1), targets)]
            parts.append(torch.cat(masses, 1))
        return [torch.cat(parts)]

    with torch.no_grad():
        (logs,) = collect_columns(policy, rollouts, packed)  # (n, t, settings)
    remainders = (gap[..., None] + logs)[rollouts.mask].square().mean(0)
    best = int(remainders.argmin())
    names = [
        f"{name}={setting:.4g}"
        for name, settings in FILTER_SETTINGS.items()
        for setting in settings
    ]
    return names[best], -logs[..., best]


def tail_places(p: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The position of each drawn token in the tail, by the settings of each filter.

    Args:
        p: (m, v) probabilities.
        targets: (m,) int64, the tokens drawn.

    Returns:
        For top_k, top_p and min_p: (m, settings) float64 log of the mass that each setting keeps,
        and (m,) int64 index of the strictest setting that keeps the token.
    """
    p, order = p.sort(dim=1, descending=True, stable=True)
    place = (order == targets[:, None]).int().argmax(1)  # (m,) rank from 0
    total = p.cumsum(1)
    size = p.shape[1]
    k, mass, ratio = (
        p.new_tensor(settings).expand(len(p), -1) for settings in FILTER_SETTINGS.values()
    )
    before = torch.nn.functional.pad(total[:, :-1], (1, 0))
    top_p = torch.searchsorted(before, mass.contiguous())  # kept if the mass before it is below
    top_p[:, -1] = size
    min_p = torch.searchsorted(-p, -p[:, :1] * ratio, right=True)
    tails = list[tuple[Tensor, Tensor]]()
    for counts in (k.long().clamp_max(size), top_p, min_p):
        # (m, settings) number of tokens that each setting keeps, the likeliest first
        within = total.gather(1, counts - 1).clamp(max=1).masked_fill(counts == size, 1)
        tails.append((within.double().log(), (place[:, None] >= counts).sum(1)))
    return tails
