"""What does each control cost, as a share of a training step?

    python -m benchmarks.control_overhead

Each control trains the toy policy (configs/train_toy.yaml, no probe) for a few steps from one
fine-tuned model, the controls in turn, several rounds. Every step writes the time that the control
took and the time of the whole step, so the share is of one step of one run, and what else the
machine does counts in both. The table has the median over steps and rounds of

    control     seconds of the control / seconds of the rest of the step
    step        seconds of the step / median seconds of a vanilla step of the same round

Writes docs/results/control_overhead.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.control.controls import STEP, TOKEN
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train

VANILLA = "none"
QUIET = ("output.report_to=[]", "output.log_level=WARNING")


def timed(base: Path, folder: Path, control: str, steps: int) -> list[dict[str, float]]:
    """Lines of logs/timing.jsonl of a short run; the first step warms up and is left out."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = [
        f"model.path={base / 'model'}",
        f"training.steps={steps + 1}",
        f"training.save_every={steps + 1}",
        f"control.name={control}",
        f"output.directory={folder}",
        "output.rollouts_every=0",
        "entropy_probe.enabled=false",
        "noise_scale.enabled=false",
        *QUIET,
    ]
    train(load_config("configs/train_toy.yaml", settings, TrainConfig))
    text = (folder / "logs" / "timing.jsonl").read_text().splitlines()
    return [json.loads(line) for line in text][1:]


def main() -> None:
    """Run the rounds and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/control_overhead", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="per run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(asked.run)
    if not (folder / "sft" / "model").exists():
        settings = [f"output.directory={folder / 'sft'}", *QUIET]
        sft(load_config("configs/sft_toy.yaml", settings, SftConfig))
    controls = [VANILLA, *TOKEN, *STEP]
    shares: dict[str, list[float]] = {name: [] for name in controls}
    steps: dict[str, list[float]] = {name: [] for name in controls}
    for _ in range(asked.rounds):
        found: dict[str, list[dict[str, Any]]] = {
            name: timed(folder / "sft", folder / "run", name, asked.steps) for name in controls
        }
        plain = median(line["seconds"] for line in found[VANILLA])
        for name, lines in found.items():
            steps[name] += [line["seconds"] / plain for line in lines]
            took = [line.get("control/seconds", 0.0) for line in lines]
            pairs = zip(took, lines, strict=True)
            shares[name] += [own / (line["seconds"] - own) for own, line in pairs]
    rows = [
        f"| `{name}` | {median(shares[name]):.3f} | {median(steps[name]):.2f} |"
        for name in controls
        if name != VANILLA
    ]
    text = [
        "# Cost of control",
        "",
        "```",
        "python -m benchmarks.control_overhead",
        "```",
        "",
        f"Written on {date.today()}: toy policy, 16 × 8 responses per step, one thread, "
        f"{asked.rounds} rounds of {asked.steps} steps per control; medians. `control` is the time "
        "of the control over that of the rest of its step, `step` the time of a step over that of "
        "a vanilla step of the same round.",
        "",
        "| control | control | step |",
        "|---|---|---|",
        *rows,
        "",
    ]
    Path("docs/results/control_overhead.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
