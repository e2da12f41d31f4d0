"""A simple model of the Fisher kernel, fitted on one half of the prompts and scored on the other.

    python -m studies.theory_model --run runs/theory

Cosines of the kernel of the distinct responses among 96 prompts × 8, four batches at each of three
checkpoints of one toy run. Half of the prompts are fitted, the other half predicted, and the other
way round. Then the same on simulated gradients of known structure. Writes
docs/results/theory_model.md. About four minutes on one thread; the run is trained first where it is
missing.
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
from isentrope.sampling.tasks.addition import Addition, longest_response
from studies.predictive_model import fit_predictive_model
from studies.theory_distance import next_token_log_p, prefix_kernel
from studies.theory_policies import over, run_folder, write_page
from studies.toy_attribution import checkpoints

MAX_NEW_TOKENS = longest_response(2)

STEPS = (8, 24, 40)
PROMPTS, GROUP = 96, 8
BATCHES = range(4)
RANKS = (5, 20, 50)
BEST = 20


def scores(truth: Tensor, predicted: Tensor, prompts: Tensor) -> list[float]:
    """Share of Σ cos² explained, 1 − Σ(cos − ĉ)²/Σ cos², of same-prompt and other-prompt pairs."""
    same = prompts[:, None] == prompts
    own = torch.eye(len(prompts), dtype=torch.bool)
    out = []
    for mask in (same & ~own, ~same):
        rest = (truth - predicted)[mask].square().sum()
        out.append(1 - float(rest / truth[mask].square().sum()))
    return out


def influence_agreement(
    truth: Tensor, predicted: Tensor, norms: Tensor, e: Tensor, x: Tensor
) -> float:
    """Correlation over responses of x_j Σ_{i≠j} e_i K_ij from predicted and from true cosines."""
    size = norms.sqrt()
    both = [(e * size) @ (c - torch.diag(c.diagonal())) * size * x for c in (truth, predicted)]
    return float(torch.corrcoef(torch.stack(both))[0, 1])


def distinct(U: Rollouts) -> Rollouts:
    """Each response to a prompt once: equal ones have cosine one and are no test."""
    return U.select(distinct_rows(U))


def distinct_rows(U: Rollouts) -> Tensor:
    """Rows of the first of each response to a prompt."""
    seen: set[tuple[int, ...]] = set()
    kept = []
    for i, (p, r) in enumerate(zip(U.prompt_index.tolist(), U.response_ids, strict=True)):
        key = (p, *r.tolist())
        if key not in seen:
            kept.append(i)
        seen.add(key)
    return torch.tensor(kept)


def halves(prompts: Tensor) -> list[Tensor]:
    """The two halves of the prompts, as masks over sequences."""
    first = prompts < (int(prompts.max()) + 1) // 2
    return [first, ~first]


def predictions(cosine: Tensor, prompts: Tensor, classes: Tensor) -> dict[str, list[Tensor]]:
    """By model: the two predicted halves."""
    out: dict[str, list[Tensor]] = {}
    for fitted in halves(prompts):
        new = ~fitted
        square, block = cosine[fitted][:, fitted], cosine[new][:, fitted]
        one = torch.zeros_like(classes)
        means = {"means by relation": one, "means by relation and class": classes}
        for name, kinds in means.items():
            model = fit_predictive_model(square, prompts[fitted], kinds[fitted], rank=0)
            out.setdefault(name, []).append(model.class_means(prompts[new], kinds[new]))
        for rank in RANKS:
            model = fit_predictive_model(square, prompts[fitted], classes[fitted], rank=rank)
            found = model.predict(prompts[new], classes[new], block)
            out.setdefault(f"and rank {rank}", []).append(found)
    return out


def prefix_model(policy: Policy, U: Rollouts, cosine: Tensor) -> list[Tensor]:
    """Same-prompt cosines by the formula of shared prefixes, with a factor from the other half."""
    log_p, t, prompts = next_token_log_p(policy, U), U.response_ids, U.prompt_index
    K = torch.zeros(len(t), len(t), dtype=torch.float64)
    for i in range(len(t)):
        rows = list(log_p[i])
        for j in (prompts == prompts[i]).nonzero()[:, 0].tolist():
            K[i, j] = prefix_kernel(rows, t[i], t[j])
    K = (K + K.T) / 2
    formula = cosines(K, K.diagonal(), K.diagonal()).nan_to_num(0.0)
    out = []
    for fitted in halves(prompts):
        near, true = formula[fitted][:, fitted], cosine[fitted][:, fitted]
        pairs = ~torch.eye(len(near), dtype=torch.bool)
        factor = (near * true)[pairs].sum() / near[pairs].square().sum()
        out.append(factor * formula[~fitted][:, ~fitted])
    return out


def norm_model(norms: Tensor, surprisal: Tensor, entropy: Tensor, prompts: Tensor) -> float:
    """Held-out R² of log K_ii from log surprisal and log Σ H_k."""
    tiny = 1e-12
    columns = [torch.ones_like(norms), (surprisal + tiny).log(), (entropy + tiny).log()]
    X, y = torch.stack(columns, 1), norms.log()
    shares = []
    for fitted in halves(prompts):
        slopes = torch.linalg.lstsq(X[fitted], y[fitted][:, None]).solution[:, 0]
        rest = (y - X @ slopes)[~fitted].square().sum()
        shares.append(1 - float(rest / (y[~fitted] - y[~fitted].mean()).square().sum()))
    return sum(shares) / 2


def study(path: Path, seed: int) -> dict[str, list[float]]:
    """By model: explained share of same-prompt and other-prompt pairs, agreement of influences."""
    policy = Policy.from_checkpoint(path, precision="float32")
    task = Addition("test", digits=2)
    U = ise.sample(policy, task.prompts, PROMPTS, GROUP, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
    U = distinct(ise.with_advantages(ise.with_rewards(U, task), "dr_grpo"))
    K, prompts = ise.fisher_kernel(policy, U).matrix, U.prompt_index
    norms = K.diagonal()
    cosine = cosines(K, norms, norms).nan_to_num(0.0)
    right = (U.rewards > 0.5).long()
    scored = score(policy, U)
    s = scored.logprobs.sum(1)
    models = predictions(cosine, prompts, right)
    models["formula of shared prefixes"] = prefix_model(policy, U, cosine)
    models[f"formula, and rank {BEST} for others"] = [
        torch.where(prompts[~f][:, None] == prompts[~f], formula, low_rank)
        for f, formula, low_rank in zip(
            halves(prompts),
            models["formula of shared prefixes"],
            models[f"and rank {BEST}"],
            strict=True,
        )
    ]
    out: dict[str, list[float]] = {}
    for name, found in models.items():
        rows = []
        for fitted, predicted in zip(halves(prompts), found, strict=True):
            new = ~fitted
            truth = cosine[new][:, new]
            e, x = -(s[new] - s[new].mean()), U.advantages[new]
            agreed = influence_agreement(truth, predicted, norms[new], e, x)
            rows.append([*scores(truth, predicted, prompts[new]), agreed])
        out[name] = list(np.mean(rows, 0))
    out["norms"] = [norm_model(norms, -s, scored.entropies.sum(1), prompts)]
    return out


def simulated(share: float, rank: int, dimension: int, seed: int) -> list[float]:
    """Explained and possible share of other-prompt pairs of simulated gradients.

    Args:
        share: Of each gradient's squared norm, in `rank` common directions.
        rank: Number of common directions.
        dimension: Number of directions of the rest.
        seed: Of the gradients.

    Returns:
        What rank `rank` explains on the other half, and what the true common part would.
    """
    rng = torch.Generator().manual_seed(seed)
    n = PROMPTS * GROUP
    prompts = torch.arange(PROMPTS).repeat_interleave(GROUP)
    f = torch.randn(n, rank, generator=rng, dtype=torch.float64) * (share / rank) ** 0.5
    own = torch.randn(n, dimension, generator=rng, dtype=torch.float64)
    w = torch.cat([f, own * ((1 - share) / dimension) ** 0.5], 1)
    K = w @ w.T
    cosine = cosines(K, K.diagonal(), K.diagonal()).nan_to_num(0.0)
    fitted, new = halves(prompts)
    none = torch.zeros_like(prompts)
    model = fit_predictive_model(
        cosine[fitted][:, fitted], prompts[fitted], none[fitted], rank=rank
    )
    found = model.predict(prompts[new], none[new], cosine[new][:, fitted])
    size = K.diagonal()[new].sqrt()
    true = (f[new] @ f[new].T) / size[:, None] / size
    truth = cosine[new][:, new]
    return [scores(truth, m, prompts[new])[1] for m in (found, true)]


def main() -> None:
    """Write the page."""
    folder = run_folder(__doc__)
    states = checkpoints(folder, 0)
    tables = [HEAD]
    for step in STEPS:
        found = [study(states / f"step_{step}", 100 + seed) for seed in BATCHES]
        for name in found[0]:
            columns = [over(list(x)) for x in zip(*(f[name] for f in found), strict=True)]
            cells = columns if len(columns) == 3 else ["", "", ""]
            note = "" if len(columns) == 3 else f" (R² of log K_ii: {columns[0]})"
            if name == "formula of shared prefixes":
                cells[1] = ""
            tables.append(f"| {step} | {name}{note} | " + " | ".join(cells) + " |")
            print(tables[-1], flush=True)
    tables.append(f"\n{SIMULATED}")
    for share in (0.05, 0.2, 0.5):
        for rank, dimension in ((5, 100), (20, 100), (50, 100), (20, 1000)):
            pairs = [simulated(share, rank, dimension, seed) for seed in range(10)]
            cells = [over(list(x)) for x in zip(*pairs, strict=True)]
            tables.append(f"| {share} | {rank} | {dimension} | " + " | ".join(cells) + " |")
    write_page("theory_model", "\n".join(tables))


HEAD = """### Held-out prompts of the toy

| step | model | same-prompt pairs | other-prompt pairs | r of influences |
|---|---|---|---|---|"""
SIMULATED = """### Simulated gradients, other-prompt pairs

| share of the norm in common directions | directions | rest | predicted | possible |
|---|---|---|---|---|"""


if __name__ == "__main__":
    main()
