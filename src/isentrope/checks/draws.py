"""Where each drawn token lies in its own distribution: as often EOS, a repetition, or in the tail?

Three counts need no log-probabilities of the sampler, and see what surprisal and score do not:

    Σ 1[EOS] − π(EOS)            an end that is masked, or drawn too rarely
    Σ 1[seen] − π(seen)          a repetition penalty: `seen` are the tokens of prompt and response
    max φ                        a filter that keeps only tokens with φ up to a setting x

where φ is the rank of a token (top_k), the mass of the tokens before it (top_p), or how far its
probability is below the largest (min_p). If x is the smallest setting that holds every token of the
batch, a sound batch stays within x with probability Π_k π_k(φ ≤ x), which is the p-value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.policy.batching import MicroBatch, micro_batches
from isentrope.policy.language_model import Policy
from isentrope.rollouts import Rollouts

LOGITS_SORTED = 2**21
"""Largest number of logits sorted at once."""

_USUAL_K = (20, 40, 50, 100, 200, 500, 1000)
TOP_K = tuple(
    sorted({*range(1, 17), *(int(2 ** (j / 4)) for j in range(17, 77)), *_USUAL_K, 2**30})
)
_USUAL_P = (*(j / 20 for j in range(1, 20)), 0.98, 0.99)
TOP_P = tuple(sorted({*_USUAL_P, *(1 - 10 ** (-j / 10) for j in range(9, 61)), 1.0}))
MIN_P = tuple(sorted({*(10 ** (-j / 10) for j in range(61)), 0.05, 0.02, 0.0}, reverse=True))


@dataclass(frozen=True)
class Event:
    """How often something was drawn, and how often the policy draws it on the same prefixes.

    Attributes:
        seen: Σ 1[event].
        expected: Σ q, with q its probability at each token.
        variance: Σ q (1 − q).
        squares: Σ (1[event] − q)².
    """

    seen: float
    expected: float
    variance: float
    squares: float

    @property
    def z(self) -> float:
        """As `estimators.identities.studentised`; NaN if the event is impossible or certain."""
        square = self.squares / 3 + 2 * self.variance / 3
        return (self.seen - self.expected) / math.sqrt(square) if self.variance > 0 else math.nan


@dataclass(frozen=True)
class Filter:
    """Whether the draws look as if a filter had cut the tail off.

    Attributes:
        name: "top_k", "top_p" or "min_p".
        settings: Settings, the strictest first and "no filter" last.
        log_within: Σ_k log of the mass that each setting keeps at token k.
        strictest: Index of the strictest setting that keeps every token drawn.
    """

    name: str
    settings: tuple[float, ...]
    log_within: Tensor
    strictest: int

    @property
    def setting(self) -> float:
        """The strictest setting that keeps every token drawn."""
        return self.settings[self.strictest]

    @property
    def p_value(self) -> float:
        """Probability that the policy's own draws all stay within that setting."""
        return math.exp(float(self.log_within[self.strictest]))

    def weakest_found(self, p_limit: float) -> float | None:
        """The weakest setting that this batch's prefixes would betray; None if there is none."""
        found = (self.log_within <= math.log(p_limit)).nonzero()
        return self.settings[int(found[-1])] if len(found) else None


@dataclass(frozen=True)
class Draws:
    """All counts of a batch.

    Attributes:
        eos: Draws of EOS; None if the policy has none.
        repetitions: Draws of a token that prompt or response had before.
        filters: top_k, top_p and min_p.
    """

    eos: Event | None
    repetitions: Event
    filters: tuple[Filter, ...]


