"""The folders and files that a configuration names: found, or refused, before any work.

`checkpoint.checkpoint_path` is a path, a pattern, or a list of them. Nothing is loaded.
"""

import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from isentrope.checkpoint.files import (
    ADAPTER_CONFIG,
    CONTRACT,
    TRAINER_STATE,
    TRAINING_ARGS,
    VERL_SETTINGS,
    named_path,
    step_of_folder,
)
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import Config
from isentrope.config.measure import MeasureConfig, PolicyConfig
from isentrope.config.paths import inputs_of
from isentrope.models.base_model import adapter_base, require_positions
from isentrope.models.checkpoint_folder import require_checkpoint, require_optimizer
from isentrope.system.extras import require_packages
from isentrope.system.manifest import verification
from isentrope.system.outputs import require_apart, require_writable
from isentrope.system.processes import one_process, world_size

_SAY_SETTINGS = (CONTRACT, TRAINING_ARGS, VERL_SETTINGS, TRAINER_STATE)
"""Files of a checkpoint that may say how long training's responses were."""


def checkpoint_folders(entries: str | Sequence[str]) -> list[Path]:
    """Find the folders of checkpoints.

    Args:
        entries: Paths of checkpoints or of folders that hold checkpoints step_N, or patterns.

    Returns:
        In the order given, patterns and folders of checkpoints in natural order.

    Raises:
        FileNotFoundError: If nothing matches, or a folder is not a checkpoint.
    """
    if isinstance(entries, str):
        entries = [entries]
    return [require_checkpoint(path) for entry in entries for path in _match(entry)]


def is_pattern(entry: str) -> bool:
    """Whether a text, if nothing has it as its path, is a pattern of paths."""
    return any(c in entry for c in "*?[")


def _match(entry: str) -> list[Path]:
    """The folders that a path or a pattern means."""
    path = named_path(entry)
    if path.exists() or not is_pattern(entry):
        return _look_inside(path) or [path]
    matches = map(Path, glob(str(path), recursive=True))  # hidden ones are not complete
    folders = [folder for folder in matches if folder.is_dir()]
    if not folders:
        raise FileNotFoundError(f"No checkpoint folder matches {entry}.")
    return sorted(folders, key=_split_numbers)


def _look_inside(folder: Path) -> list[Path]:
    """The checkpoints step_N in a folder that is none itself, such as training_state."""
    if not folder.is_dir() or any(folder.glob("*config.json")) or (folder / "_actor").is_dir():
        return []
    steps = [p for p in folder.iterdir() if p.is_dir() and step_of_folder(p.name) is not None]
    return sorted(steps, key=_split_numbers)


def _split_numbers(path: Path) -> list[int | str]:
    """A path as texts and numbers, by which step_9 comes before step_10."""
    return [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", str(path))]


def require_present(config: Config) -> None:
    """Refuse files and checkpoint folders that are missing.

    At log level DEBUG the work itself refuses them, which shows where. The work verifies what it
    reads; here nothing is hashed.

    Args:
        config: Any configuration.

    Raises:
        FileNotFoundError: Naming the key and the path.
    """
    if config.output.log_level == "DEBUG":
        return
    if isinstance(config, MeasureConfig):
        config.batch_config.require_files("batch_config")
    else:
        config.data.require_files()
    out = config.output.directory
    if out is not None:
        require_writable(out, "--out (output.directory)")
        require_apart(out, inputs_of(config))
    if not isinstance(config, (MeasureConfig, EvaluateConfig)):
        return
    section = config.checkpoint
    if section.shard_base or section.quantization != "none" or section.device_map != "cpu":
        _require_machine(section)
    draws = isinstance(config, EvaluateConfig) or (
        "dataset_name" in config.batch_config.model_fields_set and config.batch_config.tasks()
    )
    stated = "max_new_tokens" in config.sampling.model_fields_set
    stated |= isinstance(config, EvaluateConfig)  # else it may be training's
    with verification(False):
        folders = checkpoint_folders(section.checkpoint_path)
        for folder in folders:
            if isinstance(config, MeasureConfig):
                require_optimizer(folder, config.checkpoint.optimizer_path, folders)
            model = str(folder)
            if (folder / ADAPTER_CONFIG).is_file():
                model = adapter_base(folder, section.base_model, allow_hub=section.allow_hub)
                if Path(model).exists():
                    require_checkpoint(model)
            by_training = any((folder / name).exists() for name in _SAY_SETTINGS)
            if draws and (stated or not by_training):
                require_positions(model, config.sampling.max_new_tokens)


def _require_machine(section: PolicyConfig) -> None:
    """Refuse what this machine or this process cannot give; a device is asked of torch."""
    if section.quantization != "none":
        require_packages(("bitsandbytes",), f"checkpoint.quantization={section.quantization}")
    if section.shard_base and world_size() == 1:
        raise ValueError(one_process("checkpoint.shard_base"))
    if section.device_map != "cpu":
        from isentrope.system.memory import require_device

        require_device(section.device_map)
