"""Noise and drift of the gradient along a run: why the variance over steps has no 1/B law.

    python -m studies.theory_noise --run runs/theory

Part one: B_simple at fixed θ, from 16, 64 and 256 prompt groups, at three checkpoints of one toy
run. Part two: four runs of 40 steps (configs/train_toy.yaml, 16 prompts per step) and one of 64
prompts per step, in four micro-batches; the gradients of the first, the first two and all four are
kept, and their variance over the steps is split into noise and drift. Writes
docs/results/theory_noise.md. About eight minutes on one thread; what is finished is kept in the
folder and not repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import isentrope as ise
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.nouns.columns import text
from isentrope.probe.online_noise_scale import NoiseScaleMonitor, micro_batch_moments
from isentrope.verbs.batches import at_precision
from isentrope.verbs.train import train
from studies.drift import separate_drift
from studies.theory_policies import over, run_folder, write_page
from studies.toy_attribution import checkpoints, configured, prepared
from validation.toy_training import QUIET

STEPS = (8, 24, 40)
SIZES = (16, 64, 256)
SEEDS = (1, 2, 3, 4)
MICRO_BATCHES = 4
GROUP = 8
"""Responses per prompt, of configs/train_toy.yaml."""
PREFIXES = (1, 2, 4)
"""Micro-batches after which the gradient is kept."""
SMALL, LARGE = 16, 64
"""Prompts per step."""
LAGS = (1, 2, 5, 10, 20)


class Recorder:
    """Keeps the gradient of the first micro-batches of each step, and every micro-batch's size."""

    def __init__(self, micro: int) -> None:
        """Start with no step.

        Args:
            micro: Prompts per micro-batch.
        """
        self.micro = micro
        self.kept: dict[int, list[Tensor]] = {k: [] for k in PREFIXES}
        self.squares: list[float] = []
        self.moments: list[tuple[float, float]] = []
        self._last: Tensor | None = None

    def after_backward(self, monitor: NoiseScaleMonitor) -> None:
        """Read .grad after a micro-batch, the sum of those of the step divided by their number."""
        parameters = [p.grad for p in monitor._parameters if p.grad is not None]
        total = torch.cat([g.flatten() for g in parameters]).clone() * MICRO_BATCHES
        one = total if self._last is None else total - self._last
        self.squares.append(float(one.double().square().sum()))
        done = len(self.squares)
        if done in self.kept:
            self.kept[done].append(total / done)
        self._last = total
        if done == MICRO_BATCHES:
            square = float((total / done).double().square().sum())
            mean = sum(self.squares) / done
            self.moments.append(micro_batch_moments(mean, square, done, self.micro))
            self.squares, self._last = [], None

    def contents(self) -> dict[str, Tensor]:
        """Gram matrices by number of prompts, and tr Σ of each step."""
        out = {"traces": torch.tensor([trace for trace, _ in self.moments], dtype=torch.float64)}
        for k, gradients in self.kept.items():
            stacked = torch.stack(gradients)
            out[f"gram_{k * self.micro}"] = (stacked @ stacked.T).double()
        return out


def run(folder: Path, seed: int, prompts: int = SMALL, steps: int = 40) -> dict[str, Tensor]:
    """Train a seed and keep the inner products of its gradients, unless that is done."""
    name = f"drift_{seed}" if prompts == SMALL else f"drift_{seed}_{prompts}"
    kept, micro = folder / f"{name}.safetensors", prompts // MICRO_BATCHES
    if not kept.exists():
        recorder, original = Recorder(micro), NoiseScaleMonitor.after_backward

        def after_backward(monitor: NoiseScaleMonitor, last: bool) -> None:
            recorder.after_backward(monitor)
            original(monitor, last)

        settings = [f"model.path={folder / 'sft_0' / 'model'}", f"training.seed={seed}"]
        sequences = micro * GROUP
        settings += [f"training.micro_batch={sequences}", f"training.prompts_per_step={prompts}"]
        settings += [f"training.steps={steps}", f"training.save_every={steps}"]
        settings += ["entropy_probe.enabled=false"]
        settings += [f"output.directory={folder / name}", *QUIET]
        with patch.object(NoiseScaleMonitor, "after_backward", after_backward):
            train(load_config("configs/train_toy.yaml", settings, TrainConfig))
        save_file(recorder.contents(), kept)
    return load_file(kept)


