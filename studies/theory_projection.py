"""What a step loses when it is projected onto the scores of the typical responses.

    python -m studies.theory_projection

The typical set T is the smallest set of responses of probability .9. Its scores ∂S_i span a
subspace; Π is the projection on it. A step Πv moves the log-probabilities of T as v does, since
<∂S_i, Πv> = <∂S_i, v> for i in T. What it loses is what v does to the other responses alone, so of

    δH₁ = <g_H, v>,    g_H = −Σ_t π_t (S_t − S̄) ∂S_t

the part −Σ_{t∉T} π_t (S_t − S̄) <∂S_t, v − Πv>. Rare responses have a large S̄ − S_t, so their
weight in entropy is larger than their probability.

Fixed before it ran. Subjects: the random policies of theory_variance, eight of each kind, responses
of 2, 4 and 6 tokens, all enumerated. Arms: v of the exact gradient of reward and of a batch of 16
responses (seed of the policy), for independent rewards and for the share of the first token.
Reading: projection is fine where δH₁ and δJ₁ keep .9 to 1.1 of themselves, by the 95 % interval of
the mean over policies. Where T spans what all responses span, Π changes nothing; the page has the
ratio of ranks. Stopping: once. Writes docs/results/theory_projection.md. One minute on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from studies.theory_policies import over, write_page
from studies.theory_typical import SEEDS, THRESHOLD, policies, typical
from studies.theory_variance import LENGTHS, REWARDS, enumerated, rewards

BATCH = 16


@dataclass(frozen=True)
class Kept:
    """What a projected step keeps.

    Attributes:
        ranks: Rank of the typical scores over that of all.
        size: |Πv|² / |v|².
        entropy: <g_H, Πv> / <g_H, v>.
        reward: <g_J, Πv> / <g_J, v>.
    """

    ranks: float
    size: float
    entropy: float
    reward: float


def span(w: Tensor) -> Tensor:
    """(d, r) orthonormal basis of the rows of a matrix."""
    _, s, rows = torch.linalg.svd(w, full_matrices=False)
    return rows[s > THRESHOLD * s[0]].T


def kept(w: Tensor, log_pi: Tensor, reward: Tensor, weights: Tensor) -> Kept:
    """Project a step and compare.

    Args:
        w: (n, d) score vectors of every response.
        log_pi: (n,) log-probabilities.
        reward: (n,) rewards.
        weights: (n,) of the responses in v = Σ weights ∂S, advantages included.

    Returns:
        The shares.
    """
    pi = log_pi.exp()
    chosen = typical(pi)
    basis = span(w[chosen])
    step = weights @ w
    projected = basis @ (basis.T @ step)
    slope_h = -((pi * (log_pi - pi @ log_pi)) @ w)
    slope_j = (pi * (reward - pi @ reward)) @ w
    return Kept(
        basis.shape[1] / span(w).shape[1],
        float(projected.square().sum() / step.square().sum()),
        float(slope_h @ projected / (slope_h @ step)),
        float(slope_j @ projected / (slope_j @ step)),
    )


def steps(pi: Tensor, reward: Tensor, seed: int) -> dict[str, Tensor]:
    """Weights of the exact gradient, and of a batch."""
    advantage = reward - pi @ reward
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(pi, BATCH, replacement=True, generator=generator)
    counts = torch.bincount(drawn, minlength=len(pi)).to(pi)
    return {"exact gradient": pi * advantage, f"batch of {BATCH}": counts / BATCH * advantage}


HEAD = (
    "| policy | length | reward | step | rank of T ÷ rank | size kept | δH₁ kept | δJ₁ kept |\n"
    + "|---" * 8
    + "|"
)


def tables() -> str:
    """A row per policy, length, reward and step."""
    lines = [HEAD]
    for name in policies(0):
        for length in LENGTHS:
            found: dict[tuple[str, str], list[Kept]] = {}
            for seed in SEEDS:
                w, log_pi, tokens = enumerated(policies(seed)[name], length)
                by_reward = rewards(tokens, seed)
                for arm in REWARDS:
                    for step, weights in steps(log_pi.exp(), by_reward[arm], seed).items():
                        row = kept(w, log_pi, by_reward[arm], weights)
                        found.setdefault((arm, step), []).append(row)
            for (arm, step), rows in found.items():
                columns = [[x.ranks, x.size, x.entropy, x.reward] for x in rows]
                cells = [over(list(column)) for column in zip(*columns, strict=True)]
                lines.append(f"| {name} | {length} | {arm} | {step} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_page("theory_projection", tables())
