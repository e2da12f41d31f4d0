"""Is the frontier of a step that of finite steps, and how far? Exact policies, no sampling (T14).

    python -m validation.frontier_steps

The policies, rewards and metrics are those of `frontier_coverage`. Steps of one length go to
`ANGLES` points of the edge, and to `RANDOM` random points inside: half of such a step is a random
direction, and half one in the span of P g_J and P g_H, without which all of them would be near the
centre. ΔJ and ΔH are computed by the visits of states at logits + ηd. η is given by the largest
change of a logit among the steps to the edge. Of first order a relative error is proportional to η,
and what second order leaves to η².
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date

import torch
from torch import Tensor

from isentrope.attribution.frontier.ellipse import Ellipse
from validation.chains import CHAINS, Chain
from validation.frontier_coverage import Exact
from validation.switches import FUNCTIONALS, SYMBOL

ANGLES = 12
RANDOM = 10_000
AT_ONCE = 250
RANDOM_FINITE = 50
"""Of the random steps, those that are taken."""
SIZES = (1.0, 0.5, 0.25)
"""Largest change of a logit, nats."""
SMALL = 1e-3
"""The same, for the second derivative by differences."""


def values(exact: Exact, logits: Tensor) -> Tensor:
    """(k, 2) J and entropy of the chain with k other tables of logits, (k, S, A)."""
    log_p = logits.log_softmax(2)
    p = log_p.exp()
    visits = visits_of(exact.chain, p)
    earned = (visits * (p * exact.reward).sum(2)).sum(1)
    entropy = (visits * -(p * log_p).sum(2)).sum(1)
    if exact.functional == "per_token":
        entropy = entropy / visits.sum(1)
    return torch.stack((earned, entropy), 1)


def visits_of(chain: Chain, p: Tensor) -> Tensor:
    """(k, S) how often a response visits each state, on average over prompts, of k policies."""
    states = p.shape[1]
    kept = chain.follow >= 0
    now = torch.bincount(chain.start, minlength=states).double() / len(chain.start)
    now = now.expand(len(p), states)
    total = now.clone()
    for _ in range(chain.longest - 1):
        flow = (now[..., None] * p)[:, kept]
        now = torch.zeros_like(total).index_add_(1, chain.follow[kept], flow)
        total += now
    return total


def changes(exact: Exact, steps: Tensor, eta: float) -> Tensor:
    """(k, 2) ΔJ and ΔH of steps."""
    logits = exact.chain.logits
    moved = values(exact, logits + eta * steps.view(-1, *logits.shape))
    return moved - values(exact, logits[None])


def of_length(steps: Tensor, P: Tensor, length: float) -> Tensor:
    """Steps, (k, S·A), scaled to a length in the metric P⁻¹."""
    return steps * (length / (steps.square() / P).sum(1, keepdim=True).sqrt())


def random_steps(span: Tensor, P: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, S·A) half a random direction, half one in the span of P g_J and P g_H."""
    noise = torch.randn(count, len(P), generator=generator, dtype=torch.float64) * P.sqrt()
    inside = torch.randn(count, 2, generator=generator, dtype=torch.float64) @ span
    return of_length(noise, P, 1.0) + of_length(inside, P, 1.0)


def rows(name: str, functional: str) -> Iterator[str]:
    """The rows of one policy."""
    exact = Exact(CHAINS[name](), functional, 1.0)
    gradients = exact.gradients
    P = exact.step.preconditioner["logits"]
    free = exact.step.components["gradient"]["logits"]
    length = math.sqrt(float((free.square() / P).sum()))
    ellipse = Ellipse(gradients @ (P[:, None] * gradients.T), length)
    turn = torch.arange(ANGLES).double() * 2 * math.pi / ANGLES
    span = gradients / (P * gradients.square()).sum(1, keepdim=True).sqrt() * P
    edge = of_length(torch.stack((turn.cos(), turn.sin()), 1) @ span, P, length)
    generator = torch.Generator().manual_seed(4)

    def random(count: int) -> Tensor:
        return of_length(random_steps(span, P, count, generator), P, length)

    def share(points: Tensor) -> Tensor:
        return ellipse.share(points[:, :, None] * points[:, None, :])

    first = edge @ gradients.T
    some = random(RANDOM_FINITE)
    many = range(RANDOM // AT_ONCE)  # all at once are gigabytes
    inside = max(float(share(random(AT_ONCE) @ gradients.T).max()) for _ in many)
    on_edge = float((share(first) - 1).abs().max())
    per_nat = 1 / float(edge.abs().max())
    small = SMALL * per_nat
    second = (changes(exact, edge, small) + changes(exact, edge, -small)) / (2 * small**2)
    title = f"{name}, {SYMBOL[functional]}"
    for size in SIZES:
        eta = size * per_nat
        measured = changes(exact, edge, eta) / eta
        errors = [
            (measured - predicted).abs().max(0).values / ellipse.reach
            for predicted in (first, first + eta * second)
        ]
        taken = changes(exact, some, eta) / eta
        cells = [f"{x:.2g}" for error in errors for x in error.tolist()]
        radii = share(measured)
        cells += [f"{float(radii.min()):.3f}–{float(radii.max()):.3f}"]
        cells += [f"{float(share(taken).max()):.3f}"]
        yield f"| {title} | {size:g} | {' | '.join(cells)} |"
    yield f"| {title} | → 0 | | | | | 1 ± {on_edge:.0e} | {inside:.3f} of {RANDOM:,} |"


def main() -> None:
    """Print the table."""
    print(f"`python -m validation.frontier_steps`, {date.today()}.\n")
    print(
        "| policy | largest change of a logit | ΔJ beyond first order | ΔH | ΔJ beyond second | ΔH "
        "| r of ΔJ/η, ΔH/η of steps to the edge | largest r of random steps |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in CHAINS:
        for functional in FUNCTIONALS:
            for row in rows(name, functional):
                print(row)


if __name__ == "__main__":
    main()
