"""The task `compose`: what RL has to discover is one token.

    _a123>   one map, applied to three digits:  321.
    ab123>   map a, then map b:  the chain  321>432.  or the answer alone  432.

Accepted are exactly these strings: the answer, and for two maps the chain of both results. So all
accuracies are exact, by teacher forcing. Fine-tuning teaches each map and both links of a chain,
but answers prompts with two maps by the first map alone, which is wrong, and chains with
probability q only: the policy has the skill and lacks the strategy, '>' after the first result. A
share `junk` of the demonstrations of one map has one map too many. RL punishes these, so
it lowers '>' everywhere, while groups of two maps without a success have no advantage and nothing
raises it there: discovery is a race.

Shapes: n prompts or responses. Probabilities are of whole responses unless stated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from studies.compose_policy import (
    BLANK,
    CHAIN,
    END,
    MAPS,
    RESPONSE,
    SHORT,
    STRATEGY,
    Policy,
    score,
    token_mask,
)


@dataclass(frozen=True)
class Prompts:
    """Prompts and what follows from them.

    Attributes:
        tokens: (n, 6) token ids.
        composed: (n,) bool, whether there are two maps.
        first: (n, 3) digits after the first map; of one map, the answer.
        answer: (n, 3) digits.
    """

    tokens: Tensor
    composed: Tensor
    first: Tensor
    answer: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: Tensor) -> Prompts:
        return Prompts(*(getattr(self, field.name)[rows] for field in fields(self)))

    def draw(self, count: int, generator: torch.Generator) -> Prompts:
        """Prompts drawn with replacement."""
        return self[torch.randint(len(self), (count,), generator=generator)]


def join(*parts: Prompts) -> Prompts:
    """All prompts, in the order of the parts."""
    names = [field.name for field in fields(Prompts)]
    return Prompts(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def apply_map(which: int, digits: Tensor) -> Tensor:
    """One of the four maps, of (n, 3) digits: reverse, add 1, swap the first two, double."""
    return (
        digits.flip(1),
        (digits + 1) % 10,
        digits[:, [1, 0, 2]],
        (2 * digits) % 10,
    )[which]


@functools.cache
def table(composed: bool, held_out: bool) -> Prompts:
    """All prompts of a kind; a random fifth, the same for all bases, is held out.

    Prompts of two maps whose answer is the result of the first are left out.
    """
    digits = torch.cartesian_prod(*[torch.arange(10)] * 3)
    parts = []
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b] if composed else range(4)
    for maps in pairs:
        a, b = maps if isinstance(maps, tuple) else (None, maps)
        first = digits if a is None else apply_map(a, digits)
        answer = apply_map(b, first)
        slot = torch.tensor([BLANK if a is None else MAPS + a, MAPS + b]).expand(len(digits), 2)
        tokens = torch.cat([slot, digits, torch.full((len(digits), 1), CHAIN)], 1)
        is_composed = torch.full((len(digits),), composed)
        own = Prompts(tokens, is_composed, first if composed else answer, answer)
        distinct = (answer != first).any(1).nonzero()[:, 0]
        parts.append(own[distinct] if composed else own)
    every = join(*parts)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(1))
    fifth = len(every) // 5
    return every[order[:fifth] if held_out else order[fifth:]]


def direct(digits: Tensor) -> Tensor:
    """(n, 8) responses that give three digits."""
    return F.pad(digits, (0, RESPONSE - 3), value=END)


def chain(first: Tensor, second: Tensor) -> Tensor:
    """(n, 8) responses that give one result, '>' and the next."""
    mark, end = (torch.full((len(first), 1), token) for token in (CHAIN, END))
    return torch.cat([first, mark, second, end], 1)


def lengths_of(responses: Tensor) -> Tensor:
    """(n,) tokens up to the first '.', all 8 where there is none."""
    ended = responses == END
    return torch.where(ended.any(1), ended.int().argmax(1) + 1, RESPONSE)


def verify(prompts: Prompts, responses: Tensor) -> Tensor:
    """(n,) reward 1 of accepted responses, one per prompt, else 0."""
    answered = (responses == direct(prompts.answer)).all(1)
    chained = (responses == chain(prompts.first, prompts.answer)).all(1) & prompts.composed
    return (answered | chained).float()


def likelihood(policy: Policy, prompts: Prompts, responses: Tensor) -> Tensor:
    """(n, 8) log-probabilities of the tokens of one response per prompt; nats."""
    own = torch.arange(len(prompts))
    logits = score(policy, prompts.tokens, own, responses, lengths_of(responses))
    return logits.log_softmax(-1).gather(2, responses[..., None])[..., 0]


@dataclass(frozen=True)
class Reading:
    """Exact numbers of a policy on held-out prompts, means over them.

    Attributes:
        greedy: Whether greedy decoding of two maps is accepted.
        composed: Probability of an accepted response to two maps, at T = 1.
        composed_cold: The same at T = .4.
        pass_256: Probability of at least one in 256, at T = 1.
        strategy: P('>') after the first result.
        strategy_unsolved: The same over prompts that are accepted with less than .5; NaN if none.
        first: Probability of the first result.
        second: Probability of the rest of the chain, given the first result and '>'.
        single, single_cold, single_greedy: As above, one map.
    """

    greedy: float
    composed: float
    composed_cold: float
    pass_256: float
    strategy: float
    strategy_unsolved: float
    first: float
    second: float
    single: float
    single_cold: float
    single_greedy: float


COLD = 0.4


@torch.no_grad()
def read(policy: Policy, count: int = 128) -> Reading:
    """Read a policy by teacher forcing.

    Args:
        policy: The policy.
        count: Held-out prompts of each kind, always the same.

    Returns:
        The numbers.
    """
    two, one = (table(composed, True)[torch.arange(count)] for composed in (True, False))
    single, single_cold, single_greedy, _ = _probability(policy, one, direct(one.answer))
    short = _probability(policy, two, direct(two.answer))
    long = _probability(policy, two, chain(two.first, two.answer))
    accepted = short[0] + long[0]
    tokens = long[3]
    strategy = tokens[:, STRATEGY].exp()
    return Reading(
        greedy=float((short[2] + long[2]).mean()),
        composed=float(accepted.mean()),
        composed_cold=float((short[1] + long[1]).mean()),
        pass_256=float((1 - (1 - accepted.clamp(0, 1)) ** 256).mean()),
        strategy=float(strategy.mean()),
        strategy_unsolved=float(strategy[accepted < 0.5].mean()),
        first=float(tokens[:, :STRATEGY].sum(1).exp().mean()),
        second=float(tokens[:, SHORT:].sum(1).exp().mean()),
        single=float(single.mean()),
        single_cold=float(single_cold.mean()),
        single_greedy=float(single_greedy.mean()),
    )


def _probability(
    policy: Policy, prompts: Prompts, responses: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(n,) at T = 1 and T = .4, whether greedy decoding gives it, and (n, 8) nats per token."""
    lengths = lengths_of(responses)
    logits = score(policy, prompts.tokens, torch.arange(len(prompts)), responses, lengths)
    mask, at = token_mask(lengths), responses[..., None]
    warm, cold = ((logits / T).log_softmax(-1).gather(2, at)[..., 0] * mask for T in (1.0, COLD))
    greedy = ((logits.argmax(-1) == responses) | (mask == 0)).all(1).float()
    return warm.sum(1).exp(), cold.sum(1).exp(), greedy, warm
