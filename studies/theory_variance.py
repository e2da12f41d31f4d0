"""The variance of δH₁ over batches, and the squared kernel of second order.

    python -m studies.theory_variance

At fixed θ, with on-policy batches of B responses, advantages A = R − E[R] and SGD (P = 1),

    δH₁ = (1/B) Σ_i A_i k_i,    k_i = <g_H, ∂S_i> = −Σ_t π_t (S_t − S̄) K₁(t, i)
    B Var δH₁ = E[A² k²] − E[A k]²,    E[k²] = (S − S̄)ᵀ π K₁² π (S − S̄),    K₁² = K₁ π K₁

so where A² is independent of k², B Var δH₁ is σ_A² times a quadratic form of K₁². The noise of a
batch also moves entropy at second order, by K₂ (T7), whose first term is the trace of the same K₁²:

    B E[δH₂ of the noise], K₁² part = −½ σ_A² Σ_t π_t (1 + S_t − S̄) K₁²(t, t)

Fixed before it ran. Subjects: eight random policies of each of the three kinds of theory_typical,
three tokens, responses of 2, 4 and 6, every response enumerated. Arms: rewards that are independent
normal numbers, and the share of the first token. Reading: the form of K₁² stands for the variance
where σ_A² E[k²] / E[A² k²] has its 95 % interval within .8 and 1.25; the two uses of K₁² are "one
number" where the ratio of B Var δH₁ to the K₁² part (both over σ_A²) has a spread over policies
below a fifth. Stopping: once. Writes docs/results/theory_variance.md. One minute on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.oracle.tabular import TabularPolicy
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from studies.theory_policies import all_responses, gradient_matrix, over, write_page
from studies.theory_typical import PROMPT, SEEDS, V, markov_scores, policies, share_of_first

LENGTHS = (2, 4, 6)
REWARDS = ("independent", "share of the first token")


@dataclass(frozen=True)
class Variance:
    """Per unit η, times the size of the batch.

    Attributes:
        exact: B Var δH₁.
        mean_square: E[A k]², what the mean takes from E[A² k²].
        by_kernel: σ_A² E[k²], the form of K₁².
        second_order: The K₁² part of E[δH₂] of the noise of a batch, times B.
    """

    exact: float
    mean_square: float
    by_kernel: float
    second_order: float


def variance(w: Tensor, log_pi: Tensor, reward: Tensor) -> Variance:
    """Var δH₁ and the two uses of K₁², over every response of a policy.

    Args:
        w: (n, d) score vectors.
        log_pi: (n,) log-probabilities.
        reward: (n,) reward of each response.

    Returns:
        The numbers.
    """
    pi = log_pi.exp()
    centred = log_pi - pi @ log_pi
    advantage = reward - pi @ reward
    kernel = w @ w.T
    slopes = -kernel @ (pi * centred)
    square = float(pi @ (advantage * slopes).square())
    mean = float(pi @ (advantage * slopes))
    spread = float(pi @ advantage.square())
    diagonal = kernel.square() @ pi
    return Variance(
        square - mean**2,
        mean**2,
        spread * float(pi @ slopes.square()),
        -0.5 * spread * float((pi * (1 + centred)) @ diagonal),
    )


def enumerated(policy: Policy, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Score vectors, log-probabilities and tokens of every response."""
    responses = all_responses(PROMPT, V, length)
    tokens = torch.stack(responses.response_ids)
    if isinstance(policy.model, TabularPolicy):
        return *markov_scores(policy.model.table.detach()[1:], responses), tokens
    w = gradient_matrix(policy, score_sums(responses))
    return w, score(policy, responses).logprobs.sum(1), tokens


def rewards(tokens: Tensor, seed: int) -> dict[str, Tensor]:
    """(n,) of each arm."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(tokens), generator=generator, dtype=torch.float64)
    return dict(zip(REWARDS, (drawn, share_of_first(tokens)), strict=True))


def tables() -> str:
    """A row per policy, length and reward."""
    lines = [HEAD]
    for name in policies(0):
        for length in LENGTHS:
            found: dict[str, list[Variance]] = {arm: [] for arm in REWARDS}
            for seed in SEEDS:
                w, log_pi, tokens = enumerated(policies(seed)[name], length)
                for arm, reward in rewards(tokens, seed).items():
                    found[arm].append(variance(w, log_pi, reward))
            for arm, values in found.items():
                cells = [
                    over([x.by_kernel / (x.exact + x.mean_square) for x in values]),
                    over([x.mean_square / (x.exact + x.mean_square) for x in values]),
                    over([x.exact / abs(x.second_order) for x in values]),
                    f"{sum(x.second_order < 0 for x in values)} of {len(values)}",
                ]
                lines.append(f"| {name} | {length} | {arm} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


HEAD = (
    "| policy | length | reward | σ_A² E[k²] / E[A² k²] | E[A k]² / E[A² k²] | "
    "B Var δH₁ / its K₁² part of second order | that part lowers entropy |\n" + "|---" * 7 + "|"
)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_page("theory_variance", tables())
