"""`isentrope demo`: the whole story of a toy policy, each chapter by the verb that tells it.

<folder>/fine_tuning/      the fine-tuned policy
<folder>/                  its Dr. GRPO run with the probe: config.yaml, logs, training_state
<folder>/evaluation/       pass@k and entropy before, halfway and at the end
<folder>/measurements/     measure, influence, kernel and audit, halfway and at the end
<folder>/report.html       all of it on one page
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from isentrope.cli.console import out, say
from isentrope.cli.evaluation_table import print_rows
from isentrope.cli.layout import show
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.reports.figures import entropy_change_figure
from isentrope.reports.read_run import read_run
from isentrope.reports.report import write_report
from isentrope.reports.verdict import verdict
from isentrope.results.verbs import AUDIT, INFLUENCE, KERNEL
from isentrope.runs.folder import noted_if_interrupted
from isentrope.runs.one_writer import LOCK, one_writer
from isentrope.system.progress import Progress
from isentrope.training.toy import MAX_NEW_TOKENS
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.influence_text import printed_influence
from isentrope.verbs.loop import run_verb
from isentrope.verbs.measure import measure
from isentrope.verbs.measure_text import printed_measurements
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
TASK = {"dataset_name": "addition"}
BATCH_SEED = 20261121
"""Seed of E and U: the date on which it was set, before anything was drawn with it. Every user of
the demo sees one and the same draw, so that draw must not be chosen by its result."""


def demo(
    folder: str,
    steps: int,
    fine_tuning_steps: int,
    evaluation_size: int,
    seed: int,
    progress: Progress,
) -> Path:
    """Train a toy policy, see its entropy fall, and find out which tokens do it.

    Args:
        folder: Run folder, new.
        steps: Dr. GRPO steps.
        fine_tuning_steps: Supervised steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.
        progress: Where to say how far it is.

    Returns:
        The run folder.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    where = Path(folder)
    with one_writer(where):
        if any(path.name != LOCK for path in where.iterdir()):
            raise FileExistsError(f"{where} is not empty: remove it, or choose another --out.")
        torch.set_num_threads(1)  # the toy is too small to share
        story = Story(where, steps, evaluation_size, seed, progress)
        advice = f"What was finished is in {where}. Run it again with another --out."
        with noted_if_interrupted(lambda: advice):
            story.train(fine_tuning_steps)
            story.evaluate()
            story.measure()
            story.attribute()
            story.report()
    return where


def print_verdict(console: Console, folder: Path) -> None:
    """Print the sentences that the report opens with."""
    for i, claim in enumerate(verdict(read_run(folder)), 1):
        console.print(f"{i}. {claim.text}", markup=False, highlight=False)


