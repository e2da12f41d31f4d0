"""Does the isentropic step hold entropy, at what price, and is its λ unbiased?

    python -m validation.isentropic runs --seeds 0 1
    python -m validation.isentropic lags
    python -m validation.isentropic unbiased
    python -m validation.isentropic judged
    python -m validation.isentropic page

Each part keeps what it found under `--folder` and does only what is missing there, so it can be
stopped and gone on with. All start from `isentrope sft configs/sft_toy.yaml`, seed by seed.

    runs      120 steps of configs/train_toy.yaml by each of `VARIANTS`; pass@1 and h every 10 steps
              on held-out prompts, responses that no run has used
    lags      P-cosines of g_H between checkpoints, noise taken out by two samples of E each
    unbiased  independent halves of E at checkpoints of the vanilla run, and the correction from
              each pair of them: the share of δH₁ that is left. The truth for a pair is the mean
              of g_H over all other halves.
    judged    a run in which a probe measures every step on responses of its own
    page      writes docs/results/isentropic.md from what is there
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import isentrope as ise
from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.control.correction import Asked, Halves, correct
from isentrope.control.gradients import gradient_groups, summed
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.recording.next_update import read_next_update
from isentrope.sampling.tasks.addition import Addition
from isentrope.training.models import MAX_NEW_TOKENS, load_trainable
from isentrope.training.run_files import RunFiles
from isentrope.update.step import optimizer_step
from isentrope.verbs.sft import sft
from isentrope.verbs.train import resume, train

QUIET = ("output.report_to=[]", "output.log_level=WARNING")
STEPS, EVERY = 120, 10
HOLD = ("control.name=isentropic", "control.target.kind=hold")
VARIANTS: dict[str, tuple[str, ...]] = {
    "vanilla": (),
    "isentropic": HOLD,
    "costly": (*HOLD, "control.options={size: 256, every: 1, average: 1}"),
    "slow": ("training.learning_rate=3e-4",),
}
"""Settings of each run beside those of configs/train_toy.yaml."""


def base_model(folder: Path, seed: int) -> Path:
    """The fine-tuned toy of a seed."""
    base = folder / f"sft_{seed}"
    if not (base / "model").exists():
        settings = [f"fine_tuning.seed={seed}", f"output.directory={base}", *QUIET]
        sft(load_config("configs/sft_toy.yaml", settings, SftConfig))
    return base / "model"


def trained(folder: Path, name: str, seed: int, settings: tuple[str, ...], steps: int) -> Path:
    """A run of `steps` steps, gone on with if it was stopped."""
    run = folder / f"{name}_{seed}"
    if (run / "config.yaml").exists():
        if max(RunFiles(run).steps(), default=0) < steps:
            resume(run)
        return run
    plain = [f"model.path={base_model(folder, seed)}", f"training.seed={seed}", *QUIET]
    plain += [f"output.directory={run}", f"training.steps={steps}", "entropy_probe.enabled=false"]
    train(load_config("configs/train_toy.yaml", [*plain, *settings], TrainConfig))
    return run


def evaluate(policy: Policy, prompts: int) -> dict[str, float]:
    """Entropy h, pass@1 and pass@8 on held-out prompts, with standard errors."""
    task = Addition("test", digits=2)
    options = {"max_new_tokens": MAX_NEW_TOKENS, "seed": 10_000, "batch_size": 512}
    sampled = ise.sample(policy, task.prompts, prompts, 8, **options)
    right = ise.with_rewards(sampled, task).rewards.view(prompts, 8)
    h = ise.entropy(policy, sampled)
    one, eight = right.mean(1), right.amax(1)
    return {
        "h": h.value,
        "h_se": h.se,
        "pass1": float(one.mean()),
        "pass1_se": float(one.std() / prompts**0.5),
        "pass8": float(eight.mean()),
        "pass8_se": float(eight.std() / prompts**0.5),
    }


def evaluated(folder: Path, run: Path, seed: int, prompts: int) -> list[dict[str, float]]:
    """The run's entropy and reward every `EVERY` steps, from step 0."""
    file = run / "evaluated.jsonl"
    rows = [json.loads(x) for x in file.read_text().splitlines()] if file.exists() else []
    known = {row["step"] for row in rows}
    for step in range(0, STEPS + 1, EVERY):
        if step in known:
            continue
        if step == 0:
            base = str(base_model(folder, seed))
            model, tokenizer = load_trainable(base, lora_rank=16, lora_alpha=32, seed=seed)
            policy = Policy(model, tokenizer, precision="float32")
        else:
            policy = Policy.from_checkpoint(RunFiles(run).checkpoint(step), precision="float32")
        row = {"step": step, **evaluate(policy, prompts)}
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        rows.append(row)
        print(run.name, row, flush=True)
    return rows


