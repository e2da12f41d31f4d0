"""The model of K with predicted norms and predicted cosines together.

    python -m studies.kernel_prediction --run runs/demo

theory_model predicts K_ii from surprisal and entropy, and cosines from means by class and twenty
common directions, and scores the influences x_j Σ_{i≠j} e_i K_ij with true norms. Here both are
predicted: K̂_ij = ĉ_ij √(K̂_ii K̂_jj). Directions still need the measured block of new responses
against the fitted ones; norms need nothing but scores.

Fixed before it ran. Subjects: steps 20 and 40 of the demo's toy, four batches of 96 prompts × 8
each, distinct responses, half of the prompts fitted and the other half predicted, both ways round.
Arms: true or predicted norms, with true, class-mean or rank-20 cosines. Reading: r, the correlation
over responses of predicted and true influences, mean over halves, ± half of the 95 % interval over
batches. The model predicts influences where the lower end of r with both predicted is above .5.
Stopping: once. Writes docs/results/kernel_prediction.md. Two minutes on one thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import isentrope as ise
from isentrope.attribution.fisher.prompt_pairs import cosines
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.tasks.addition import Addition
from studies.command import demo_folder
from studies.theory_model import (
    BATCHES,
    BEST,
    GROUP,
    MAX_NEW_TOKENS,
    PROMPTS,
    distinct,
    halves,
    predictions,
)
from studies.theory_policies import over, write_page

STEPS = (20, 40)
TINY = 1e-12
"""Added before logarithms: a certain response has surprisal 0."""
NAMES = {
    "true cosines": "true",
    "means by class": "means by relation and class",
    f"rank {BEST}": f"and rank {BEST}",
}


def predicted_norms(norms: Tensor, columns: Tensor, fitted: Tensor) -> Tensor:
    """K̂_ii of the other half, by a line in the logarithms of the fitted half.

    Args:
        norms: (n,) K_ii.
        columns: (n, 3) one, log surprisal and log Σ H_k.
        fitted: (n,) bool.

    Returns:
        (new,) predictions.
    """
    solved = torch.linalg.lstsq(columns[fitted], norms[fitted].log()[:, None]).solution
    return (columns[~fitted] @ solved[:, 0]).exp()


def influences(cosine: Tensor, norms: Tensor, e: Tensor, x: Tensor) -> Tensor:
    """(n,) x_j Σ_{i≠j} e_i c_ij √(K_ii K_jj)."""
    size = norms.sqrt()
    return (e * size) @ (cosine - torch.diag(cosine.diagonal())) * size * x


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two vectors."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def batch(path: Path, seed: int) -> dict[str, float]:
    """r by arm, of one batch."""
    policy = Policy.from_checkpoint(path, precision="float32")
    task = Addition("test", digits=2)
    U = ise.sample(policy, task.prompts, PROMPTS, GROUP, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
    U = distinct(ise.with_advantages(ise.with_rewards(U, task), "dr_grpo"))
    return correlations(policy, U, ise.fisher_kernel(policy, U).matrix)


def correlations(policy: Policy, U: Rollouts, K: Tensor) -> dict[str, float]:
    """r by arm: the mean over both ways to split the prompts.

    Args:
        policy: The policy.
        U: Distinct responses with rewards and advantages.
        K: (n, n) their kernel.

    Returns:
        The correlations.
    """
    assert U.rewards is not None
    assert U.advantages is not None
    prompts = U.prompt_index
    norms = K.diagonal()
    cosine = cosines(K, norms, norms).nan_to_num(0.0)
    scored = score(policy, U)
    s = scored.logprobs.sum(1)
    logs = [(-s + TINY).log(), (scored.entropies.sum(1) + TINY).log()]
    columns = torch.stack([torch.ones_like(s), *logs], 1)
    models = predictions(cosine, prompts, (U.rewards > 0.5).long())
    models["true"] = [cosine[~fitted][:, ~fitted] for fitted in halves(prompts)]
    found: dict[str, list[float]] = {}
    for half, fitted in enumerate(halves(prompts)):
        new = ~fitted
        e = -(s[new] - s[new].mean())
        x = U.advantages[new]
        truth = influences(models["true"][half], norms[new], e, x)
        sizes = {"true": norms[new], "predicted": predicted_norms(norms, columns, fitted)}
        for kind, size in sizes.items():
            for name, model in NAMES.items():
                r = correlation(truth, influences(models[model][half], size, e, x))
                found.setdefault(f"{kind} norms, {name}", []).append(r)
    return {name: float(np.mean(values)) for name, values in found.items()}


HEAD = "| step | norms and cosines | r of influences |\n|---|---|---|"


def main() -> None:
    """Write the table."""
    folder = demo_folder(__doc__)
    rows = [HEAD]
    for step in STEPS:
        path = folder / "training_state" / f"step_{step}"
        found = [batch(path, 100 + seed) for seed in BATCHES]
        for name in found[0]:
            rows.append(f"| {step} | {name} | {over([x[name] for x in found])} |")
            print(rows[-1], flush=True)
    write_page("kernel_prediction", "\n".join(rows))


if __name__ == "__main__":
    main()
