"""Are the identities' z-scores standard normal for sound batches, to their tails?

    python -m validation.identities --toy runs/demo/training_state/step_40 --batches 600

Two answers, in docs/results/identities.md. For policies whose responses can all be enumerated, 10⁵
batches of every size. For the trained toy policy, fresh batches of 256 responses drawn and scored
in float32, along the optimizer's step; batch k has the seed 1000 + k. The adapter is merged into
the weights, and the step with it, which is the same to first order and twice as fast: a second and
a half per batch on one core. z-scores are kept beside the page, and not computed again.

Three ways to studentise the same sums: by the sample's own variance over prompts (`sample`, what
versions up to 0.8 printed), by the predictable variance alone (`predictable`), and by one third of
the sum of squares and two thirds of the predictable variance (`mixed`, what is printed now).
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from isentrope.checkpoint.find import find_with_optimizers
from isentrope.checkpoint.in_force import SettingsInForce
from isentrope.config.io import load_config
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.sampling import generate
from isentrope.sampling.tasks.addition import longest_response
from isentrope.sampling.tasks.load import load_task
from isentrope.system.progress import Clock
from isentrope.verbs.prepare import prepare_checkpoint
from validation.enumerated import POLICIES, Enumerated
from validation.origin import write_results

MAX_NEW_TOKENS = longest_response(2)

IDENTITIES = ("martingale", "score")
WAYS = ("sample", "predictable", "mixed")
SIZES = (32, 64, 128, 256, 1024)
FIRST_SEED = 1000


def three_ways(terms: np.ndarray, squares: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """(..., n) sums by sequence to (..., 3) z-scores."""
    total, n = terms.sum(-1), terms.shape[-1]
    own = terms.var(-1, ddof=1) * n
    predictable, realised = variances.sum(-1), squares.sum(-1)
    mixed = realised / 3 + 2 * predictable / 3
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([total / np.sqrt(of) for of in (own, predictable, mixed)], -1)


def sums(sample: ScoredBatch) -> np.ndarray:
    """(identity, 3, n): Σ X, Σ X² and Σ V of each sequence."""
    here, slope = sample.series[:2]
    pairs = (here.logprobs + here.entropies, here.variances), (slope.logprobs, slope.variances)
    return np.stack([np.stack([_row(x), _row(x.square()), _row(v)]) for x, v in pairs])


def _row(values: Tensor) -> np.ndarray:
    return values.sum(1).numpy()


def fresh_toy(checkpoint: Path, batches: int, kept: Path) -> np.ndarray:
    """(batches, identity, way) z-scores of fresh batches of the toy."""
    config = load_config(
        {
            "checkpoint": {"checkpoint_path": str(checkpoint)},
            "batch_config": {"dataset_name": "addition", "B_E": 256, "B_U": 16, "G": 8, "seed": 1},
            "precision": {"runtime_dtype": "float32"},
            "sampling": {"max_new_tokens": MAX_NEW_TOKENS},
        }
    )
    found = np.load(kept) if kept.exists() else np.zeros((0, 2, 3))
    if len(found) >= batches:
        return found[:batches]
    (checkpoint,) = find_with_optimizers(config.checkpoint)
    ready = prepare_checkpoint(checkpoint, SettingsInForce(config), Clock())
    policy, direction = merged(ready.policy, ready.step.direction)
    task = load_task("addition", config.batch_config.E_split)
    for k in range(len(found), batches):
        E = generate.sample(
            policy,
            task.prompts,
            256,
            max_new_tokens=MAX_NEW_TOKENS,
            seed=FIRST_SEED + k,
            batch_size=256,
        )
        sample = score_batch(policy, E, direction=direction, order=1)
        z = np.stack([three_ways(*of) for of in sums(sample)])
        found = np.concatenate([found, z[None]])
        if (k + 1) % 20 == 0 or k + 1 == batches:
            np.save(kept, found)
            print(k + 1, found.std(0).round(3).tolist(), flush=True)
    return found[:batches]


def merged(policy: Policy, direction: Vector) -> tuple[Policy, Vector]:
    """The policy with its LoRA adapter in the weights, and what the step does to these weights."""
    weights, theta = {}, policy.theta
    for name in (n for n in theta if ".lora_A." in n):
        other, layer = name.replace("lora_A", "lora_B"), name.partition(".lora_A.")[0]
        moved = direction[other] @ theta[name].double() + theta[other].double() @ direction[name]
        scaling = policy.model.get_submodule(layer).scaling["default"]
        weights[f"{layer.removeprefix('base_model.model.')}.weight"] = scaling * moved
    policy.convert("float32")
    model = policy.model.merge_and_unload()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in weights)
    plain = Policy(model, precision="float32", eos_token_id=policy.eos_token_id, pad_token_id=0)
    plain.tokenizer = policy.tokenizer
    return plain, weights


def enumerated(policy: str, n: int, batches: int, seed: int = 0) -> np.ndarray:
    """(batches, identity, way) z-scores of batches drawn from an enumerated policy."""
    known, generator = Enumerated.of(policy), np.random.default_rng(seed)
    parts = []
    for size in _in_parts(batches, max(1, 2**22 // n)):
        p, r = known.draw(generator, size, n)
        parts.append(np.stack([three_ways(*(x[p, r] for x in of)) for of in known.identities], 1))
    return np.concatenate(parts)


def _in_parts(total: int, most: int) -> list[int]:
    return [most] * (total // most) + ([total % most] if total % most else [])


def table(rows: dict[tuple[str, str], np.ndarray], ways: tuple[str, ...] = WAYS) -> str:
    """One line per policy, batch size, identity and way."""
    lines = [
        "| policy | n | identity | studentised by | mean | sd | P(>1.96) | P(>3) | P(>4) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (policy, n), z in rows.items():
        for i, identity in enumerate(IDENTITIES):
            for w in (WAYS.index(way) for way in ways):
                x = z[:, i, w]
                tails = " | ".join(f"{(abs(x) > limit).mean():.5f}" for limit in (1.96, 3, 4))
                lines.append(
                    f"| {policy} | {n} | {identity} | {WAYS[w]} | {x.mean():+.3f} | {x.std():.3f} "
                    f"| {tails} |"
                )
    return "\n".join(lines)


def spread_of(z: np.ndarray) -> str:
    """The standard deviation of the toy's z-scores, with its 95 % interval."""
    lines = ["| identity | studentised by | sd | 95 % interval if normal |", "|---|---|---|---|"]
    n = len(z)
    low, high = np.sqrt((n - 1) / chi2.ppf([0.975, 0.025], n - 1))
    for i, identity in enumerate(IDENTITIES):
        for w, way in enumerate(WAYS):
            sd = z[:, i, w].std(ddof=1)
            lines.append(f"| {identity} | {way} | {sd:.3f} | [{sd * low:.3f}, {sd * high:.3f}] |")
    return "\n".join(lines)