def part_runs(folder: Path, seeds: list[int], variants: list[str], prompts: int) -> None:
    """Every run, evaluated."""
    for seed in seeds:
        for name in variants:
            run = trained(folder, name, seed, VARIANTS[name], STEPS)
            evaluated(folder, run, seed, prompts)


# --- at checkpoints ------------------------------------------------------------------------------


def step_of(checkpoint: Path) -> tuple[Policy, Vector, Vector, float]:
    """Policy, v, P and η of the step that training took from a checkpoint."""
    policy = Policy.from_checkpoint(checkpoint, precision="float32")
    U, update = read_next_update(checkpoint)
    step = optimizer_step(
        policy,
        U,
        checkpoint / "optimizer.pt",
        objective="recorded",
        max_grad_norm=update["max_grad_norm"],
    )
    return policy, step.direction, step.preconditioner, update["learning_rate"]


def draw(policy: Policy, size: int, seed: int) -> ise.Rollouts:
    """An E of the held-out prompts."""
    prompts = Addition("test", digits=2).prompts
    options = {"max_new_tokens": MAX_NEW_TOKENS, "seed": seed, "batch_size": 512}
    return ise.sample(policy, prompts, size, 1, **options)


def flat(x: Vector) -> torch.Tensor:
    """All of a vector, (d,)."""
    return torch.cat([y.double().flatten() for y in x.values()])


def unbiased_at(checkpoint: Path, samples: int, half: int) -> dict[str, Any]:
    """The share of δH₁ left by the correction from each pair of `samples` independent halves.

    λ is the product's formula on the table of inner products, held against `correct` for a pair.
    """
    policy, v, P, eta = step_of(checkpoint)
    drawn = [gradient_groups(policy, draw(policy, half, k)) for k in range(samples)]
    groups = len(next(iter(drawn[0].values())))
    G = torch.stack([torch.cat([x.flatten(1) for x in g.values()], 1) for g in drawn])  # (M, K, d)
    table = torch.einsum("mkd,nld->mnkl", G * flat(P), G)
    along_v = (G @ flat(v)).sum(1)
    whole = table.sum((2, 3))  # <g_m, P g_n>
    rows = []
    for a in range(samples):
        for b in range(a + 1, samples):
            one = table[a, b]
            rest = one - one.mean(1, keepdim=True) - one.mean(0) + one.mean()
            own = [float(groups * one.sum(k).var()) for k in (0, 1)]
            twice = float(groups**2 * (rest**2).sum() / (groups - 1) ** 2)
            se = max(sum(own) - twice, *own) ** 0.5
            predicted = float(along_v[a] + along_v[b]) / 2
            same = float(whole[a, a] + whole[b, b] + 2 * whole[a, b]) / 4
            kept = torch.ones(samples, dtype=torch.bool)
            kept[[a, b]] = False
            truth = float(along_v[kept].mean())
            effect = float((whole[a, kept] + whole[b, kept]).mean()) / 2
            gain = float(whole[a, b])
            left = {
                "across": 1 - predicted / gain * effect / truth if gain > 2 * se else None,
                "same": 1 - predicted / same * effect / truth,
            }
            rows.append({"a": a, "b": b, **left, "gain": gain, "gain_se": se})
    found = correct(Halves(drawn[0], drawn[1]), v, P, eta, 1e9, Asked())
    assert np.isclose(found.numbers["gain"], rows[0]["gain"])
    assert np.isclose(found.numbers["gain_se"], rows[0]["gain_se"])
    inflation = float(whole.diagonal().mean() / (whole.sum() - whole.diagonal().sum()))
    return {
        "samples": samples,
        "half": half,
        "inflation": inflation * samples * (samples - 1),
        "pairs": rows,
    }


