"""How the gradients of two responses to one prompt correlate by shared prefix and edit distance.

    python -m studies.theory_distance --run runs/theory

Same-prompt pairs of 96 prompts × 8 responses at three checkpoints of one toy run: the mean cosine
of their score vectors by length of the common prefix and by edit distance, and a least-squares fit
of both, with errors over prompts. Writes docs/results/theory_distance.md. About two minutes on one
thread; the run is trained first where it is missing.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import isentrope as ise
from isentrope.attribution.fisher.prompt_pairs import cosines, delete_one
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import Addition, longest_response
from studies.theory_policies import run_folder, write_page
from studies.toy_attribution import checkpoints

MAX_NEW_TOKENS = longest_response(2)

STEPS = (8, 24, 40)
PROMPTS, GROUP = 96, 8
PREFIX = (0.0, 0.25, 0.5, 0.75, 1.0)
EDITS = (1, 2, 4, 8, 32)


def common_prefix(a: Tensor, b: Tensor) -> int:
    """Number of first tokens that two responses share."""
    n = min(len(a), len(b))
    different = (a[:n] != b[:n]).nonzero()
    return int(different[0]) if len(different) else n


def edit_distance(a: Tensor, b: Tensor) -> int:
    """Fewest insertions, deletions and replacements that turn one response into the other."""
    last = np.arange(len(b) + 1)
    for i, x in enumerate(a.tolist()):
        row = np.empty_like(last)
        row[0] = i + 1
        replaced = last[:-1] + (b.numpy() != x)
        row[1:] = np.minimum(replaced, last[1:] + 1)
        steps = np.arange(len(row))
        last = np.minimum.accumulate(row - steps) + steps  # insertions
    return int(last[-1])


def prefix_kernel(log_p: list[Tensor], a: Tensor, b: Tensor) -> float:
    """K of two responses where each prefix has its own softmax: the shared prefixes alone.

    Args:
        log_p: (v,) log-probabilities after each prefix that both share, one more than tokens.
        a: Tokens of a response.
        b: Tokens of another.

    Returns:
        Σ_{k ≤ l} |e_{t_k} − π_k|² + <e_a − π, e_b − π> at the first different token.
    """
    total = 0.0
    for k, row in enumerate(log_p[: common_prefix(a, b) + 1]):
        p = row.exp()
        if k < min(len(a), len(b)):
            x, y = int(a[k]), int(b[k])
            total += float(x == y) + float(p @ p - p[x] - p[y])
    return total


def next_token_log_p(policy: Policy, rollouts: Rollouts) -> list[Tensor]:
    """(T, v) log-probabilities of every token at each position of each response."""
    out = []
    for prompt, response in zip(rollouts.prompt_ids, rollouts.response_ids, strict=True):
        ids = torch.cat([prompt, response])[None]
        with torch.no_grad(), policy.precision.active():
            logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        out.append((logits.double() / policy.temperature).log_softmax(-1))
    return out


def prefix_cosines(policy: Policy, rollouts: Rollouts, pairs: Tensor) -> Tensor:
    """(m,) cosines of pairs if each prefix had a softmax of its own, with the policy's π."""
    log_p, t = next_token_log_p(policy, rollouts), rollouts.response_ids
    own = torch.tensor([prefix_kernel(list(p), a, a) for p, a in zip(log_p, t, strict=True)])
    shared = [prefix_kernel(list(log_p[i]), t[i], t[j]) for i, j in pairs.tolist()]
    return torch.tensor(shared).double() / (own[pairs[:, 0]] * own[pairs[:, 1]]).sqrt().double()


def distinct_pairs(rollouts: Rollouts) -> Tensor:
    """(m, 2) pairs i < j of unequal responses to one prompt."""
    index = rollouts.prompt_index
    i, j = ((index[:, None] == index).triu(1)).nonzero().T
    unequal = [
        not torch.equal(rollouts.response_ids[int(a)], rollouts.response_ids[int(b)])
        for a, b in zip(i, j, strict=True)
    ]
    return torch.stack([i, j], 1)[torch.tensor(unequal)]


def columns(rollouts: Rollouts, pairs: Tensor, rewards: Tensor) -> Tensor:
    """(m, 4) common prefix and edit distance over the longer length, and whether both or one of
    the two are correct."""
    rows = []
    for i, j in pairs.tolist():
        a, b = rollouts.response_ids[i], rollouts.response_ids[j]
        longest = max(len(a), len(b))
        both = float(rewards[i] > 0.5) + float(rewards[j] > 0.5)
        found = (common_prefix(a, b) / longest, edit_distance(a, b) / longest)
        rows.append((*found, float(both == 2), float(both == 1)))
    return torch.tensor(rows, dtype=torch.float64)


