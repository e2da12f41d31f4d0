"""Exact policies with long responses: chains of states, on which a rare mode carries the change.

The next token depends on a state that the tokens so far decide (prompt, mode, position), so a
policy is a table of logits, and every truth is a sum over the states that it visits: no response is
enumerated, and nothing of the library is used. A step adds η v to the logits.

    modes      24 prompts; usually 4 tokens, 7 % of 9, and 2 % of about 22 tokens (the long mode)
    prompts    24 prompts whose logits are multiplied by .3 to 14
    flash      24 prompts; 2 % of the responses are short and of high entropy, the others long and
               nearly certain
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isentrope.policy.chi_square import Divergence
from isentrope.policy.token_statistics import Scores
from validation.enumerated import eta_at

PROMPTS, VOCABULARY, EOS = 24, 6, 0
MIDDLING, ENTRY = 4, 5
"""First tokens that enter the second and the third mode."""


@dataclass(frozen=True)
class Chain:
    """A policy by state.

    Attributes:
        name: For the table.
        start: (P,) the state of each prompt.
        follow: (S, A) the state after each token, −1 at the end of a response.
        logits: (S, A) at θ.
        v: (S, A) their direction.
        longest: L_max.
    """

    name: str
    start: Tensor
    follow: Tensor
    logits: Tensor
    v: Tensor
    longest: int

    def log_p(self, eta: float = 0.0) -> Tensor:
        """(S, A) log π at θ + ηv."""
        return (self.logits + eta * self.v).log_softmax(1)

    def visits(self, log_p: Tensor, last: int | None = None) -> Tensor:
        """(S,) how often a response visits each state, on average over prompts."""
        p, size = log_p.exp(), len(log_p)
        now = torch.bincount(self.start, minlength=size).double() / len(self.start)
        total = now.clone()
        for _ in range((last or self.longest) - 1):
            flow = now[:, None] * p
            kept = self.follow >= 0
            now = torch.zeros_like(now).index_add_(0, self.follow[kept], flow[kept])
            total += now
        return total

    def truth(self, functional: str, eta: float = 0.0) -> float:
        """ℋ or h at θ + ηv."""
        log_p = self.log_p(eta)
        visits = self.visits(log_p)
        total = float(visits @ -(log_p.exp() * log_p).sum(1))
        return total / float(visits.sum()) if functional == "per_token" else total

    def orders(self, functional: str, step: float = 4e-3) -> tuple[float, float]:
        """(δH₁, δH₂) by Richardson's central differences."""
        return derivatives(lambda eta: self.truth(functional, eta), step)

    def exact_ess(self, eta: float) -> float:
        """ESS/n of the weights of whole responses: E[W²] by recursion from the last state."""
        here, there = self.log_p(), self.log_p(eta)
        squares = (2 * there - here).exp()  # (S, A) π'²/π
        ahead = torch.ones(len(here) + 1, dtype=torch.float64)  # the last is the end
        for _ in range(self.longest):
            ahead[:-1] = (squares * ahead[self.follow]).sum(1)
        return 1 / float(ahead[self.start].mean())

    def eta_of(self, target: float) -> float:
        """η at which the exact ESS/n has a value, by bisection."""
        return eta_at(self.exact_ess, target, halvings=30)

    def draw(self, log_p: Tensor, prompts: Tensor, heights: Tensor) -> tuple[Tensor, Tensor]:
        """States and tokens of responses, (n, t), −1 after their end; one uniform a token."""
        cdf = log_p.exp().cumsum(1)
        states = torch.full(heights.shape, -1)
        tokens = torch.full(heights.shape, -1)
        now = self.start[prompts]
        for k in range(heights.shape[1]):
            here = now >= 0
            if not bool(here.any()):
                break
            steps = cdf[now[here]]
            height = heights[here, k, None] * steps[:, -1:]
            token = torch.searchsorted(steps, height)[:, 0].clamp_max(VOCABULARY - 1)
            states[here, k] = now[here]
            tokens[here, k] = token
            now = now.clone()
            now[here] = self.follow[now[here], token]
        return states, tokens

    @cached_property
    def series(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """log π (S, A) and H (S,) at θ, then their first and second derivatives along v."""
        p, v = self.log_p().exp(), self.v
        log_p = self.log_p()
        centred = v - (p * v).sum(1, keepdim=True)
        variance = (p * centred.square()).sum(1, keepdim=True)
        slope = p * centred  # of p
        bend = p * (centred.square() - variance)
        first = -(slope * log_p).sum(1)
        second = -(bend * log_p).sum(1) - (slope * centred).sum(1)
        of_logs = log_p, centred, -variance.expand_as(p)
        return tuple(zip(of_logs, (-(p * log_p).sum(1), first, second), strict=True))

    def scores(self, states: Tensor, tokens: Tensor) -> tuple[Scores, ...]:
        """Scores of responses at θ and their derivatives along v."""
        return tuple(gathered(s, h, states, tokens) for s, h in self.series)

    def moved(self, eta: float, states: Tensor, tokens: Tensor) -> tuple[Scores, Divergence]:
        """Scores at θ + ηv, and how far each distribution has moved from θ's."""
        here, there = self.log_p(), self.log_p(eta)
        d = there - here
        jump = d.expm1()
        rest = jump - d - d.square() / 2
        p = here.exp()
        columns = [(p * x**m).sum(1) for x in (jump, rest) for m in (2, 4)]
        by_state = torch.stack(columns, 1)  # (S, 4)
        scores = gathered(there, -(there.exp() * there).sum(1), states, tokens)
        of = by_state[states.clamp_min(0)] * scores.mask[..., None]
        return scores, Divergence(of[..., :2], of[..., 2:])


def gathered(logs: Tensor, entropies: Tensor, states: Tensor, tokens: Tensor) -> Scores:
    """Scores of responses from those by state."""
    mask = states >= 0
    where = states.clamp_min(0)
    s = logs[where, tokens.clamp_min(0)]
    return Scores(torch.where(mask, s, 0.0), torch.where(mask, entropies[where], 0.0), mask)


def derivatives(f, step: float) -> tuple[float, float]:
    """f′ and f″/2 at 0 by Richardson's central differences."""
    here, first, second = f(0.0), [], []
    for size in (step, step / 2, step / 4):
        up, down = f(size), f(-size)
        first.append((up - down) / (2 * size))
        second.append((up - 2 * here + down) / (2 * size * size))
    return tuple((64 * x[2] - 20 * x[1] + x[0]) / 45 for x in (first, second))  # pyright: ignore


def _chain(name: str, longest: int, seed: int, scales: Tensor, modes: int) -> Chain:
    """Random logits by prompt, mode and position; the first token chooses the mode."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    size = PROMPTS, modes, longest, VOCABULARY
    logits = (normal(PROMPTS, modes, 1, VOCABULARY) + 0.4 * normal(*size)) * scales
    v = normal(PROMPTS, modes, 1, VOCABULARY) * 0.5 + normal(1, modes, 1, VOCABULARY)
    v = v + 0.5 * normal(*size)
    number = torch.arange(PROMPTS * modes * longest).view(size[:3])
    follow = torch.full(size, -1)
    follow[:, :, :-1] = number[:, :, 1:, None]
    if modes > 1 and longest > 1:
        follow[:, 0, 0, MIDDLING] = number[:, 1, 1]
        follow[:, 0, 0, ENTRY] = number[:, 2, 1]
    follow[..., EOS] = -1
    start = number[:, 0, 0]
    flat = [x.reshape(-1, VOCABULARY) for x in (follow, logits, v)]
    return Chain(name, start, *flat, longest)


def _set(logits: Tensor, token: int, probability: float) -> None:
    """Give a token a probability; the others keep their proportions."""
    others = [k for k in range(VOCABULARY) if k != token]
    rest = logits[..., others].logsumexp(-1)
    logits[..., token] = rest + torch.tensor(probability / (1 - probability)).double().log()


def modes() -> Chain:
    """A rare long mode."""
    chain = _chain("modes", 32, 11, torch.tensor(1.0).double(), 3)
    logits = chain.logits.view(PROMPTS, 3, 32, VOCABULARY)
    for mode, hazard in enumerate((0.3, 0.12, 0.03)):
        _set(logits[:, mode], EOS, hazard)
    logits[:, 0, :, 1] += 1.5  # usual responses are the more certain ones
    _set(logits[:, 0], EOS, 0.3)
    _enter(logits[:, 0, 0], (0.07, 0.02))
    return chain


def prompts() -> Chain:
    """Prompts of very unequal entropy."""
    scales = torch.logspace(0, 1, PROMPTS, dtype=torch.float64)
    scales = 0.3 * (14 / 0.3) ** ((scales - 1) / 9)
    chain = _chain("prompts", 12, 12, scales[:, None, None, None], 1)
    _set(chain.logits, EOS, 0.12)
    return chain


def flash() -> Chain:
    """A rare short mode of high entropy."""
    chain = _chain("flash", 16, 13, torch.tensor(1.0).double(), 3)
    logits = chain.logits.view(PROMPTS, 3, 16, VOCABULARY)
    logits[:, :2, :, 1] += 4.0
    logits[:, 2] *= 0.1
    for mode, hazard in enumerate((0.08, 0.08, 0.35)):
        _set(logits[:, mode], EOS, hazard)
    _enter(logits[:, 0, 0], (0.07, 0.02))
    return chain


def _enter(logits: Tensor, shares: tuple[float, float]) -> None:
    """Probabilities of the two modes at the first token, which never ends a response."""
    logits[..., EOS] = -30.0
    for _ in range(60):  # each changes the other's
        _set(logits, MIDDLING, shares[0])
        _set(logits, ENTRY, shares[1])


CHAINS = {"modes": modes, "prompts": prompts, "flash": flash}
