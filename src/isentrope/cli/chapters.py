"""`isentrope demo`: the whole story of a toy policy, each chapter by the verb that tells it.

<folder>/fine_tuning/      the fine-tuned policy
<folder>/                  its Dr. GRPO run with the probe: config.yaml, logs, training_state
<folder>/evaluation/       pass@k and entropy before, halfway and at the end
<folder>/measurements/     measure, influence, kernel and audit, halfway and at the end
<folder>/report.html       all of it on one page
"""

from pathlib import Path
from typing import TypeVar

import torch

from isentrope.cli.console import err, out, show
from isentrope.commands.audit import AuditCommand
from isentrope.commands.influence import InfluenceCommand
from isentrope.commands.kernel import KernelCommand
from isentrope.commands.measure import MeasureCommand
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.reports.report import write_report
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.run.lock import LOCK, noted_if_interrupted, one_writer
from isentrope.system.file_contents import yaml_value
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.prepare import PreparedOnce
from isentrope.verbs.sft import sft
from isentrope.verbs.tables import evaluation_table
from isentrope.verbs.train import train

C = TypeVar("C", SftConfig, TrainConfig, EvaluateConfig, MeasureConfig)

BATCH_SEED = 20261121
"""Seed of E and U: the date on which it was set, before anything was drawn with it. Every user of
the demo sees one and the same draw, so that draw must not be chosen by its result."""


def demo(
    folder: str, steps: int, fine_tuning_steps: int, evaluation_size: int, seed: int
) -> list[str]:
    """Train a toy policy, see its entropy fall, and find out which tokens do it.

    Args:
        folder: Run folder, new.
        steps: Dr. GRPO steps.
        fine_tuning_steps: Supervised steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.

    Returns:
        The sentences that the report opens with.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    where = Path(folder)
    with one_writer(where):
        if any(path.name != LOCK for path in where.iterdir()):
            raise FileExistsError(f"{where} is not empty: remove it, or choose another --out.")
        torch.set_num_threads(1)  # the toy is too small to share
        fine_tuning, training, evaluation, measurement = chapters(
            where, steps, fine_tuning_steps, evaluation_size, seed
        )
        advice = f"What was finished is in {where}. Run it again with another --out."
        with noted_if_interrupted(lambda: advice):
            _chapter("supervised fine-tuning")
            sft(fine_tuning)
            _chapter(f"{steps} steps of Dr. GRPO, with the probe")
            train(training)
            _chapter("evaluation")
            show(out, [evaluation_table(evaluate_checkpoints(evaluation).results)])
            prepare = PreparedOnce()
            _chapter("measure: what one more step does to entropy")
            run = MeasureCommand.measure(measurement, draw=MeasureCommand.figure(), prepare=prepare)
            show(out, MeasureResult.printed(run.results[-1:]))
            _chapter("influence: which tokens do it")
            run = InfluenceCommand.measure(measurement, prepare=prepare)
            show(out, InfluenceResult.printed(run.results[-1:]))
            _chapter("kernel and audit: how responses are tied, and what the proxies see")
            for verb in (KernelCommand, AuditCommand):
                verb.measure(measurement, prepare=prepare)
            _chapter("report")
            report = write_report(where)
            out.conclude(f"Wrote {report.page}\n")
    return report.claims


def chapters(
    folder: Path, steps: int, fine_tuning_steps: int, evaluation_size: int, seed: int
) -> tuple[SftConfig, TrainConfig, EvaluateConfig, MeasureConfig]:
    """The configurations of `isentrope sft`, `train`, `evaluate` and the verbs that measure.

    Checkpoints are evaluated before the first step, halfway and at the end, and measured at the
    last two.

    Returns:
        One per chapter, as files of configs/ have them.
    """
    base = yaml_value(str(folder))[1:-1]
    halfway = steps // 2
    checkpoints = f"{base}/training_state/step_"
    measured = f'"{checkpoints}{halfway}", "{checkpoints}{steps}"'
    return (
        _settings(
            "fine_tuning",
            SftConfig,
            f"fine_tuning.steps={fine_tuning_steps}",
            f"fine_tuning.warmup_steps={min(20, fine_tuning_steps)}",
            f"fine_tuning.seed={seed}",
            f'output.directory="{base}/fine_tuning"',
        ),
        _settings(
            "training",
            TrainConfig,
            f'model.path="{base}/fine_tuning/model"',
            f"training.steps={steps}",
            f"training.save_every={halfway}",
            f"training.seed={seed}",
            f"entropy_probe.every={max(1, steps // 8)}",
            f'output.directory="{base}"',
        ),
        _settings(
            "evaluation",
            EvaluateConfig,
            f'checkpoint.checkpoint_path=["{checkpoints}0", {measured}]',
            f"evaluation.seed={seed}",
            f'output.directory="{base}/evaluation"',
        ),
        _settings(
            "measurement",
            MeasureConfig,
            f"checkpoint.checkpoint_path=[{measured}]",
            f"batch_config.B_E={evaluation_size}",
            f"batch_config.seed={BATCH_SEED + seed}",
            f'output.directory="{base}"',
        ),
    )


def _settings(chapter: str, root: type[C], *overrides: str) -> C:
    """The settings of a chapter with more of them."""
    sections = read_yaml(Path(__file__).with_name("demo.yaml"))[chapter]
    return load_config(sections, overrides, root)


def _chapter(title: str) -> None:
    err.rule(f"[bold]{title}", align="left", style="dim")