def part_unbiased(folder: Path, samples: int, half: int) -> None:
    """At checkpoints of the vanilla run of seed 0."""
    for name, step in (("vanilla_0", 20), ("vanilla_0", 40)):
        file = folder / f"unbiased_{name}_{step}.json"
        if not file.exists():
            found = unbiased_at(RunFiles(folder / name).checkpoint(step), samples, half)
            file.write_text(json.dumps(found))
            print(name, step, len(found["pairs"]), flush=True)


LAGGED = (20, (0, 1, 2, 4, 8, 16))
"""The first checkpoint of the lags, and the lags."""


def part_lags(folder: Path, pairs: int = 8) -> None:
    """P-cosines of g_H at step 20 + lag with g_H at step 20, in a vanilla and a controlled run."""
    begin, lags = LAGGED
    for name in ("vanilla", "isentropic"):
        file = folder / f"lags_{name}.json"
        if file.exists():
            continue
        settings = (*VARIANTS[name], "training.save_every=1", "output.rollouts_every=0")
        run = trained(folder, f"every_{name}", 0, settings, begin + lags[-1] + 1)
        _, _, P, _ = step_of(RunFiles(run).checkpoint(begin))
        scale, found = flat(P), []
        for lag in lags:
            policy = Policy.from_checkpoint(
                RunFiles(run).checkpoint(begin + lag), precision="float32"
            )
            halves = [
                [
                    flat(summed(gradient_groups(policy, draw(policy, 128, 1000 * lag + 2 * k + i))))
                    for k in range(pairs)
                ]
                for i in (0, 1)
            ]
            found.append([torch.stack(half).mean(0) for half in halves])
        first, rows = found[0], []
        for lag, (a, b) in zip(lags, found, strict=True):
            across = (first[0] @ (scale * b) + first[1] @ (scale * a)) / 2
            sizes = (first[0] @ (scale * first[1])) * (a @ (scale * b))
            rows.append({"lag": lag, "cosine": float(across / sizes.sqrt())})
        file.write_text(json.dumps(rows))
        print(name, rows, flush=True)


def part_judged(folder: Path) -> None:
    """A run at a fifth of the linear range, with a probe of every step on samples of its own."""
    probe = ("enabled=true", "every=1", "size=256", "fresh=true", "second_order=true")
    settings = (*(f"entropy_probe.{x}" for x in probe), "output.rollouts_every=0")
    for name, rate in (("judged_slow", "1e-4"), ("judged", "1e-3")):
        chosen = (*HOLD, *settings, f"training.learning_rate={rate}")
        trained(folder, name, 0, chosen, 40)


def main() -> None:
    """Do one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("runs", "lags", "unbiased", "judged", "page"))
    parser.add_argument("--folder", type=Path, default=Path("build/isentropic"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--prompts", type=int, default=256, help="evaluated (%(default)s)")
    parser.add_argument("--samples", type=int, default=400, help="halves of E (%(default)s)")
    parser.add_argument("--half", type=int, default=128, help="responses of a half (%(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.part == "runs":
        part_runs(asked.folder, asked.seeds, asked.variants, asked.prompts)
    elif asked.part == "lags":
        part_lags(asked.folder)
    elif asked.part == "unbiased":
        part_unbiased(asked.folder, asked.samples, asked.half)
    elif asked.part == "judged":
        part_judged(asked.folder)
    else:
        from validation.isentropic_page import write_page

        write_page(asked.folder, Path("docs/results/isentropic.md"))


if __name__ == "__main__":
    main()
