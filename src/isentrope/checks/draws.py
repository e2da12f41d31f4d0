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
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.models.batching import MicroBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.passes import map_micro_batches
from isentrope.policy.short_memory import smaller_where_memory_is_short
from isentrope.policy.tails import FILTER_SETTINGS, LOGITS_SORTED, tail_places


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
        setting: The strictest setting that keeps every token drawn.
        p_value: Probability that the policy's own draws all stay within that setting.
    """

    name: str
    setting: float
    p_value: float


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
    filters: list[Filter]


@smaller_where_memory_is_short
def count_draws(policy: Policy, rollouts: Rollouts) -> Draws:
    """Place every response token in the distribution that it was drawn from.

    Returns:
        The counts, from one forward pass and one sort of the vocabulary per token.
    """
    totals: list[Tensor] = []

    def count_batch(batch: MicroBatch, receive: Callable[[Tensor], object]) -> None:
        with torch.no_grad():
            hidden = policy.packed_hidden(batch)
            size = max(1, LOGITS_SORTED // policy.vocabulary)
            for rows in torch.arange(len(hidden), device=hidden.device).split(size):
                with policy.precision.active():
                    logits = policy.head(hidden[rows]).to(policy.precision.entropy)
                receive(_count_tokens(policy, batch, rows, logits / policy.temperature))

    map_micro_batches(policy, rollouts, count_batch, totals.append)
    # (parts, events + settings + furthest)
    joined = torch.stack(policy.gather_lists(totals))
    sizes = [8, *map(len, FILTER_SETTINGS.values())]
    events, *masses = joined[:, :-3].sum(0).split(sizes)
    eos, repetitions = (Event(*sums) for sums in events.view(2, 4).tolist())
    furthest = joined[:, -3:].amax(0).long().tolist()
    filters = [
        Filter(name, float(settings[k]), math.exp(float(mass[k])))
        for (name, settings), mass, k in zip(FILTER_SETTINGS.items(), masses, furthest, strict=True)
    ]
    return Draws(None if policy.eos_token_id is None else eos, repetitions, filters)


def _count_tokens(policy: Policy, batch: MicroBatch, rows: Tensor, logits: Tensor) -> Tensor:
    """Sums over some tokens, and last the three largest indices of settings."""
    targets = batch.targets[rows]
    p = logits.softmax(-1)
    eos = -1 if policy.eos_token_id is None else policy.eos_token_id  # without one: not read
    ids = batch.input_ids
    never = ids.shape[1]
    places = torch.arange(never, device=ids.device).expand_as(ids)
    first = torch.full((len(ids), p.shape[1]), never, device=ids.device)
    first = first.scatter_reduce(1, ids, places, "amin")  # column at which it has each token first
    repeated = first[batch.rows[rows]] <= batch.columns[rows][:, None]  # (rows, vocabulary)
    happened = torch.stack((targets == eos, repeated.gather(1, targets[:, None])[:, 0])).double()
    q = torch.stack((p[:, eos], (p * repeated).sum(1))).double()
    events = torch.stack((happened, q, q * (1 - q), (happened - q).square()), 1).sum(2)  # (2, 4)
    tails = tail_places(p, targets)
    masses = [within.sum(0) for within, _ in tails]
    furthest = torch.stack([strictest.max().double() for _, strictest in tails])
    return torch.cat([events.flatten(), *masses, furthest]).cpu()
