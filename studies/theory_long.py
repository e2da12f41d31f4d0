"""How the terms of the Fisher kernel scale with the length of responses.

    python -m studies.theory_long

Policies of fixed length D. `context`: a softmax table with a row per prefix. `Markov`: a row per
last token. `transformer`: a random Qwen2 of one layer. The second moments of K and the pair terms
of δℋ₁ are exact for tables at every D (recursions over prefixes or states; the own pair of the
Markov table from 100,000 chains) and for the transformer up to D = 6. Above, they are of 16 prompts
× 8 responses, with fresh responses for E. Writes docs/results/theory_long.md. One minute on one
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.gradients.storage_plan import GradientBackend
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import as_prompts
from studies.theory_policies import (
    all_responses,
    gradient_matrix,
    over,
    transformer,
    write_page,
)

SEEDS = range(6)
EXACT = (2, 4, 8, 16, 32, 64, 128, 256)
TREES = (2, 4, 6, 8, 10, 12, 14)
SAMPLED = (8, 16, 32, 64, 128)
PROMPTS, GROUP = 16, 8


@dataclass(frozen=True)
class Terms:
    """The terms of a policy at one length.

    Attributes:
        diagonal: E[K(t, t)] = tr F_p.
        same: √E[K²] of independent responses to one prompt, √tr F_p².
        other: The same of two prompts, √tr F_p F_p'.
        own_pair: −E[(S − S̄) A K(t, t)], one pair's part in δℋ₁.
        same_pair: <∂ℋ_p, ∂J_p>.
        other_pair: <∂ℋ_p, ∂J_p'>.
    """

    diagonal: float
    same: float
    other: float
    own_pair: float
    same_pair: float
    other_pair: float


def softmax_fisher(log_p: Tensor) -> Tensor:
    """tr f² of f = diag π − ππᵀ by row: Σπ² − 2Σπ³ + (Σπ²)².

    Args:
        log_p: (rows, v) log-probabilities.

    Returns:
        (rows,).
    """
    p = log_p.exp()
    square = p.square().sum(-1)
    return square - 2 * p.pow(3).sum(-1) + square.square()


def share_of_first(tokens: Tensor) -> Tensor:
    """The reward: the share of a response's tokens that are token 0."""
    return (tokens == 0).double().mean(-1)


def context_terms(levels: list[Tensor]) -> Terms:
    """Exact terms of a table with a row per prefix; prompts share no parameter.

    Args:
        levels: By position k, (v^k, v) logits after each prefix, in dictionary order.

    Returns:
        The terms.
    """
    levels = [x.clone().requires_grad_() for x in levels]
    v, count = levels[0].shape[1], len(levels)
    reach = torch.zeros(1, dtype=torch.float64)  # log-probability of each prefix
    hits, norms = torch.zeros(2, 1, dtype=torch.float64)
    diagonal, same = torch.zeros(2, dtype=torch.float64)
    for logits in levels:
        log_p = logits.log_softmax(-1)
        p, here = log_p.exp(), reach.exp()
        diagonal = diagonal + here @ (1 - p.square().sum(-1))
        same = same + here.square() @ softmax_fisher(log_p)
        step = 1 - 2 * p + p.square().sum(-1, keepdim=True)  # |e_a − π|²
        norms = (norms[:, None] + step).flatten()
        hits = (hits[:, None] + (torch.arange(v) == 0)).flatten()
        reach = (reach[:, None] + log_p).flatten()
    entropy, reward = -(reach.exp() * reach).sum(), reach.exp() @ hits / count
    slopes = [torch.autograd.grad(x, levels, retain_graph=True) for x in (entropy, reward)]
    same_pair = sum(float((a * b).sum()) for a, b in zip(*slopes, strict=True))
    advantage = hits / count - reward
    own = -(reach.exp() * (reach + entropy) * advantage * norms).sum()
    moments = [float(x.detach()) for x in (diagonal, same.sqrt(), own)]
    return Terms(moments[0], moments[1], 0.0, moments[2], same_pair, 0.0)


def random_levels(vocabulary: int, length: int, seed: int) -> list[Tensor]:
    """Standard normal logits for every prefix."""
    rng = torch.Generator().manual_seed(seed)
    return [
        torch.randn(vocabulary**k, vocabulary, generator=rng, dtype=torch.float64)
        for k in range(length)
    ]


