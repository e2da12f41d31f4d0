"""Counts of drawn tokens against their distribution: EOS, repetitions, and the tail.

Three counts need no log-probabilities of the sampler, and detect what the identities do not:

    Σ 1[EOS] − π(EOS)            an end that is masked, or drawn too rarely
    Σ 1[seen] − π(seen)          a repetition penalty: `seen` are the tokens of prompt and response
    max φ                        a filter that keeps only tokens with φ up to a setting x

where φ is the rank of a token (top_k), the mass of the tokens before it (top_p), or how far its
probability is below the largest (min_p). If x is the smallest setting that holds every token of the
batch, a sound batch stays within x with probability Π_k π_k(φ ≤ x), which is the p-value.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.models.batching import MicroBatch, micro_batches
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring_batches import smaller_where_memory_is_short

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
    """The count of an event, and its expectation under the policy on the same prefixes.

    Attributes:
        observed: Σ 1[event].
        expected: Σ q, with q its probability at each token.
        variance: Σ q (1 − q).
        squares: Σ (1[event] − q)².
    """

    observed: float
    expected: float
    variance: float
    squares: float

    @property
    def z(self) -> float:
        """As `estimators.identities.studentised`; NaN if the event is impossible or certain."""
        square = self.squares / 3 + 2 * self.variance / 3
        return (
            (self.observed - self.expected) / math.sqrt(square) if self.variance > 0 else math.nan
        )


@dataclass(frozen=True)
class Filter:
    """Evidence that a filter had removed the tail.

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


@dataclass(frozen=True)
class Draws:
    """All counts of a batch.

    Attributes:
        eos: Draws of EOS; None if the policy has none.
        repetitions: Draws of a token that the prompt or response already contains.
        filters: top_k, top_p and min_p.
    """

    eos: Event | None
    repetitions: Event
    filters: tuple[Filter, ...]


@smaller_where_memory_is_short
def count_draws(policy: Policy, rollouts: Rollouts) -> Draws:
    """Place every response token in the distribution that it was drawn from.

    Returns:
        The counts, from one forward pass and one sort of the vocabulary per token.
    """
    totals: list[Tensor] = []
    for batch in micro_batches(rollouts, policy.max_tokens, policy.ranks, padding=policy.padding):
        packed = batch.to(policy.device)
        with torch.no_grad():
            hidden = policy.packed_hidden(packed)
            size = max(1, LOGITS_SORTED // policy.vocabulary)
            for rows in torch.arange(len(hidden), device=hidden.device).split(size):
                with policy.precision.active():
                    logits = policy.head(hidden[rows]).to(policy.precision.entropy)
                if batch.counted:
                    totals.append(_of_tokens(policy, packed, rows, logits / policy.temperature))
    # (parts, events + settings + furthest)
    joined = torch.stack(policy.ranks.all_of(totals))
    sizes = [8, len(TOP_K), len(TOP_P), len(MIN_P)]
    events, *within = joined[:, :-3].sum(0).split(sizes)
    eos, repetitions = (Event(*of) for of in events.view(2, 4).tolist())
    furthest = joined[:, -3:].amax(0).long().tolist()
    named = {"top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}.items()
    return Draws(
        eos if policy.eos_token_id is not None else None,
        repetitions,
        tuple(
            Filter(name, tuple(map(float, settings)), mass, strictest)
            for (name, settings), mass, strictest in zip(named, within, furthest, strict=True)
        ),
    )


def _of_tokens(policy: Policy, batch: MicroBatch, rows: Tensor, logits: Tensor) -> Tensor:
    """Sums over some tokens, and last the three largest indices of settings."""
    targets, p = batch.targets[rows], logits.softmax(-1)
    events = []
    if policy.eos_token_id is None:
        events.append(torch.zeros(4, dtype=torch.float64))
    else:
        events.append(_event(targets == policy.eos_token_id, p[:, policy.eos_token_id]))
    present = _seen(batch, rows, p)
    events.append(_event(present.gather(1, targets[:, None])[:, 0], (p * present).sum(1)))
    tails = tail_places(p, targets)
    masses = [within.sum(0).cpu() for within, _ in tails]
    furthest = torch.stack([strictest.max().double().cpu() for _, strictest in tails])
    return torch.cat([*events, *masses, furthest])


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
    tails = []
    top_k = torch.tensor(TOP_K, device=p.device).clamp_max(p.shape[1]).expand(len(p), -1)
    least = p[:, :1] * torch.tensor(MIN_P, dtype=p.dtype, device=p.device)
    min_p = torch.searchsorted(-p, -least, right=True)
    for kept in (top_k, _kept_by_top_p(total), min_p):
        # (m, settings) number of tokens that each setting keeps, the likeliest first
        within = total.gather(1, kept - 1).clamp(max=1)
        within = torch.where(kept == p.shape[1], torch.ones_like(within), within)
        tails.append((within.double().log(), (place[:, None] >= kept).sum(1)))
    return tails


def _event(happened: Tensor, q: Tensor) -> Tensor:
    happened, q = happened.double(), q.double()
    sums = (happened, q, q * (1 - q), (happened - q).square())
    return torch.stack([x.sum() for x in sums]).cpu()


def _seen(batch: MicroBatch, rows: Tensor, p: Tensor) -> Tensor:
    """(rows, vocabulary) whether prompt or response has the token before this position."""
    ids, never = batch.input_ids, batch.input_ids.shape[1]
    places = torch.arange(never, device=ids.device).expand_as(ids)
    first = torch.full((len(ids), p.shape[1]), never, device=ids.device)
    first = first.scatter_reduce(1, ids, places, "amin")  # column at which it has each token first
    return first[batch.rows[rows]] <= batch.columns[rows][:, None]


def _kept_by_top_p(total: Tensor) -> Tensor:
    before = total.roll(1, 1)  # a token is kept if the mass before it is below top_p
    before[:, 0] = 0
    settings = torch.tensor(TOP_P, dtype=total.dtype, device=total.device)
    kept = torch.searchsorted(before, settings.expand(len(total), -1).contiguous())
    kept[:, -1] = total.shape[1]
    return kept
