"""The Fisher kernel of a real model: its pairs, a model of it, and the variance that it predicts.

    python -m studies.smollm2_kernel --checkpoint runs/smollm2_0/training_state/step_20

What theory_model, kernel_prediction and theory_variance say of the toy and of random policies is
asked of SmolLM2-135M. Two of their neighbours cannot be: one model has one width (theory_width),
and typical responses cannot be listed (theory_projection); the page has their number, e^ℋ.

Fixed before it ran. Subject: step 20 of configs/train_smollm2_sentence.yaml, seed 0; P = 1,
float32, LoRA of rank 16. Four batches of 20 held-out prompts × 8, temperature 1, as in training.
Readings, ± half of the 95 % interval over the four batches:

1. Root mean square of the cosines of distinct responses to one prompt, and to different ones, and
   the effective rank (tr K)²/tr K² of 160 responses. No rule: the toy has .58 to .85 and .1.
2. r of kernel_prediction, by its rule: the model with predicted norms and twenty directions
   predicts influences where the lower end of r is above .5.
3. σ_A² E[k²] / E[A² k²] of theory_variance, by its rule: the form of K₁² stands for the variance of
   δH₁ over batches where the interval is within .8 and 1.25. k_i is summed over the responses to
   other prompts, e_t K_ti with e_t the surprisal against the rest of its group, and k_i² over pairs
   of two other prompts, so that no response is squared.

Stopping: once; left out if it takes more than 10 minutes of one CPU. Writes
docs/results/smollm2_kernel.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import isentrope as ise
from examples.sentence import Sentence
from isentrope.attribution.fisher.prompt_pairs import cosines
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from studies.kernel_prediction import correlations
from studies.theory_model import distinct_rows
from studies.theory_policies import over, write_page

BATCHES = range(4)
PROMPTS = 20
GROUP = 8
MAX_NEW_TOKENS = 8
VARIANCE = "σ_A² E[k²] / E[A² k²]"


def against_group(surprisal: Tensor) -> Tensor:
    """(n,) surprisal less the mean of the other responses of its group."""
    grouped = surprisal.view(-1, GROUP)
    others = (grouped.sum(1, keepdim=True) - grouped) / (GROUP - 1)
    return (grouped - others).flatten()


def squared_slopes(K: Tensor, e: Tensor) -> Tensor:
    """(n,) k_i² without bias, from pairs of prompts that are neither one another nor that of i.

    Args:
        K: (n, n) kernel of groups of equal size, one after the other.
        e: (n,) surprisals, as `against_group` gives them.

    Returns:
        The squares, which may be negative by chance.
    """
    n = len(K)
    prompts = n // GROUP
    sums = (e[:, None] * K).view(prompts, GROUP, n).mean(1)
    of_prompt = torch.arange(n) // GROUP
    sums[of_prompt, torch.arange(n)] = 0.0
    pairs = (prompts - 1) * (prompts - 2)
    return (sums.sum(0).square() - sums.square().sum(0)) / pairs


def variance_ratio(K: Tensor, e: Tensor, advantages: Tensor) -> float:
    """σ_A² E[k²] / E[A² k²]."""
    square = squared_slopes(K, e)
    weight = advantages.square()
    return float(weight.mean() * square.mean() / (weight * square).mean())


def pair_sizes(K: Tensor, prompts: Tensor) -> dict[str, float]:
    """Root mean square of the cosines by relation of the prompts."""
    norms = K.diagonal()
    cosine = cosines(K, norms, norms).nan_to_num(0.0)
    same = prompts[:, None] == prompts
    own = torch.eye(len(K), dtype=torch.bool)
    return {
        "cosine, one prompt (rms)": float(cosine[same & ~own].square().mean().sqrt()),
        "cosine, other prompts (rms)": float(cosine[~same].square().mean().sqrt()),
    }


def batch(policy: Policy, seed: int) -> dict[str, float]:
    """Every number of one batch."""
    task = Sentence("test")
    U = ise.sample(policy, task.prompts, PROMPTS, GROUP, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
    U = ise.with_advantages(ise.with_rewards(U, task), "dr_grpo")
    assert U.rewards is not None
    assert U.advantages is not None
    K = ise.fisher_kernel(policy, U).matrix.double()
    surprisal = -score(policy, U).logprobs.sum(1).double()
    rows = distinct_rows(U)
    different = U.select(rows)
    of_different = K[rows][:, rows]
    return {
        "ℋ, nats per response": float(surprisal.mean()),
        "reward": float(U.rewards.double().mean()),
        "distinct responses": float(len(rows)),
        **pair_sizes(of_different, different.prompt_index),
        "effective rank": float(K.trace() ** 2 / K.square().sum()),
        VARIANCE: variance_ratio(K, against_group(surprisal), U.advantages.double()),
        **correlations(policy, different, of_different),
    }


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy.from_checkpoint(options.checkpoint, precision="float32")
    batches = []
    for seed in BATCHES:
        batches.append(batch(policy, 100 + seed))
        print(seed, batches[-1], flush=True)
    rows = ["| number | SmolLM2-135M, step 20 |", "|---|---|"]
    rows += [f"| {name} | {over([x[name] for x in batches])} |" for name in batches[0]]
    rows += [f"\n{time.process_time():.0f} seconds of one CPU."]
    write_page("smollm2_kernel", "\n".join(rows))


if __name__ == "__main__":
    main()