def markov_terms(logits: Tensor, starts: tuple[int, int], length: int) -> tuple[Terms, Tensor]:
    """Exact terms of a Markov table, without the own pair, and the gradients behind them.

    Args:
        logits: (v, v) logits after each last token.
        starts: The two prompts, of one token each.
        length: D.

    Returns:
        The terms (own_pair NaN), and (2, 2, v, v) ∂ℋ_p and ∂J_p.
    """
    theta = logits.clone().requires_grad_()
    log_p = theta.log_softmax(-1)
    p, entropy = log_p.exp(), -(log_p.exp() * log_p).sum(-1)
    visits, slopes = [], []
    for start in starts:
        here = torch.nn.functional.one_hot(torch.tensor(start), len(logits)).double()
        total, reward = torch.zeros_like(here), torch.zeros(())
        for _ in range(length):
            total, here = total + here, here @ p
            reward = reward + here[0] / length
        pair = (total @ entropy, reward)
        slopes += [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in pair]
        visits.append(total.detach())
    trace, square = 1 - p.detach().square().sum(-1), softmax_fisher(log_p.detach())
    of_entropy, of_reward = slopes[::2], slopes[1::2]
    same = [float((n * n) @ square) ** 0.5 for n in visits]
    terms = Terms(
        float(sum(n @ trace for n in visits)) / 2,
        sum(same) / 2,
        float((visits[0] * visits[1]) @ square) ** 0.5,
        float("nan"),
        sum(float((a * b).sum()) for a, b in zip(of_entropy, of_reward, strict=True)) / 2,
        sum(float((of_entropy[i] * of_reward[1 - i]).sum()) for i in (0, 1)) / 2,
    )
    return terms, torch.stack([torch.stack(of_entropy), torch.stack(of_reward)])


def markov_own_pair(logits: Tensor, start: int, length: int, n: int, seed: int) -> float:
    """−E[(S − S̄) A K(t, t)] of n sampled chains, from their transition counts."""
    rng = torch.Generator().manual_seed(seed)
    log_p = logits.log_softmax(-1)
    cdf, v = log_p.exp().cumsum(-1), len(logits)
    state = torch.full((n,), start)
    counts = torch.zeros(n, v, v, dtype=torch.float64)
    for _ in range(length):
        heights = torch.rand(n, 1, generator=rng, dtype=torch.float64)
        drawn = (heights > cdf[state]).sum(-1).clamp_max(v - 1)
        counts[torch.arange(n), state, drawn] += 1
        state = drawn
    g = counts - counts.sum(-1, keepdim=True) * log_p.exp()
    s, reward = (counts * log_p).sum((1, 2)), counts[:, :, 0].sum(1) / length
    return -float(((s - s.mean()) * (reward - reward.mean()) * g.square().sum((1, 2))).mean())


def enumerated_terms(
    policy: Policy, prompts: list[list[int]], length: int, backend: GradientBackend = "hooks"
) -> Terms:
    """Exact terms of any policy with few responses, from the score vectors of all of them.

    Args:
        policy: Without end-of-sequence tokens.
        prompts: Two prompts.
        length: D.

    Returns:
        The terms.
    """
    parts = []
    for prompt in prompts:
        responses = all_responses(prompt, policy.vocabulary, length)
        w = gradient_matrix(policy, score_sums(responses), backend)
        s = score(policy, responses).logprobs.sum(1)
        parts.append((w, s, s.exp(), share_of_first(torch.stack(responses.response_ids))))
    fishers = [w.T @ (p[:, None] * w) for w, _, p, _ in parts]
    of_entropy = [-(p * s) @ w for w, s, p, _ in parts]
    of_reward = [(p * r) @ w for w, _, p, r in parts]
    own = [-float((p * (s - p @ s) * (r - p @ r)) @ w.square().sum(1)) for w, s, p, r in parts]
    return Terms(
        sum(float(f.trace()) for f in fishers) / 2,
        sum(float(f.square().sum()) ** 0.5 for f in fishers) / 2,
        float((fishers[0] * fishers[1]).sum()) ** 0.5,
        sum(own) / 2,
        sum(float(a @ b) for a, b in zip(of_entropy, of_reward, strict=True)) / 2,
        sum(float(of_entropy[i] @ of_reward[1 - i]) for i in (0, 1)) / 2,
    )


