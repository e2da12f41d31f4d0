"""`isentrope demo`: the whole story of a toy policy, each chapter by the verb that tells it.

<folder>/fine_tuning/      the fine-tuned policy
<folder>/                  its Dr. GRPO run with the probe: config.yaml, logs, training_state
<folder>/evaluation/       pass@k and entropy before, halfway and at the end
<folder>/measurements/     measure, influence, kernel and audit, halfway and at the end
<folder>/report.html       all of it on one page
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from isentrope.cli.console import Results, err, out, show
from isentrope.cli.tables import evaluation_table
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.reports.panels.change import entropy_change_figure
from isentrope.reports.read_run import read_run
from isentrope.reports.report import write_report
from isentrope.reports.verdict import verdict
from isentrope.results.verbs import AUDIT, INFLUENCE, KERNEL, MEASURE
from isentrope.runs.folder import LOCK, noted_if_interrupted, one_writer
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.influence import printed_influence
from isentrope.verbs.loop import run_verb
from isentrope.verbs.prepare import Prepare, PreparedOnce
from isentrope.verbs.printed_measure import printed_measurements
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train

C = TypeVar("C", SftConfig, TrainConfig, EvaluateConfig, MeasureConfig)

BATCH_SEED = 20261121
"""Seed of E and U: the date on which it was set, before anything was drawn with it. Every user of
the demo sees one and the same draw, so that draw must not be chosen by its result."""


def demo(
    folder: str,
    steps: int,
    fine_tuning_steps: int,
    evaluation_size: int,
    seed: int,
) -> Path:
    """Train a toy policy, see its entropy fall, and find out which tokens do it.

    Args:
        folder: Run folder, new.
        steps: Dr. GRPO steps.
        fine_tuning_steps: Supervised steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.

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
        story = Story(where, steps, evaluation_size, seed)
        advice = f"What was finished is in {where}. Run it again with another --out."
        with noted_if_interrupted(lambda: advice):
            story.train(fine_tuning_steps)
            story.evaluate()
            story.measure(prepare := PreparedOnce())
            story.attribute(prepare)
            story.report()
    return where


def print_verdict(console: Results, folder: Path) -> None:
    """Print the sentences that the report opens with."""
    for i, claim in enumerate(verdict(read_run(folder)), 1):
        console.conclude(f"{i}. {claim.text}")


@dataclass(frozen=True)
class Story:
    """The chapters, each from what those before it left in the folder.

    Attributes:
        folder: Run folder.
        steps: Dr. GRPO steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.
    """

    folder: Path
    steps: int
    evaluation_size: int
    seed: int

    def train(self, fine_tuning_steps: int) -> None:
        """Fine-tune, then reinforce with the probe on."""
        _chapter("supervised fine-tuning")
        model = sft(self.fine_tuning(fine_tuning_steps)).model
        _chapter(f"{self.steps} steps of Dr. GRPO, with the probe")
        train(self.training(model))

    def evaluate(self) -> None:
        """How accurate, and how certain, is each checkpoint?"""
        _chapter("evaluation")
        show(out, [evaluation_table(evaluate_checkpoints(self.evaluation()).results)])

    def measure(self, prepare: Prepare) -> None:
        """What does one more step do to the entropy?"""
        _chapter("measure: what one more step does to entropy")
        run = run_verb(MEASURE, self.measurement(), entropy_change_figure, prepare)
        show(out, printed_measurements(run.results[-1:]))

    def attribute(self, prepare: Prepare) -> None:
        """Who did it, how responses are tied to each other, and how well the proxies see it."""
        config = self.measurement()
        _chapter("influence: which tokens do it")
        run = run_verb(INFLUENCE, config, prepare=prepare)
        result = run.results[-1]
        show(out, printed_influence(result, run.folder), result.warnings)
        _chapter("kernel and audit: how responses are tied, and what the proxies see")
        for verb in (KERNEL, AUDIT):
            run_verb(verb, config, prepare=prepare)

    def report(self) -> None:
        """One page with all of it."""
        _chapter("report")
        out.conclude(f"Wrote {write_report(self.folder).page}\n")

    def fine_tuning(self, steps: int) -> SftConfig:
        """The configuration of `isentrope sft`, as configs/sft_toy.yaml has it."""
        sizes = {"steps": steps, "warmup_steps": min(20, steps), "seed": self.seed}
        place = {"directory": str(self.folder / "fine_tuning")}
        return _settings("fine_tuning", SftConfig, fine_tuning=sizes, output=place)

    def training(self, model: Path) -> TrainConfig:
        """The configuration of `isentrope train`, as configs/train_toy.yaml has it."""
        return _settings(
            "training",
            TrainConfig,
            model={"path": str(model)},
            training={"steps": self.steps, "save_every": self.steps // 2, "seed": self.seed},
            entropy_probe={"every": max(1, self.steps // 8)},
            output={"directory": str(self.folder)},
        )

    def evaluation(self) -> EvaluateConfig:
        """The configuration of `isentrope evaluate`: before the first step, halfway, at the end."""
        return _settings(
            "evaluation",
            EvaluateConfig,
            checkpoint={"checkpoint_path": self._paths(0, self.steps // 2, self.steps)},
            evaluation={"seed": self.seed},
            output={"directory": str(self.folder / "evaluation")},
        )

    def measurement(self) -> MeasureConfig:
        """The configuration of the measuring verbs: halfway, and at the end."""
        return _settings(
            "measurement",
            MeasureConfig,
            checkpoint={"checkpoint_path": self._paths(self.steps // 2, self.steps)},
            batch_config={"B_E": self.evaluation_size, "seed": BATCH_SEED + self.seed},
            output={"directory": str(self.folder)},
        )

    def _paths(self, *steps: int) -> list[str]:
        return [str(self.folder / "training_state" / f"step_{step}") for step in steps]


def _settings(chapter: str, root: type[C], **more: dict[str, Any]) -> C:
    """The settings of a chapter with more of them."""
    given = read_yaml(Path(__file__).with_name("demo.yaml"))[chapter]
    return load_config({name: given[name] | more.get(name, {}) for name in given}, (), root)


def _chapter(title: str) -> None:
    err.rule(f"[bold]{title}", align="left", style="dim")
