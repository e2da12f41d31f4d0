"""Names of what verbs leave in a folder, and whether one of them is there; nothing is read."""

from collections.abc import Sequence
from pathlib import Path

from isentrope.results.verbs import RESULTS
from isentrope.system.errors import FileError
from isentrope.training.run_files import RunFiles

METRICS = "metrics.json"
"""File of the evaluation of one checkpoint."""
TABLE = "consolidated_metrics.csv"
"""Table of an evaluation."""


def require_table(folder: Path) -> None:
    """Refuse a folder that is named as an evaluation and has no table.

    Args:
        folder: The folder.

    Raises:
        FileNotFoundError: With what to give.
    """
    if not (folder / TABLE).exists():
        raise FileNotFoundError(f"{folder} has no {TABLE}: give a folder of eval_runs/.")


def places_of_evaluations(run: Path) -> list[Path]:
    """Where evaluations of a run are looked for, outside its own folder."""
    return [base / "eval_runs" for base in (Path(), run.resolve().parent.parent)]


def require_reportable(folder: Path, evaluations: Sequence[str]) -> None:
    """Refuse a folder that holds nothing, and whose evaluations are nowhere else.

    Args:
        folder: Of a run.
        evaluations: Those that are named.

    Raises:
        FileError: With what to do.
    """
    elsewhere = evaluations or any(place.is_dir() for place in places_of_evaluations(folder))
    if not elsewhere and not holds_work(folder):
        raise FileError(nothing_to_report(folder))


def nothing_to_report(folder: Path) -> str:
    """The refusal of a folder without anything to report.

    Args:
        folder: Of a run.

    Returns:
        A sentence.
    """
    return (
        f"{folder} holds no training log, measurement or evaluation: make one first, for example "
        f"with isentrope measure CONFIG --out {folder}."
    )


def require_measured(folder: Path, checkpoint: str) -> None:
    """Refuse a checkpoint that no verb was run on.

    Args:
        folder: Of a run.
        checkpoint: Its name.

    Raises:
        ValueError: Naming those that there are.
    """
    names = [path.name for path in measured_folders(folder / "measurements")]
    require_name(folder, checkpoint, [name.partition("_")[2] for name in names])


def require_name(folder: Path, checkpoint: str, names: Sequence[str]) -> None:
    """Refuse a name that is none of those that were measured.

    Args:
        folder: Of a run.
        checkpoint: The name.
        names: Those that were measured.

    Raises:
        ValueError: Naming those that there are.
    """
    if checkpoint not in names:
        measured = ", ".join(dict.fromkeys(names)) or "none"
        raise ValueError(f"{folder} has no measurement of {checkpoint!r}; it has {measured}.")


def measured_folders(place: Path) -> list[Path]:
    """The folders of finished results in one folder, by name."""
    files = sorted(place.glob(f"*/{RESULTS}"))
    return [file.parent for file in files if not file.parent.name.startswith(".")]


def holds_work(folder: Path) -> bool:
    """Whether a folder is that of a result, a study, an evaluation or a run."""
    run = RunFiles(folder)
    files = ((folder / RESULTS).is_file(), (folder / METRICS).is_file(), run.metrics.is_file())
    return (
        any(files)
        or run.checkpoints.is_dir()
        or any(measured_folders(place) for place in (folder / "measurements", folder))
        or any(folder.glob(f"*/{METRICS}"))
        or any(folder.glob(f"*/*/{METRICS}"))
    )
