"""What numbers are made from: digests of files by content, by the part that the files are.

Parts of a checkpoint: weights, adapter settings, base weights, base settings, tokenizer, contract,
optimizer. Parts of the data: one per path. Two results belong together if the parts that both know
are equal; file times and paths are not looked at.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.digests import (
    NOTHING,
    TOKENIZER_FILES,
    Digests,
    base_digests,
    checkpoint_digests,
    digest_of,
    digest_of_files,
    digest_of_names,
    local_folder,
)
from isentrope.checkpoint.files import CONTRACT, CheckpointFolder
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import MeasureConfig
from isentrope.config.paths import PATHS
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.models.trainable import TOY, find_model
from isentrope.sampling.tasks.names import NAME
from isentrope.system.errors import FileError
from isentrope.update.parameter_names import SIDECAR

DATA_OF_MEASURE = {
    "data": "batch_config.dataset_path",
    "data of U": "batch_config.U_dataset_path",
    "E_file": "batch_config.E_file",
    "U_file": "batch_config.U_file",
}
PATH_KEYS = tuple(f"{section}.{key}" for section, keys in PATHS.items() for key in keys)
"""Settings that are paths, whose content is compared instead."""

_NO_NUMBER = (
    *("output.", "checkpoint.device_map", "checkpoint.allow_hub", "checkpoint.verify"),
    *("sampling.batch_size", "sampling.max_tokens", "sampling.vocab_chunk", "sampling.vllm_memory"),
)
"""Settings of an evaluation that decide speed and memory alone."""


def require_of_run(run: Path, results: Path, checkpoint: str, made_from: Digests) -> None:
    """Refuse results in a run's folder that are of a checkpoint of another run.

    Args:
        run: The run's folder; nothing is compared where it has no such checkpoint.
        results: Their folder.
        checkpoint: Name of the checkpoint that they are of.
        made_from: Digests that they hold.

    Raises:
        FileError: If the contract of the run's own checkpoint is another.
    """
    contract = run / "training_state" / checkpoint / CONTRACT
    if contract.is_file() and made_from.get("contract") not in (None, digest_of_files([contract])):
        raise FileError(
            f"{results} is of another checkpoint than {contract.parent}, whose {CONTRACT} differs: "
            "move it to its own run.",
        )


def data_digest(path: str | Path | None) -> str:
    """Digest of a data file, or of all files in a folder; `NOTHING` for None."""
    if path is None:
        return NOTHING
    source = _require_present(path)
    if source.is_file():
        return digest_of_files([source])
    inside = (p for p in source.rglob("*") if p.is_file() and not p.name.startswith("."))
    return digest_of_files(sorted(inside))


def task_digest(*names: str | None) -> str:
    """Digest of the Python files that tasks are defined in; `NOTHING` for tasks by name."""
    files: list[Path] = []
    for part in ", ".join(filter(None, names)).split(", "):
        match = NAME.fullmatch(part)
        if match and match["file"]:  # a module of a package has no file here
            files.append(_require_present(match["file"]))
    return digest_of_files(files) if files else NOTHING


def _require_present(path: str | Path) -> Path:
    """A file or folder of data; one that is missing is no other data."""
    source = Path(path).expanduser()
    if not source.exists():
        raise FileNotFoundError(
            f"There is no {source.absolute()}, from which data or a task is read: run the command "
            "where it was first run, restore the file, or give its path anew (dataset_path)."
        )
    return source


def measurement_origin(config: MeasureConfig, checkpoint: StoredCheckpoint) -> Digests:
    """Digests, by part, of what the results of one item of a study are made from."""
    settings = of_measurement(config)
    batch = config.batch_config
    optimizer = checkpoint.optimizer
    digests = dict(checkpoint.digests)
    digests["optimizer"] = digest_of_names(optimizer.parent, [optimizer.name, SIDECAR])
    for part, key in DATA_OF_MEASURE.items():
        digests[part] = data_digest(settings[key])
    digests["task"] = task_digest(batch.dataset_name, batch.U_dataset_name)
    digests["settings"] = _settings_digest(config, settings)
    return digests


def evaluation_origin(config: EvaluateConfig, checkpoint: Path) -> Digests:
    """Digests, by part, of what the evaluation of one checkpoint is made from."""
    section = config.checkpoint
    return checkpoint_digests(checkpoint, section.base_model, allow_hub=section.allow_hub) | {
        "data": data_digest(config.data.dataset_path),
        "task": task_digest(config.data.dataset_name),
        "settings": _settings_digest(config, of_evaluation(config)),
    }


def training_origin(config: TrainConfig | SftConfig) -> Digests:
    """Digests of what a run is made from: first model, tokenizer, data and the task's file."""
    data = config.data
    parts = {"data": data_digest(data.dataset_path), "task": task_digest(data.dataset_name)}
    if config.model.path == TOY:
        return parts
    folder = local_folder(find_model(config.model.path))
    if folder is not None and CheckpointFolder(folder).is_adapter:
        adapter = checkpoint_digests(folder, allow_hub=config.model.allow_hub)
        del adapter["contract"]
        return parts | adapter
    tokenizer = {"tokenizer": digest_of_names(folder, TOKENIZER_FILES)}
    return parts | base_digests(folder, config.model.path) | tokenizer


def of_measurement(config: MeasureConfig) -> dict[str, Any]:
    """Every key that moves a number, the checkpoint by its resolved path."""
    flat = by_key(config.model_dump(exclude={"output", "provenance", "detailed_logging"}))
    for permission in ("allow_hub", "allow_mixed", "verify"):
        del flat[f"checkpoint.{permission}"]
    checkpoint = Path(str(flat["checkpoint.checkpoint_path"])).expanduser()
    return flat | {"checkpoint.checkpoint_path": str(checkpoint.resolve())}


def of_evaluation(config: EvaluateConfig) -> dict[str, Any]:
    """Dotted key → value of what may move a number, of paths the last part alone."""
    flat = by_key(config.model_dump(mode="json", exclude={"provenance"}))
    moving = {key: value for key, value in flat.items() if not key.startswith(_NO_NUMBER)}
    return moving | {key: _shorten_paths(moving[key]) for key in PATH_KEYS if key in moving}


def by_key(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The keys of all sections, each by its dotted name."""
    flat: dict[str, Any] = {}
    for name, section in sections.items():
        for key, value in section.items():
            flat[f"{name}.{key}"] = value
    return flat


def _shorten_paths(paths: str | list[str] | None) -> Any:
    if isinstance(paths, list):
        return [Path(path).name for path in paths]
    return None if paths is None else Path(paths).name


def _settings_digest(config: BaseModel, settings: Mapping[str, Any]) -> str:
    """Digest of the settings that are not defaults: a version with more keys continues."""
    chosen = by_key(config.model_dump(exclude_defaults=True, exclude={"provenance"}))
    return digest_of(
        {key: settings[key] for key in settings if key in chosen and key not in PATH_KEYS}
    )