def sampled_terms(policy: Policy, prompts: list[list[int]], length: int, seed: int) -> Terms:
    """The same from sampled responses: U, and as many fresh ones for E."""
    n = len(prompts)
    rng = torch.Generator().manual_seed(seed)

    def drawn() -> Rollouts:
        ids = as_prompts(policy, prompts)
        return respond(policy, ids, GROUP, rng, max_new_tokens=length)

    U, E = drawn(), drawn()
    (w, s), (w_E, s_E) = (
        (gradient_matrix(policy, score_sums(x)), score(policy, x).logprobs.sum(1)) for x in (U, E)
    )
    advantage = _without_others(share_of_first(torch.stack(U.response_ids)), n)
    K, same = w_E @ w.T, E.prompt_index[:, None] == U.prompt_index
    pairs = -_without_others(s_E, n)[:, None] * K * advantage
    norms = w.square().sum(1)
    centred = s - s_E.view(n, -1).mean(1).repeat_interleave(GROUP)  # independent of the advantage
    return Terms(
        float(norms.mean()),
        float(K[same].square().mean()) ** 0.5,
        float(K[~same].square().mean()) ** 0.5,
        -float((centred * advantage * norms).mean()),
        float(pairs[same].mean()),
        float(pairs[~same].mean()),
    )


def _without_others(x: Tensor, prompts: int) -> Tensor:
    """x minus the mean of the other responses to the same prompt."""
    groups = x.view(prompts, -1)
    others = (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)
    return (groups - others).flatten()


def cases() -> dict[str, tuple[tuple[int, ...], Callable[[int, int], Terms]]]:
    """By name: lengths, and the terms at a length of a policy drawn by a seed."""

    def context(length: int, seed: int) -> Terms:
        return context_terms(random_levels(2, length, seed))

    def markov(length: int, seed: int) -> Terms:
        (logits,) = random_levels(3, 2, seed)[1:]
        terms, _ = markov_terms(logits, (0, 1), length)
        own = sum(markov_own_pair(logits, start, length, 100_000, seed) for start in (0, 1)) / 2
        return replace(terms, own_pair=own)

    def exact(length: int, seed: int) -> Terms:
        return enumerated_terms(transformer(3, 8, seed=seed), [[0, 1], [1, 2]], length)

    def sampled(length: int, seed: int) -> Terms:
        rng = torch.Generator().manual_seed(seed)
        prompts = torch.randint(3, (PROMPTS, 4), generator=rng).tolist()
        return sampled_terms(transformer(3, 8, seed=seed), prompts, length, seed)

    return {
        "context table, exact": (TREES, context),
        "Markov table, exact": (EXACT, markov),
        "transformer, exact": ((2, 3, 4, 5, 6), exact),
        "transformer, sampled": (SAMPLED, sampled),
    }


def tables() -> str:
    """A table per policy, and the exponents of its last lengths."""
    out = []
    for name, (lengths, terms_of) in cases().items():
        found = np.array([[astuple(terms_of(D, seed)) for D in lengths] for seed in SEEDS])
        diagonal, same, other, *pairs = np.moveaxis(found, 2, 0)  # (seeds, lengths) each
        columns = [diagonal, same, other, same / diagonal, other / diagonal]
        lines = [f"### {name}", "", HEAD, "|" + "---|" * 9]
        for k, D in enumerate(lengths):
            cells = [over(list(c[:, k])) if c.any() else "0" for c in columns]
            cells += [f"{(c[:, k] ** 2).mean() ** 0.5:.2g}" for c in pairs]
            lines.append(f"| {D} | " + " | ".join(cells) + " |")
        x = np.log(lengths[-3:])
        slopes = [
            over([np.polyfit(x, np.log(abs(y)), 1)[0] for y in c[:, -3:]]) if c.any() else ""
            for c in (*columns, *pairs)
        ]
        lines.append("| exponent of D | " + " | ".join(slopes) + " |")
        out.append("\n".join(lines))
        print(out[-1], flush=True)
    return "\n\n".join(out)


HEAD = (
    "| D | E[K(t,t)] | rms K, same prompt | rms K, other | its cosine, same | other | "
    "own pair (rms) | same-prompt pair (rms) | other-prompt pair (rms) |"
)


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    write_page("theory_long", tables())


if __name__ == "__main__":
    main()