def main() -> None:
    """Draw, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", type=Path, help="step_40 of `isentrope demo`; left out: no toy")
    parser.add_argument("--batches", type=int, default=600, help="of the toy (%(default)s)")
    parser.add_argument("--draws", type=int, default=100_000, help="enumerated (%(default)s)")
    parser.add_argument("--kept", type=Path, default=Path("identities.npy"), help="(%(default)s)")
    parser.add_argument("--out", type=Path, help="page to write; left out: the screen")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = [f"# The identities' z-scores on sound batches\n\n{COMMAND.format(**vars(asked))}"]
    if asked.toy:
        z = fresh_toy(asked.toy, asked.batches, asked.kept)
        parts += [f"## The toy, {len(z)} fresh batches of 256", spread_of(z)]
        parts += [table({("toy", "256"): z})]
    rows = {
        (policy, str(n)): enumerated(policy, n, asked.draws if n < 1000 else asked.draws // 4)
        for policy in POLICIES
        for n in SIZES
    }
    parts += [f"## Enumerated policies, {asked.draws:,} batches each", table(rows)]
    text = "\n\n".join(parts) + f"\n\nA normal z: .05000, .00270, .00006.\n\n{date.today()}.\n"
    if asked.out:
        write_results(asked.out, text)
    else:
        print(text)


COMMAND = """`python -m validation.identities --toy runs/demo/training_state/step_40 \\
--batches {batches} --draws {draws}`

Shares of sound batches beyond a limit, for three ways to studentise the same sums: by the sample's
own variance, by the conditional variances alone, and mixed: one third of the sum of squares and two
thirds of the conditional variances, which is what is printed. Draws that are independent and of
the policy itself give `predictable` a standard deviation of 1, whatever its tails. Where few tokens
hold the entropy, `sample` alarms too often, by batches that missed the rare tokens, `predictable`
too often by batches that drew one, and `mixed` too seldom at small n."""


if __name__ == "__main__":
    main()
