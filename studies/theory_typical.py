"""Can the log-probabilities of all typical responses be moved one by one?

    python -m studies.theory_typical

Policies over three tokens whose responses have D tokens. For D up to 8 every response is listed;
for D = 32, 2d distinct responses are sampled. Compares e^ℋ with the number of parameters d, and
measures the rank of the kernel and the share of a reward that a step can follow. Writes
docs/results/theory_typical.md. About three minutes on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.nouns.rollouts import Rollouts
from isentrope.oracle import TabularPolicy
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import as_prompts
from studies.theory_long import share_of_first
from studies.theory_policies import (
    all_responses,
    gradient_matrix,
    over,
    transformer,
    write_page,
)

V, PROMPT = 3, [0, 1, 2]
LENGTHS = (2, 3, 4, 5, 6, 7, 8)
LONG = 32
SEEDS = range(8)
THRESHOLD = 1e-6
"""Singular values below this part of the largest count as zero."""
TYPICAL = 0.9
"""Probability of the typical set."""


@dataclass(frozen=True)
class Freedom:
    """What the score vectors of a list of responses span.

    Attributes:
        rank: Of K on the responses.
        effective: Effective rank (tr F)²/tr F².
        any_reward: ρ, the share of an independent random reward per response, less its mean, that a
            step can follow.
        reward: The same share of a given reward.
    """

    rank: int
    effective: float
    any_reward: float
    reward: float


def freedom(w: Tensor, pi: Tensor, reward: Tensor, threshold: float = THRESHOLD) -> Freedom:
    """ρ = Σ_i π_i² g_iᵀ F⁺ g_i / (1 − Σ π²), the rank of F = Σ π g gᵀ, and the share of one reward.

    Args:
        w: (n, d) score vectors g.
        pi: (n,) probabilities, of sum one.
        reward: (n,) reward of each response.
        threshold: Singular values below this part of the largest count as zero.

    Returns:
        The numbers.
    """
    root = pi.sqrt()[:, None]
    u, s, _ = torch.linalg.svd(root * w, full_matrices=False)
    basis = u[:, s > threshold * s[0]]  # of √π W
    target = root[:, 0] * (reward - pi @ reward)
    return Freedom(
        basis.shape[1],
        float(s.square().sum() ** 2 / s.pow(4).sum()),
        float(pi @ basis.square().sum(1) / (1 - pi.square().sum())),
        float((target @ basis).square().sum() / target.square().sum()),
    )


def policies(seed: int) -> dict[str, Policy]:
    """The policies that are compared."""
    table = TabularPolicy(V, 1, memory=1, seed=seed)
    adapted = transformer(V, 8, seed=seed)
    config = LoraConfig(r=1, target_modules="all-linear", init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lora = get_peft_model(adapted.model, config).double().eval()
    return {
        "Markov table": Policy(table, eos_token_id=()),
        "transformer, LoRA of rank 1": Policy(lora, eos_token_id=(), pad_token_id=0),
        "transformer, all parameters": transformer(V, 8, seed=seed),
    }


def parameters(policy: Policy) -> int:
    """d."""
    return sum(p.numel() for p in policy.theta.values())


def typical(pi: Tensor) -> Tensor:
    """Positions of the smallest set of responses that has the probability TYPICAL."""
    order = pi.argsort(descending=True)
    return order[: int((pi[order].cumsum(0) < TYPICAL).sum()) + 1]


def exact_row(policy: Policy, length: int) -> list[float]:
    """e^ℋ, size of the typical set, rank of K on it, and `Freedom` on all responses."""
    responses = all_responses(PROMPT, V, length)
    backend = "loop" if isinstance(policy.model, TabularPolicy) else "hooks"
    if backend == "loop":
        w, s = markov_scores(policy.model.table.detach()[1:], responses)
    else:
        w = gradient_matrix(policy, score_sums(responses))
        s = score(policy, responses).logprobs.sum(1)
    pi = s.exp()
    reward = share_of_first(torch.stack(responses.response_ids))
    chosen = typical(pi)
    found = freedom(w, pi, reward)
    within = freedom(w[chosen], pi[chosen] / pi[chosen].sum(), reward[chosen])
    size = float((-(pi @ s)).exp())
    return [size, len(chosen), within.rank, found.effective, found.any_reward, found.reward]


def markov_scores(logits: Tensor, responses: Rollouts) -> tuple[Tensor, Tensor]:
    """Score vectors and log-probabilities of a Markov table, from transition counts."""
    tokens = torch.stack(responses.response_ids)
    before = torch.cat([torch.full_like(tokens[:, :1], PROMPT[-1]), tokens[:, :-1]], 1)
    counts = torch.zeros(len(tokens), V * V, dtype=torch.float64)
    counts.scatter_add_(1, before * V + tokens, torch.ones_like(tokens).double())
    counts, log_p = counts.view(-1, V, V), logits.log_softmax(-1)
    scores = counts - counts.sum(-1, keepdim=True) * log_p.exp()
    return scores.flatten(1), (counts * log_p).sum((1, 2))


def long_row(policy: Policy, seed: int) -> list[float]:
    """h·D, d, responses, rank and effective rank of distinct sampled responses of LONG tokens."""
    n = 2 * parameters(policy)
    rng = torch.Generator().manual_seed(seed)
    drawn = respond(policy, as_prompts(policy, [PROMPT]), n, rng, max_new_tokens=LONG)
    distinct = torch.stack(drawn.response_ids).unique(dim=0)
    ids = [torch.tensor(PROMPT)] * len(distinct)
    sample = Rollouts(ids, list(distinct), torch.zeros(len(distinct), dtype=torch.int64))
    scores = score(policy, sample)
    found = freedom(
        gradient_matrix(policy, score_sums(sample)),
        torch.full((len(distinct),), 1 / len(distinct), dtype=torch.float64),
        share_of_first(distinct),
    )
    entropy = float(scores.entropies.sum(1).mean())
    return [entropy, len(distinct), found.rank, found.effective]


def tables() -> str:
    """Every length of every policy, and the long one."""
    out: list[str] = []
    names = list(policies(0))
    for name in names:
        drawn = [policies(seed)[name] for seed in SEEDS]
        d = parameters(drawn[0]) - (V if name == "Markov table" else 0)  # its row of no token
        lines = [f"### {name}, d = {d}", "", HEAD, "|" + "---|" * 7]
        for length in LENGTHS:
            rows = list(zip(*(exact_row(policy, length) for policy in drawn), strict=True))
            lines.append(f"| {length} | " + " | ".join(over(list(x)) for x in rows) + " |")
        out.append("\n".join(lines))
        print(out[-1], flush=True)
    lines = [f"### D = {LONG}, 2d sampled responses", "", LONG_HEAD, "|" + "---|" * 6]
    for name in names[1:]:
        drawn = [policies(seed)[name] for seed in SEEDS]
        rows = list(zip(*(long_row(p, s) for s, p in enumerate(drawn)), strict=True))
        cells = [name, str(parameters(drawn[0])), *(over(list(x)) for x in rows)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n\n".join([*out, "\n".join(lines)])


HEAD = (
    "| D | e^ℋ | typical responses | rank of K on them | effective rank of F | "
    "ρ, any reward | share of a simple reward |"
)
LONG_HEAD = "| policy | d | ℋ, nats | distinct responses | rank of K | effective rank |"


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    write_page("theory_typical", tables())


if __name__ == "__main__":
    main()
