"""Does a budget hold its target, and what does that cost? Runs on the toy and a real model, a page.

    python -m studies.budget_runs --folder runs/budget
    python -m studies.budget_runs --folder runs/budget --page

Addition and countdown, each from one fine-tuned base, and sentences by SmolLM2-135M (`make
smollm2`) as it comes: vanilla, a budget that holds the nats per response of the first step, and on
addition one that holds the nats per token; three seeds each, of 60 steps on addition and 40 on the
others. Sentences take 8 prompts × 4, since leave-one-out needs groups in both halves of a batch.
Fixed before the runs: tracking is the mean of |h/h* − 1| of the responses drawn at steps 21 to the
last, and of h/h* − 1; beside it the mean of |h/h* − 1| where h is the mean of ten steps, since one
batch has an error of 2 to 4 %. Price is held-out accuracy after the last step, sampled at T = 1 and
T = .4, and greedy, with vanilla's. A base that is in TASK/sft already is not made again, a run that
was stopped is continued, and runs of another version of the library join as further names of the
same layout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from examples.tasks.countdown import LONGEST
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.sft import sft
from isentrope.verbs.train import resume, train

SETTLED, WINDOW = 20, 10
"""Steps before tracking is read; steps of a mean."""
SEEDS = (0, 1, 2)
HOLD = ("control.name=budget", "control.target.kind=hold")
ARMS = {
    "vanilla": (),
    "budget_seq": HOLD,
    "budget_tok": (*HOLD, "control.options.functional=per_token"),
}
NAMES = {
    "vanilla": "vanilla",
    "budget_seq": "budget, nats per response",
    "budget_tok": "budget, nats per token",
    "former_seq": "former budget, per response",
    "former_tok": "former budget, per token",
    "isentropic": "the isentropic step, nats per token",
}


@dataclass(frozen=True)
class Task:
    """What is trained and evaluated.

    Attributes:
        steps: Steps of a run.
        prompts: Prompts of an evaluation, `null` for all.
        settings: Settings over those of the configuration files, for training and evaluation.
        arms: Names of `ARMS`.
        configs: Ends of the names of the configuration files.
        training: Settings of training alone.
    """

    steps: int
    prompts: str
    settings: tuple[str, ...]
    arms: tuple[str, ...]
    configs: str = "toy"
    training: tuple[str, ...] = ()


TASKS = {
    "addition": Task(60, "384", (), tuple(ARMS)),
    "countdown": Task(
        40,
        "null",
        (
            "data.dataset_name=examples/tasks/countdown.py:Countdown",
            f"sampling.max_new_tokens={LONGEST}",
        ),
        ("vanilla", "budget_seq"),
    ),
    "sentence": Task(
        40,
        "null",
        (),
        ("vanilla", "budget_seq"),
        "smollm2_sentence",
        ("training.prompts_per_step=8", "training.group_size=4"),
    ),
}
TEMPERATURES = ("1.0", "0.4")


def perform(folder: Path, task: Task, arms: Sequence[str]) -> None:
    """Train and evaluate what is not there yet, in the folder of a task."""
    base = folder / "sft"
    start = []
    if task.configs == "toy":
        start = [f"model.path={base}/model"]
        if not base.exists():
            own = [*task.settings[:1], f"output.directory={base}"]
            sft(load_config("configs/sft_toy.yaml", own, SftConfig))
    for seed in SEEDS:
        for arm in arms:
            run = folder / f"{arm}_{seed}"
            last = run / f"training_state/step_{task.steps}"
            if run.exists() and not last.exists():
                resume(run)
            elif not last.exists():
                own = [*start, f"training.seed={seed}", *task.settings, *task.training, *ARMS[arm]]
                own += [f"output.directory={run}", f"training.steps={task.steps}"]
                own += ["training.save_every=20", "entropy_probe.enabled=false"]
                train(load_config(f"configs/train_{task.configs}.yaml", own, TrainConfig))
            for temperature in TEMPERATURES:
                out = folder / f"{run.name}_T{temperature}"
                if out.exists():
                    continue
                own = [f"checkpoint.checkpoint_path={last}", *task.settings]
                own += [f"sampling.temperature={temperature}", f"output.directory={out}"]
                own += [f"evaluation.n_prompts={task.prompts}", "evaluation.samples_per_prompt=4"]
                own += ["evaluation.ks=[1, 4]"]
                file = f"configs/evaluate_{task.configs}.yaml"
                evaluate_checkpoints(load_config(file, own, EvaluateConfig))


def lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def tracking(run: Path) -> tuple[str, str, str, str]:
    """Means of h/h* − 1, of its size, and of that of ten-step means; cost. – without a target."""
    log, times = lines(run / "logs/metrics.jsonl"), lines(run / "logs/timing.jsonl")
    if "control/target" not in log[0]:
        return "–", "–", "–", "–"
    whole = [line["seconds"] for line in times]
    own = [line.get("control/seconds", 0.0) for line in times]
    cost = fmean(x / (y - x) for x, y in zip(own, whole, strict=True))
    key, target = "control/entropy_drawn", log[0]["control/target"]
    parts = [
        [x[key] / target - 1 for x in log[k : k + WINDOW] if key in x]
        for k in range(SETTLED, len(log), WINDOW)
    ]
    away = [x for part in parts for x in part]
    sizes = (fmean(map(abs, values)) for values in (away, map(fmean, parts)))
    return f"{fmean(away):+.1%}", *(f"{x:.1%}" for x in sizes), f"{cost:.0%}"


def metric(row: dict[str, Any], name: str) -> str:
    """A metric with its interval."""
    x = row["metrics"][name]
    return f"{x['value']:.3f} [{x['ci_low']:.3f}, {x['ci_high']:.3f}]"


def evaluations(folder: Path, name: str) -> list[Path]:
    """The files of a run's evaluations, one per temperature."""
    step = f"step_{TASKS[folder.name].steps}"
    return [folder / f"{name}_T{t}" / step / "metrics.json" for t in TEMPERATURES]


def row(folder: Path, name: str) -> str:
    """One run as a row of the table."""
    arm, _, seed = name.rpartition("_")
    hot, cold = (json.loads(x.read_text("utf-8"))["rows"] for x in evaluations(folder, name))
    by = {x["decoding"]: x for x in hot}
    cells = [
        *(NAMES[arm], seed, *tracking(folder / name)),
        metric(by["sampled"], "entropy_per_sequence"),
        *(metric(x, "pass_at_1") for x in (by["sampled"], cold[0], by["greedy"])),
    ]
    return f"| {' | '.join(cells)} |"


def page(folder: Path) -> str:
    """The tables of all runs that are complete, as Markdown."""
    parts = []
    for task in TASKS:
        done = [
            f"{arm}_{seed}"
            for arm in NAMES
            for seed in SEEDS
            if all(file.exists() for file in evaluations(folder / task, f"{arm}_{seed}"))
        ]
        head = "| run | seed | mean h/h* − 1 | mean of its size | of ten steps | cost of a step"
        head += " | nats per response | pass@1, T = 1 | pass@1, T = .4 | greedy |"
        rows = (row(folder / task, name) for name in done)
        parts.append("\n".join([f"### {task}", "", head, "|" + "---|" * 10, *rows]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], help="(those of each task)")
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if args.page:
        print(page(args.folder))
        return
    for task in args.tasks:
        perform(args.folder / task, TASKS[task], args.arms or TASKS[task].arms)


if __name__ == "__main__":
    main()