def over_prompts(values: Tensor, prompts: Tensor, statistic) -> list[Estimate]:
    """Statistics of pairs with the jackknife that deletes a prompt."""
    units = prompts.unique()
    whole = statistic(torch.ones(len(values), dtype=torch.bool))
    deleted = torch.stack([statistic(prompts != p) for p in units])
    return [delete_one(x, deleted[:, k], len(units), "cosine") for k, x in enumerate(whole)]


def fit(cosine: Tensor, features: Tensor, prompts: Tensor) -> list[Estimate]:
    """Intercept, slopes and R² of a least-squares fit, with errors over prompts."""
    design = torch.cat([torch.ones(len(features), 1, dtype=torch.float64), features], 1)

    def statistic(kept: Tensor) -> Tensor:
        x, y = design[kept], cosine[kept]
        slopes = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        rest = (y - x @ slopes).square().sum() / (y - y.mean()).square().sum()
        return torch.cat([slopes, (1 - rest)[None]])

    return over_prompts(cosine, prompts, statistic)


def by_class(cosine: Tensor, place: Tensor, classes: int, prompts: Tensor) -> list[Estimate | None]:
    """Mean cosine of the pairs of each class; None where fewer than five prompts have any."""
    out: list[Estimate | None] = []
    for k in range(classes):
        here = place == k
        if len(prompts[here].unique()) < 5:
            out.append(None)
            continue
        values, of = cosine[here], prompts[here]
        out += over_prompts(values, of, lambda kept, values=values: values[kept].mean()[None])
    return out


def written(estimate: Estimate | None) -> str:
    """Value with its interval."""
    if estimate is None:
        return "–"
    return f"{estimate.value:.2f} [{estimate.ci_low:.2f}, {estimate.ci_high:.2f}]"


def study(path: Path, step: int) -> tuple[list[str], str]:
    """Rows of the class table (prefix, then edits), and the row of the fit."""
    policy = Policy.from_checkpoint(path, precision="float32")
    task = Addition("test", digits=2)
    U = ise.sample(policy, task.prompts, PROMPTS, GROUP, max_new_tokens=MAX_NEW_TOKENS, seed=3)
    rewards = ise.with_rewards(U, task).rewards
    kernel = ise.fisher_kernel(policy, U).matrix
    pairs = distinct_pairs(U)
    diagonal = kernel.diagonal()
    cosine = cosines(kernel, diagonal, diagonal).nan_to_num(0.0)[pairs[:, 0], pairs[:, 1]]
    x, of = columns(U, pairs, rewards), U.prompt_index[pairs[:, 0]]
    edges = torch.tensor(PREFIX[1:-1], dtype=torch.float64)
    prefix = by_class(
        cosine, torch.bucketize(x[:, 0].contiguous(), edges, right=True), len(PREFIX) - 1, of
    )
    longest = U.lengths[pairs].max(1).values
    edits = torch.bucketize(
        (x[:, 1] * longest).round(), torch.tensor(EDITS[1:-1]).double(), right=True
    )
    far = by_class(cosine, edits, len(EDITS) - 1, of)
    x = torch.cat([x, prefix_cosines(policy, U, pairs)[:, None]], 1)
    chosen = ([0], [1], [0, 1], [2, 3], [4], [0, 1, 2, 3, 4])
    fits = [fit(cosine, x[:, k], of) for k in chosen]
    r2 = " | ".join(written(f[-1]) for f in fits)
    slopes = " | ".join(written(e) for e in (*fits[2][1:3], fits[4][1]))
    head = f"| {step} | {len(pairs)} | "
    return [head + " | ".join(map(written, prefix + far)) + " |"], f"{head}{slopes} | {r2} |"


def main() -> None:
    """Write the page."""
    folder = run_folder(__doc__)
    states = checkpoints(folder, 0)
    classes, fits = [], []
    for step in STEPS:
        rows, row = study(states / f"step_{step}", step)
        classes += rows
        fits.append(row)
        print(rows, row, flush=True)
    named = [f"prefix {a:.0%}–{b:.0%}" for a, b in pairwise(PREFIX)]
    named += [f"edits {a}–{b - 1}" for a, b in pairwise(EDITS)]
    head = "| step | pairs | " + " | ".join(named) + " |\n" + "|---" * 10 + "|"
    tables = [f"### Mean cosine by class\n\n{head}", *classes, f"\n{FITS}", *fits]
    write_page("theory_distance", "\n".join(tables))


FITS = """### Least-squares fits of the cosine

| step | pairs | prefix | edits | formula | R²: it | edits | both | right | formula | 5 |
|---|---|---|---|---|---|---|---|---|---|---|"""


if __name__ == "__main__":
    main()
