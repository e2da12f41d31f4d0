"""What does each control gain in one step? Every token control and the isentropic step, one table.

    python -m benchmarks.control_trials

For three seeds it fine-tunes the toy policy (configs/sft_toy.yaml), trains it for 40 steps
(configs/train_toy.yaml, a checkpoint every 8), and runs `isentrope try all` on the five
checkpoints: the same update batch for all controls, the same E of 1,024 responses, disjoint from
the controls' own. What is in the table is the gain over vanilla as a share of |ΔH of vanilla|, and
the same of reward, averaged over the 15 checkpoints; intervals are t over the three seeds' means
and, in brackets, over all checkpoints.

Writes docs/results/control_trials.md and control_trials.png. About 45 minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.toy_training import QUIET
from isentrope.experiments.config_io import load_config
from isentrope.experiments.sft import sft
from isentrope.experiments.train import train
from isentrope.experiments.train_config import SftConfig, TrainConfig

SEEDS = (0, 1, 2)
STEPS = (8, 16, 24, 32, 40)


def trained(folder: Path, seed: int) -> Path:
    """The run of a seed, made where it is not there yet."""
    base, run = folder / f"sft_{seed}", folder / f"train_{seed}"
    if not (base / "model").exists():
        settings = [f"fine_tuning.seed={seed}", f"output.directory={base}", *QUIET]
        sft(load_config("configs/sft_toy.yaml", settings, SftConfig))
    if not (run / "training_state" / f"step_{STEPS[-1]}").exists():
        settings = [
            f"model.path={base / 'model'}",
            f"training.seed={seed}",
            f"training.save_every={STEPS[0]}",
            f"output.directory={run}",
            "entropy_probe.enabled=false",
            *QUIET,
        ]
        train(load_config("configs/train_toy.yaml", settings, TrainConfig))
    return run


def main() -> None:
    """Run everything that is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/control_trials", help="(%(default)s)")
    parser.add_argument("--size", type=int, default=1024, help="of E (%(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in SEEDS:
        trained(Path(asked.run), seed)


if __name__ == "__main__":
    main()