def fixed_rows(folder: Path, path: Path, step: int) -> list[str]:
    """B_simple at one checkpoint from batches of several sizes, drawn apart."""
    kept = folder / f"noise_{step}.md"
    if kept.exists():
        return kept.read_text().splitlines()
    rows = []
    for k, n in enumerate(SIZES):
        config = configured(path, 8, n)
        batch = config.batch_config.model_copy(update={"seed": 200 + 10 * k})
        ready = prepared(config.model_copy(update={"batch_config": batch}))
        with at_precision(ready.policy, config.precision.measuring):
            U, weights = ready.U, ready.step.token_weights
            found = ise.noise_scale(ready.policy, U, token_weights=weights)
        b = found.b_simple
        square = found.gradient_square
        rows.append(
            f"| {step} | {n} | {text(square)} | {text(found.trace)} | {b.value:.0f} "
            f"[{b.ci_low:.0f}, {b.ci_high:.0f}] |"
        )
        print(rows[-1], flush=True)
    kept.write_text("\n".join(rows))
    return rows


def drift_rows(runs: list[dict[str, Tensor]], prompts: int) -> list[str]:
    """One row per batch size: the split of the variance over steps, mean over runs or of one."""
    rows = []
    for k in PREFIXES:
        B = k * prompts // MICRO_BATCHES
        splits = [separate_drift(kept[f"gram_{B}"], kept["traces"], B) for kept in runs]
        names = ("variance", "noise", "drift", "naive_scale")
        if len(splits) > 1:
            cells = [over([getattr(x, name).value for x in splits]) for name in names]
        else:
            estimates = [getattr(splits[0], name) for name in names]
            cells = [f"{e.value:.3g} [{e.ci_low:.2g}, {e.ci_high:.2g}]" for e in estimates]
        shares = [x.drift.value / x.variance.value for x in splits]
        cells.append(over(shares) if len(shares) > 1 else f"{shares[0]:.2f}")
        rows.append(f"| {prompts} | {B} | " + " | ".join(cells) + " |")
    return rows


def lag_row(runs: list[dict[str, Tensor]]) -> str:
    """Mean |G_k|² and mean <G_k, G_{k+lag}> over it, both without bias."""
    squares, overlaps = [], []
    for kept in runs:
        gram, traces = kept[f"gram_{SMALL}"], kept["traces"]
        square = float((gram.diagonal() - traces / SMALL).mean())
        squares.append(square)
        overlaps.append([float(gram.diagonal(lag).mean()) / square for lag in LAGS])
    cells = [over(squares), *(over(list(x)) for x in zip(*overlaps, strict=True))]
    return "| " + " | ".join(cells) + " |"


def online_rows(folder: Path) -> list[str]:
    """The online estimate at the end of each run, from what training logged."""
    rows = []
    for seed in SEEDS:
        lines = (folder / f"drift_{seed}" / "logs" / "metrics.jsonl").read_text().splitlines()
        logged = [x for x in map(json.loads, lines) if "noise_scale/b_simple" in x][-1]
        value, low, high = (logged[f"noise_scale/b_simple{e}"] for e in ("", "_ci_low", "_ci_high"))
        ends = "none" if low is None else f"[{low:.0f}, {high:.0f}]"
        rows.append(f"| {seed} | {logged['step']} | {value:.0f} | {ends} |")
    return rows


def main() -> None:
    """Write the page."""
    folder = run_folder(__doc__)
    states = checkpoints(folder, 0)
    runs = [run(folder, seed) for seed in SEEDS]
    fixed = [row for step in STEPS for row in fixed_rows(folder, states / f"step_{step}", step)]
    large = [run(folder, 5, LARGE)]
    lines = [HEAD, *drift_rows(runs, SMALL), *drift_rows(large, LARGE)]
    lags = " | ".join(f"lag {lag}" for lag in LAGS)
    lines += [f"\n{LAG}\n\n| mean G_k² | {lags} |", "|" + "---|" * (len(LAGS) + 1), lag_row(runs)]
    write_page(
        "theory_noise",
        "\n".join([*lines, f"\n{ONLINE}", *online_rows(folder), f"\n{FIXED}", *fixed]),
    )


HEAD = """### Variance of the gradient over 40 steps

| prompts per step | B | V | tr Σ/B | drift Δ | B · V over squared mean | drift ÷ V |
|---|---|---|---|---|---|---|"""
LAG = "### Overlap of the true gradients of two steps, relative to G_k², four runs"
ONLINE = """### Online B_simple at the end of each run

| seed | step | B_simple | interval |
|---|---|---|---|"""
FIXED = """### B_simple at fixed θ, seed 0

| step | prompt groups | G² | tr Σ | B_simple |
|---|---|---|---|---|"""


if __name__ == "__main__":
    main()