@dataclass(frozen=True)
class Story:
    """The chapters, each from what those before it left in the folder.

    Attributes:
        folder: Run folder.
        steps: Dr. GRPO steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.
        progress: Where to say how far it is.
    """

    folder: Path
    steps: int
    evaluation_size: int
    seed: int
    progress: Progress

    @property
    def checkpoints(self) -> list[int]:
        """The steps that are looked at: halfway and the last."""
        return [self.steps // 2, self.steps]

    def train(self, fine_tuning_steps: int) -> None:
        """Fine-tune, then reinforce with the probe on."""
        _chapter("supervised fine-tuning")
        settings = fine_tuning(self.folder, fine_tuning_steps, self.seed)
        model = sft(load_config(settings, root=SftConfig), progress=self.progress).model
        _chapter(f"{self.steps} steps of Dr. GRPO, with the probe")
        settings = training(self.folder, model, self.steps, self.checkpoints[0], self.seed)
        train(load_config(settings, root=TrainConfig), progress=self.progress)

    def evaluate(self) -> None:
        """How accurate, and how certain, is each checkpoint?"""
        _chapter("evaluation")
        settings = evaluation(self.folder, self.checkpoints, self.seed)
        config = load_config(settings, root=EvaluateConfig)
        print_rows(out, evaluate_checkpoints(config, progress=self.progress).results)

    def measure(self) -> None:
        """What does one more step do to the entropy?"""
        _chapter("measure: what one more step does to entropy")
        run = measure(self._config(), progress=self.progress, draw=entropy_change_figure)
        show(out, printed_measurements(run.results[-1:]))

    def attribute(self) -> None:
        """Who did it, how responses are tied to each other, and how well the proxies see it."""
        config = self._config()
        _chapter("influence: which tokens do it")
        run = run_verb(INFLUENCE, config, self.progress)
        result = run.results[-1]
        show(out, printed_influence(result, run.folder), result.warnings)
        _chapter("kernel and audit: how responses are tied, and what the proxies see")
        for verb in (KERNEL, AUDIT):
            run_verb(verb, config, self.progress)

    def report(self) -> None:
        """One page with all of it."""
        _chapter("report")
        say(f"Wrote {write_report(self.folder).page}\n")

    def _config(self) -> MeasureConfig:
        settings = measurement(self.folder, self.checkpoints, self.evaluation_size, self.seed)
        return load_config(settings)


def fine_tuning(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """The configuration of `isentrope sft`, as configs/sft_toy.yaml has it."""
    return {
        "model": {"path": "toy", "lora_rank": 0},
        "data": TASK,
        "fine_tuning": {
            "steps": steps,
            "batch_size": 64,
            "learning_rate": 2e-3,
            "warmup_steps": min(20, steps),
            "seed": seed,
        },
        "output": {"directory": str(folder / "fine_tuning"), "log_level": "WARNING"},
    }


def training(folder: Path, model: Path, steps: int, save_every: int, seed: int) -> dict[str, Any]:
    """The configuration of `isentrope train`, as configs/train_toy.yaml has it."""
    return {
        "model": {"path": str(model), "lora_rank": 16, "lora_alpha": 32},
        "data": TASK,
        "sampling": {"temperature": 1.0, "max_new_tokens": MAX_NEW_TOKENS},
        "training": {
            "steps": steps,
            "learning_rate": 1e-3,
            "prompts_per_step": 16,
            "group_size": 8,
            "micro_batch": 8,
            "save_every": save_every,
            "seed": seed,
        },
        "entropy_probe": {"every": max(1, steps // 8), "size": 64},
        "output": {"directory": str(folder), "log_level": "WARNING"},
    }


def evaluation(folder: Path, steps: list[int], seed: int) -> dict[str, Any]:
    """The configuration of `isentrope evaluate`: before the first step, and the checkpoints."""
    paths = [folder / "training_state" / f"step_{step}" for step in (0, *steps)]
    return {
        "checkpoint": {"checkpoint_path": [str(path) for path in paths]},
        "data": TASK,
        "evaluation": {"n_prompts": 128, "samples_per_prompt": 8, "seed": seed},
        "sampling": {"max_new_tokens": MAX_NEW_TOKENS, "batch_size": 256},
        "output": {"directory": str(folder / "evaluation"), "log_level": "WARNING"},
    }


def measurement(folder: Path, steps: list[int], evaluation_size: int, seed: int) -> dict[str, Any]:
    """The configuration of `measure`, `influence`, `kernel`, `noise` and `audit`."""
    paths = [str(folder / "training_state" / f"step_{step}") for step in steps]
    return {
        "checkpoint": {"checkpoint_path": paths},
        "batch_config": TASK
        | {"B_E": evaluation_size, "B_U": 16, "G": 8, "seed": BATCH_SEED + seed}
        | {"save_batches": True},
        "estimator": {"eta_list": list(RATES), "resample_collapsed": True},
        "sampling": {"max_new_tokens": MAX_NEW_TOKENS, "batch_size": 256},
        "analysis": {"share_responses": 4},
        "output": {"directory": str(folder), "log_level": "WARNING"},
    }


def _chapter(title: str) -> None:
    out.rule(f"[bold]{title}", align="left", style="dim")
