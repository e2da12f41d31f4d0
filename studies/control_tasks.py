"""Do the tasks that are to separate controls do so? The check before any study.

    python -m studies.control_tasks

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
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import Task
from studies.control_runs import (
    SETTINGS,
    configuration,
    evaluate,
    fine_tuned,
    held_out,
    load,
    run,
)
from validation.origin import write_results

Cell = dict[str, Any]
SEEDS = {"split": 4, "countdown": 4, "shortcut": 12, "relay": 4}
PROMPTS, SAMPLES = 16, 256
SWITCHES = (20, 120)
"""Steps of phase 1 before phase 2."""
PHASE_2 = 120


def curve(task: str, seed: int, folder: Path, every: int) -> Cell:
    """Vanilla from the fine-tuned model, evaluated on the way."""
    base = fine_tuned(task, folder)
    found = run(configuration(task, base, folder / f"run_{task}_{seed}", seed))
    problem, prompts = held_out(task, PROMPTS)
    points: list[Cell] = [{"step": 0, **measured(base, problem, prompts, task)}]
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
    changes = {
        "data": {"dataset_options": {**SETTINGS["relay"].options, "phase": 2}},
        "training": {"steps": PHASE_2},
    }
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


def kept(points: Sequence[Cell], name: str) -> float:
    """What is left at the end of what was there at the start."""
    return points[-1][name] / points[0][name]


def many_answers(task: str, found: Sequence[Cell]) -> tuple[list[str], bool]:
    """Rows of a task with many correct answers, and whether its check is passed."""
    rows = []
    steps = sorted({p["step"] for c in found for p in c["points"]})
    for step in steps:
        at = [p for c in found for p in c["points"] if p["step"] == step]
        values = [interval([p[n] for p in at]) for n in ("pass_1", "pass_64", "coverage")]
        forbidden = interval([p["forbidden"]["pass_1"] for p in at if "forbidden" in p])
        entropy = interval([p["entropy"] for p in at])
        rows.append(
            f"| {task} | {step} | {len(at)} | {' | '.join(values)} | {forbidden} | {entropy} |"
        )
    lost = float(np.mean([kept(c["points"], "coverage") for c in found])) < 0.5
    rises = float(np.mean([kept(c["points"], "pass_1") for c in found])) > 1
    return rows, lost and rises


def shortcut_row(found: Sequence[Cell]) -> tuple[str, bool]:
    """The row of `shortcut`, and whether its check is passed."""
    start, end = ([c["points"][i]["long"] for c in found] for i in (0, -1))
    short = sum(x < 0.5 for x in end)
    low, high = stats.binomtest(short, len(end)).proportion_ci(method="wilson")
    row = (
        f"| {len(found)} | {np.mean(start):.3f} | {short} | {short / len(end):.2f} "
        f"[{low:.2f}, {high:.2f}] | {interval([c['points'][-1]['pass_1'] for c in found])} |"
    )
    return row, 0.3 <= short / len(end) <= 0.8


def relay_rows(found: Mapping[int, Sequence[Cell]]) -> tuple[list[str], bool]:
    """Rows of `relay` by switch and step of phase 2, and whether its check is passed."""
    rows, gained = [], {}
    for switch, group in sorted(found.items()):
        for step in sorted({p["step"] for c in group for p in c["points"]}):
            at = [p["pass_1"] for c in group for p in c["points"] if p["step"] == step]
            rows.append(f"| {switch} | {step} | {len(at)} | {interval(at)} |")
        gained[switch] = [np.mean([p["pass_1"] for p in c["points"]]) for c in group]
    early, late = (np.mean(gained[s]) if s in gained else np.nan for s in SWITCHES)
    return rows, bool(late < early)


def page(out: Path) -> str:
    """The page, of the files that are there."""
    found = {f.stem: json.loads(f.read_text()) for f in sorted(out.glob("*.json"))}
    parts = []
    tables, words = [], []
    for task in ("split", "countdown"):
        if own := [c for name, c in found.items() if name.startswith(f"{task}_")]:
            rows, passed = many_answers(task, own)
            tables += rows
            words.append(f"{task} {'passes' if passed else 'fails'}")
    if tables:
        parts.append(MANY.format(rows="\n".join(tables), words=", ".join(words)))
    if own := [c for name, c in found.items() if name.startswith("shortcut_")]:
        row, passed = shortcut_row(own)
        parts.append(SHORTCUT.format(row=row, word="passes" if passed else "fails"))
    names = {s: [c for n, c in found.items() if n.startswith(f"relay_{s}_")] for s in SWITCHES}
    if any(names.values()):
        rows, passed = relay_rows({s: group for s, group in names.items() if group})
        parts.append(RELAY.format(rows="\n".join(rows), word="passes" if passed else "fails"))
    parts = parts or ["\nNo run with the present dials has been made yet.\n"]
    return TEMPLATE.format(today=date.today(), prompts=PROMPTS, parts="\n".join(parts))


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
    write_results(Path("docs/results/control_tasks.md"), page(asked.out))


TEMPLATE = """# Do the tasks separate controls?

`python -m studies.control_tasks`, {today}, vanilla Dr. GRPO of the toy from one fine-tuned model
per task, {prompts} held-out prompts with 256 responses each (64 in phase 2 of relay), 95 % t
intervals over seeds. Dials are in `studies/control_runs.py`. The verdicts below are those of as
many runs as the tables say.
{parts}
## Dials that were changed

The first settings of three tasks were no use, and their dials were changed, not the metrics. Each
was seen in one model or run, 2026-11-22.

- split, first number up to 80: fine-tuning taught only the nine answers of the demonstrator's
  habit. Vanilla went from pass@1 .427 to .942 in 120 steps and from coverage .155 to .113, nine
  answers of eighty: there was nothing else to lose. The first number is at most 16 now.
- shortcut, `rare` .03: 1.0 % of the responses were "long", and of 21 of them none was correct, so
  no group could find the style that pays more. With `rare` .1 and 500 steps of fine-tuning 5.1 %
  are "long", and .39 of these are correct against .50 of "digits"; `plain` is .8, so that the
  expected reward of "digits" (.40) is just above that of "long" (.39) at the start.
- countdown, 120 steps: pass@1 .164 to .295, pass@64 1.000 to .933, coverage .958 to .625, and still
  falling; it runs for 240 steps now.
"""

MANY = """
## Many answers: coverage must fall to less than half while pass@1 rises

| task | step | runs | pass@1 | pass@64 | coverage | pass@1, forbidden digit | h |
|---|---|---|---|---|---|---|---|
{rows}

Coverage: distinct correct answers among 256 responses over all correct answers. {words}.
"""

SHORTCUT = """
## Shortcut: between 30 and 80 % of the runs must end without the style that pays more

| runs | share of "long" before | end below .5 | share of runs | pass@1 at the end |
|---|---|---|---|---|
{row}

The task {word}.
"""

RELAY = """
## Relay: phase 2 must be slower after 120 steps of phase 1 than after 20

| steps of phase 1 | step of phase 2 | runs | pass@1, new rule |
|---|---|---|---|
{rows}

By the mean of pass@1 over phase 2 the task {word}.
"""


if __name__ == "__main__":
    main()
