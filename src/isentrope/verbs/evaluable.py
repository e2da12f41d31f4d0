"""Whether an evaluation can be made, by its settings and files, before the libraries load."""

from pathlib import Path

from isentrope.config.evaluate import EvaluationData, EvaluationProfile
from isentrope.config.io import ConfigError, read_yaml
from isentrope.evaluation.options import require_format, require_subset
from isentrope.sampling.tasks.early_task import require_references_of


def require_evaluation(folder: str | Path) -> None:
    """Refuse a folder for an evaluation that holds something else.

    Args:
        folder: The folder, perhaps not there yet.

    Raises:
        ConfigError: With what to do.
    """
    file = Path(folder) / "config.yaml"
    if file.is_file() and "evaluation" not in read_yaml(file):
        raise ConfigError(
            f"{folder} holds something other than an evaluation: choose another --out."
        )


def require_evaluable(data: EvaluationData, profile: EvaluationProfile) -> None:
    """Refuse prompts that are too few, or that the task cannot reward or has no metric of.

    Args:
        data: The task; of a large one nothing is asked.
        profile: What is estimated, from how many prompts.

    Raises:
        ValueError: In a sentence.
    """
    task = data.early_task(data.dataset_name, data.split, data.dataset_path)
    if task is None:
        return
    require_format(task, profile.metrics or (), data.dataset_name)
    require_subset(profile.n_prompts, len(task.prompts))
    require_references_of(data.dataset_name, task.prompts, profile.n_prompts)
