"""What do the trainer and its probe cost, in wall time of a training step?

    isentrope sft configs/sft_toy.yaml --out runs/toy_sft
    python -m benchmarks.train_overhead

Runs of 21 steps of the toy at its training setting (16 prompts × 8, 23 new tokens, LoRA r 16) take
turns in one process, one thread: the reference loop of `isentrope demo`, the trainer without probe,
with the noise scale (two micro-batches a step instead of one), and with the probe at several sizes
and cadences. A round gives each one's ratio to a baseline of the same round; the table has the
median over rounds with its range, and the ratio of the fastest runs, which a busy machine disturbs
least. The first step of every run is left out.

Writes docs/results/train_overhead.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from examples.reference_loop import reference_loop
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import Addition
from isentrope.training.models import MAX_NEW_TOKENS, load_trainable
from isentrope.verbs.train import train

STEPS = 21
PROBES = [(16, 10), (32, 10), (64, 10), (32, 20), (128, 20)]


def reference(base: str, folder: Path) -> float:
    """Seconds of steps 2 to 21 of the reference loop."""
    model, tokenizer = load_trainable(base, lora_rank=16, lora_alpha=32)
    times: list[float] = []
    reference_loop(
        Policy(model, tokenizer, precision="float32"),
        Addition("train", digits=2),
        folder,
        steps=STEPS,
        max_new_tokens=MAX_NEW_TOKENS,
        save_every=STEPS,
        progress=lambda _: times.append(time.perf_counter()),
    )
    return times[-1] - times[0]


def trainer(base: str, folder: Path, *settings: str) -> float:
    """Seconds of steps 2 to 21 of `isentrope train`."""
    usual = [f"model.path={base}", f"output.directory={folder}", f"training.steps={STEPS}"]
    usual += [f"training.save_every={STEPS}", "output.log_level=WARNING"]
    train(load_config("configs/train_toy.yaml", [*usual, *settings], TrainConfig))
    lines = (folder / "logs" / "timing.jsonl").read_text().splitlines()
    return sum(json.loads(line)["seconds"] for line in lines[1:])


def variants(base: str) -> dict[str, object]:
    """Name → function of a folder that returns seconds."""
    whole, off = "training.micro_batch=16", "entropy_probe.enabled=false"
    found: dict[str, object] = {
        "reference loop": lambda folder: reference(base, folder),
        "trainer": lambda folder: trainer(base, folder, whole, off),
        "trainer, noise scale": lambda folder: trainer(base, folder, off),
    }
    for size, every in PROBES:
        probe = (f"entropy_probe.size={size}", f"entropy_probe.every={every}")
        found[f"probe, {size} every {every}"] = lambda folder, probe=probe: trainer(
            base, folder, whole, *probe
        )
    often = ("entropy_probe.size=32", "entropy_probe.every=20", "entropy_probe.log_every=1")
    found["probe, 32 every 20, a prediction at every step"] = lambda folder: trainer(
        base, folder, whole, *often
    )
    return found


def row(name: str, seconds: dict[str, list[float]], baseline: str) -> str:
    """Median ratio to a baseline over rounds, with its range, and the ratio of the fastest."""
    ratios = np.array(seconds[name]) / np.array(seconds[baseline])
    fastest = min(seconds[name]) / min(seconds[baseline])
    spread = f"{ratios.min():.3f} … {ratios.max():.3f}"
    return f"| {name} | {np.median(ratios):.3f} | {spread} | {fastest:.3f} |"


def main() -> None:
    """Run the rounds and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="runs/toy_sft/model", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in variants(asked.base)}
    for number in range(asked.rounds):
        for name, run in variants(asked.base).items():
            with TemporaryDirectory() as scratch:
                seconds[name].append(run(Path(scratch) / "run"))
                shutil.rmtree(scratch, ignore_errors=True)
            print(f"round {number + 1}: {name} {seconds[name][-1]:.2f} s", flush=True)
    probes = [name for name in seconds if name.startswith("probe")]
    text = TEMPLATE.format(
        today=date.today(),
        rounds=asked.rounds,
        own="\n".join(
            row(n, seconds, "reference loop") for n in ("trainer", "trainer, noise scale")
        ),
        probes="\n".join(row(name, seconds, "trainer") for name in probes),
    )
    Path("docs/results/train_overhead.md").write_text(text)
    print(text)


TEMPLATE = """# Cost of the trainer and of the probe

`python -m benchmarks.train_overhead`, {today}, one CPU thread, {rounds} rounds. Ratios of the wall
time of steps 2 to 21 on the toy (16 prompts × 8, 23 new tokens, LoRA r 16), median and range over
rounds; every round runs each variant once.

| to the reference loop | ratio | range | of the fastest |
|---|---|---|---|
{own}

| to the trainer without probe (size, every so many steps) | ratio | range | of the fastest |
|---|---|---|---|
{probes}

A reading draws its own responses, so its cost has a part that hardly depends on its size (23
generation steps, one after another), and a part that grows with it: one pass in forward mode along
momentum and gradient, and one plain pass after the step. Its memory is that of a scoring
micro-batch, plus v by component in float64: O(trainable parameters).
"""


if __name__ == "__main__":
    main()
