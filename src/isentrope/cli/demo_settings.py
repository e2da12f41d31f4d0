"""The settings of the chapters of `isentrope demo`."""

from pathlib import Path
from typing import TypeVar

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.run.lock import LOCK
from isentrope.system.file_contents import yaml_value

C = TypeVar("C", SftConfig, TrainConfig, EvaluateConfig, MeasureConfig)

BATCH_SEED = 20261121
"""Seed of E and U: the date on which it was set, before anything was drawn with it. Every user of
the demo sees one and the same draw, so that draw must not be chosen by its result."""


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds anything.

    Args:
        folder: The run folder, perhaps not there yet.

    Raises:
        FileExistsError: With what to do.
    """
    if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: remove it, or choose another --out.")


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