def count_draws(policy: Policy, rollouts: Rollouts) -> Draws:
    """Place every response token in the distribution that it was drawn from.

    Args:
        policy: The policy, as scored.
        rollouts: n sequences.

    Returns:
        The counts, from one forward pass and one sort of the vocabulary per token.
    """
    totals: list[Tensor] = []
    for batch in micro_batches(rollouts, policy.max_tokens):
        packed = batch.to(policy.device)
        with torch.no_grad():
            hidden = policy.packed_hidden(packed)
            size = max(1, LOGITS_SORTED // policy.vocabulary)
            for rows in torch.arange(len(hidden), device=hidden.device).split(size):
                with policy.precision.active():
                    logits = policy.head(hidden[rows]).to(policy.precision.entropy)
                totals.append(_of_tokens(policy, packed, rows, logits / policy.temperature))
    joined = torch.stack(totals)  # (parts, 8 + settings)
    sums, furthest = joined[:, :-3].sum(0), joined[:, -3:].amax(0).long().tolist()
    events = [Event(*of) for of in sums[:8].view(2, 4).tolist()]
    sizes = [len(TOP_K), len(TOP_P), len(MIN_P)]
    filters = (
        Filter(name, tuple(map(float, settings)), within, strictest)
        for name, settings, within, strictest in zip(
            ("top_k", "top_p", "min_p"),
            (TOP_K, TOP_P, MIN_P),
            sums[8:].split(sizes),
            furthest,
            strict=True,
        )
    )
    return Draws(events[0] if policy.eos_token_id is not None else None, events[1], tuple(filters))


def _of_tokens(policy: Policy, batch: MicroBatch, rows: Tensor, logits: Tensor) -> Tensor:
    """Sums over some tokens: both events, log masses by setting; last, three largest indices."""
    targets, p = batch.targets[rows], logits.softmax(-1)
    events = []
    if policy.eos_token_id is None:
        events.append(torch.zeros(4, dtype=torch.float64))
    else:
        events.append(_event(targets == policy.eos_token_id, p[:, policy.eos_token_id]))
    seen = _seen(batch, rows, p)
    events.append(_event(seen.gather(1, targets[:, None])[:, 0], (p * seen).sum(1)))
    p, order = p.sort(dim=1, descending=True, stable=True)
    place = (order == targets[:, None]).int().argmax(1)  # (rows,) rank from 0
    masses, furthest = [], []
    for kept in (_kept_by_top_k(p), _kept_by_top_p(p), _kept_by_min_p(p)):
        # (rows, settings) tokens kept by each setting, in order of probability
        within = p.cumsum(1).gather(1, (kept - 1).clamp_min(0)).clamp(1e-300, 1)
        within = torch.where(kept >= p.shape[1], torch.ones_like(within), within)
        masses.append(within.double().log().sum(0).cpu())
        furthest.append((place[:, None] >= kept).sum(1).max().double().cpu())
    return torch.cat([*events, *masses, torch.stack(furthest)])


def _event(happened: Tensor, q: Tensor) -> Tensor:
    happened, q = happened.double(), q.double()
    sums = (happened, q, q * (1 - q), (happened - q).square())
    return torch.stack([x.sum() for x in sums]).cpu()


def _seen(batch: MicroBatch, rows: Tensor, p: Tensor) -> Tensor:
    """(rows, vocabulary) whether prompt or response has the token before this position."""
    ids = batch.input_ids[batch.rows[rows]]
    later = torch.arange(ids.shape[1], device=ids.device) > batch.columns[rows][:, None]
    ids = torch.where(later, ids[:, :1], ids)
    return torch.zeros_like(p, dtype=torch.bool).scatter_(1, ids, True)


def _kept_by_top_k(p: Tensor) -> Tensor:
    settings = torch.tensor(TOP_K, device=p.device)
    return settings.clamp_max(p.shape[1]).expand(len(p), -1)


def _kept_by_top_p(p: Tensor) -> Tensor:
    before = p.cumsum(1).roll(1, 1)  # a token is kept if the mass before it is below top_p
    before[:, 0] = 0
    settings = torch.tensor(TOP_P, dtype=p.dtype, device=p.device)
    kept = torch.searchsorted(before, settings.expand(len(p), -1).contiguous())
    return torch.cat([kept[:, :-1], torch.full_like(kept[:, :1], p.shape[1])], 1)


def _kept_by_min_p(p: Tensor) -> Tensor:
    settings = torch.tensor(MIN_P, dtype=p.dtype, device=p.device)
    return torch.searchsorted(-p.contiguous(), -p[:, :1] * settings, right=True)
