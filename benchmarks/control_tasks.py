"""Do the tasks that are to separate controls do so? The check before any study.

    python -m benchmarks.control_tasks

Vanilla Dr. GRPO of the toy on each task, from one fine-tuned model per task:

    split, countdown   coverage must fall to less than half while pass@1 rises
    shortcut           the share of runs that end with less than half of "long" must be 30–80 %
    relay              after 120 steps of phase 1 phase 2 must be slower than after 20

Each run is a file under build/control_tasks and is not repeated; --task and --seeds choose some.
A task that fails is changed by its dial (`control_runs.SETTINGS`), and its files are removed.
Writes docs/results/control_tasks.md from the files that are there. About two hours on one core.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.control_runs import (
    GROUP_SIZE,
    SETTINGS,
    configuration,
    evaluate,
    fine_tuned,
    held_out,
    load,
    run,
)
from scipy import stats
from isentrope.sampling.prompts import Prompt
from isentrope.sampling.tasks.task import Task

Cell = dict[str, Any]
SEEDS = {"split": 4, "countdown": 4, "shortcut": 12, "relay": 4}
PROMPTS, SAMPLES = 32, 256
SWITCHES = (20, 120)
"""Steps of phase 1 before phase 2."""
PHASE_2 = 120


def curve(task: str, seed: int, folder: Path, every: int) -> Cell:
    """Vanilla from the fine-tuned model, evaluated on the way."""
    base = fine_tuned(task, folder)
    found = run(configuration(task, base, folder / f"run_{task}_{seed}", seed))
    problem, prompts = held_out(task, PROMPTS)
    points = [{"step": 0} | measured(base, problem, prompts, task)]
    wanted = [step for step in found.checkpoints if step % every == 0]
    for step in sorted({*wanted, max(found.checkpoints)}):
        reading = measured(found.checkpoints[step], problem, prompts, task)
        points.append({"step": step, "tokens": found.tokens(step)} | reading)
    if task == "split":
        other, asked = held_out(task, PROMPTS // 2, forbidden=True)
        for point, model in zip(
            (points[0], points[-1]), (base, found.checkpoints[max(found.checkpoints)]), strict=True
        ):
            point["forbidden"] = measured(model, other, asked, task)
    return {"points": points, "ended": found.ended, "seconds": found.seconds}


def relay(seed: int, folder: Path, switch: int) -> Cell:
    """Phase 1 for so many steps, then phase 2 from there."""
    base = fine_tuned("relay", folder)
    steps = {"training": {"steps": switch, "save_every": 10}}
    first = run(configuration("relay", base, folder / f"run_relay_{seed}_{switch}", seed, steps))
    start = first.checkpoints[max(first.checkpoints)]
    before = measured(start, *held_out("relay", PROMPTS), "relay")
    changes = {"data": {"dataset_options": {"phase": 2}}, "training": {"steps": PHASE_2}}
    second = run(
        configuration("relay", start, folder / f"run_relay_{seed}_{switch}_2", seed + 1000, changes)
    )
    task, prompts = second_kind(PROMPTS)
    points = [{"step": 0} | measured(start, task, prompts, "relay", 64)]
    for step in sorted(s for s in second.checkpoints if s % 20 == 0):
        points.append(
            {"step": step, "tokens": second.tokens(step)}
            | measured(second.checkpoints[step], task, prompts, "relay", 64)
        )
    return {"before": before, "points": points, "ended": second.ended, "seconds": second.seconds}


def second_kind(count: int) -> tuple[Task, list[Prompt]]:
    """Held-out prompts of the second kind of `relay`, in seeded order."""
    task, prompts = held_out("relay", 10**9, phase=2)
    return task, [p for p in prompts if "c" in p.key][:count]


def measured(
    model: Path, task: Task, prompts: Sequence[Prompt], name: str, samples: int = SAMPLES
) -> dict[str, float | None]:
    """`evaluate` of a checkpoint."""
    return evaluate(load(model), task, prompts, SETTINGS[name].length, samples=samples)


def cells(tasks: Sequence[str], seeds: int | None) -> dict[str, Callable[[Path], Cell]]:
    """Every cell by the name of its file, seed by seed."""
    found: dict[str, Callable[[Path], Cell]] = {}
    for seed in range(max(SEEDS.values())):
        for task in tasks:
            if seed >= (seeds or SEEDS[task]):
                continue
            if task == "relay":
                for switch in SWITCHES:
                    found[f"relay_{switch}_{seed}"] = lambda folder, seed=seed, switch=switch: (
                        relay(seed, folder, switch)
                    )
            else:
                every = SETTINGS[task].steps // 4
                found[f"{task}_{seed}"] = lambda folder, task=task, seed=seed, every=every: curve(
                    task, seed, folder, every
                )
    return found


def interval(values: Sequence[float], digits: int = 3) -> str:
    """Mean and 95 % t interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if values else "–"
    mean, half = np.mean(values), stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{mean:.{digits}f} [{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def main() -> None:
    """Run the cells that are not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", action="append", choices=[*SEEDS], help="(all)")
    parser.add_argument("--seeds", type=int, help="of each task (the page's numbers)")
    parser.add_argument("--out", type=Path, default=Path("build/control_tasks"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in cells(asked.task or [*SEEDS], asked.seeds).items():
        file = asked.out / f"{name}.json"
        if file.exists():
            continue
        for left in asked.out.glob(f"run_{name}*"):
            shutil.rmtree(left)  # of a cell that was stopped
        found = make(asked.out)
        file.write_text(json.dumps(found))
        for done in asked.out.glob("run_*"):
            shutil.rmtree(done)
        print(name, json.dumps(found["points"][-1]), flush=True)


if __name__ == "__main__":
    main()
