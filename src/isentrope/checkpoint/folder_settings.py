"""The settings of a checkpoint folder that no configuration names: its batches and its rewards.

    U   the batch that training recorded (next_update/) with its weights, else drawn
    E   drawn from the prompts that are given, else from those that training held out (its contract,
        or next_update/held_out.jsonl), else fresh responses to the prompts of the recorded batch

Where U is drawn from prompts that are given, one half of them is for E and the other for U. The
data of training are those in the contract of `isentrope train`. All other settings are filled in
where a checkpoint is settled (`settle`), as for a configuration that leaves them out. No library of
tensors is imported here, so that what is missing is said at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from csv import reader
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import HELD_OUT_FILE, CheckpointFolder
from isentrope.checkpoint.folders import checkpoint_folders
from isentrope.config.io import key_of
from isentrope.config.strict_yaml import ConfigError
from isentrope.sampling.tasks.names import TASKS, files_of_task, is_task
from isentrope.system.file_contents import read_arrow, read_schema
from isentrope.system.manifest import verification
from isentrope.system.one_line import plural
from isentrope.system.python_file import defines_function
from isentrope.system.reading import parse_json, read_json, read_text, reading

_RESPONSES = 256
"""Responses of E where its prompts are those of the recorded batch, about."""
_LEAST_PROMPTS = 4
"""Prompts of the recorded batch from which on an error over prompts is worth its name."""
_CHECKPOINTS = "checkpoint.checkpoint_path"
_OTHER_DATA = {f"batch_config.{name}" for name in ("U_file", "U_dataset_name", "U_dataset_path")}
"""Settings that say where U comes from."""
_PROMPTS_OF_SETTINGS = {f"batch_config.{name}" for name in ("dataset_path", "E_file")}
"""Settings that name prompts."""
_DRAWN = _OTHER_DATA | {f"batch_config.{name}" for name in ("repeats", "U_weighting", "B_U", "G")}
"""Settings that ask for another U than the recorded one."""
PROMPT_SETTINGS = ("chat_template", "system_prompt", "chat_template_kwargs")
"""Settings of training's data that say how a prompt is put to the policy."""
_PROMPT = ("prompt", "messages", "prompt_ids")
"""Columns of a file of prompts, of which each line has one."""
_BY_REFERENCE = "prompts"
"""The task of a file of prompts alone."""

FolderSections = dict[str, dict[str, Any]]


def folder_settings(
    folder: str,
    prompts: str | None = None,
    reward: Sequence[str] = (),
    overrides: Iterable[str] = (),
) -> FolderSections:
    """The sections of a configuration for a checkpoint folder, before overrides.

    Args:
        folder: A checkpoint, or a folder of checkpoints.
        prompts: File of prompts; None for those that training left.
        reward: "file.py:name" of each reward function, or a task by name; none for training's.
        overrides: Settings that will win, each "section.key=value".

    Returns:
        The sections; `require_batches` says what they lack.

    Raises:
        FileNotFoundError: If there is no checkpoint or no file of prompts.
        ConfigError: If the reward is no name of a task, or a setting names other checkpoints.
    """
    chosen = {key_of(override) for override in overrides}
    task = ", ".join(reward) or None
    _require_known(folder, prompts, task, chosen)
    with verification(False):  # the work itself verifies what it reads
        checkpoints = checkpoint_folders(folder)
        training = _read_training(checkpoints[0])
        record = None
        if len(checkpoints) == 1 and not chosen & _DRAWN:
            record = _find_record(checkpoints[0])
    batch: dict[str, Any] = {}
    analysis: dict[str, Any] = {}
    if prompts is not None or task is not None:
        batch = {name: training[name] for name in (*PROMPT_SETTINGS, "B_U") if name in training}
        batch["dataset_name"] = task or _BY_REFERENCE
        if prompts is not None:
            batch["dataset_path"] = prompts
    elif training:
        batch = dict(training)
    rewarded = task is not None or batch.get("dataset_name", _BY_REFERENCE) != _BY_REFERENCE
    if not rewarded:
        analysis["reward"] = False
    sections: FolderSections = {"checkpoint": {"checkpoint_path": folder}, "batch_config": batch}
    if record is not None:
        for name in ("B_U", "U_weighting", "U_split"):
            batch.pop(name, None)
        batch["U_file"] = str(record)
        sections["estimator"] = {"objective": "recorded"}
        if "batch_config.dataset_path" in chosen:
            batch.setdefault("dataset_name", _BY_REFERENCE)
        elif prompts is None and not training and "batch_config.E_file" not in chosen:
            held_out = record.with_name(HELD_OUT_FILE)
            if held_out.is_file():
                batch |= {"dataset_name": task or _BY_REFERENCE, "dataset_path": str(held_out)}
            else:
                batch |= _prompts_of_record(record, task, chosen)
                analysis["overlap"] = "independent"  # equal responses are chance
    elif prompts is not None and not chosen & _OTHER_DATA and _has_no_splits(batch["dataset_name"]):
        batch["dataset_options"] = {"test_share": 0.5}
    if analysis:
        sections["analysis"] = analysis
    return sections


def require_batches(sections: FolderSections, overrides: Iterable[str] = ()) -> None:
    """Refuse settings of a folder that do not say where E and U come from.

    Args:
        sections: Of `folder_settings`.
        overrides: Settings that win.

    Raises:
        ConfigError: In a sentence, with the options that say it.
    """
    chosen = {key_of(override).removeprefix("batch_config.") for override in overrides}
    folder = sections["checkpoint"]["checkpoint_path"]
    batch = sections["batch_config"]
    names_prompts = bool(chosen & {"dataset_name", "task"})
    require_several(sections, "give --prompts FILE (jsonl, parquet or csv) for E.")
    if "dataset_name" not in batch and not names_prompts and "E_file" not in chosen:
        raise ConfigError(
            f"{folder} says neither which prompts it was trained on nor which batch comes next: "
            "give --prompts FILE (jsonl, parquet or csv), and --reward FILE.py:NAME, the reward "
            "function of training."
        )
    rewarded = sections.get("analysis", {}).get("reward", True)
    drawn = "U_file" not in batch and not chosen & {"U_file", "U_dataset_name"}
    if drawn and not rewarded and not names_prompts:
        raise ConfigError(
            f"The step from {folder} is computed on a batch that is drawn here and needs rewards: "
            "give --reward FILE.py:NAME, the reward function of training (or --reward prompts, "
            "where a response is correct if it equals its reference)."
        )


def require_several(sections: FolderSections, cure: str) -> None:
    """Refuse a recorded batch of too few prompts where E would be responses to these.

    Args:
        sections: Of `folder_settings`.
        cure: How prompts are given, as the end of a sentence.

    Raises:
        ConfigError: In a sentence that ends with the cure.
    """
    batch = sections["batch_config"]
    if batch.get("fixed_prompts") != "E":
        return
    record = Path(batch["dataset_path"])
    number = len(_distinct_prompts(record))
    if number < _LEAST_PROMPTS:
        raise ConfigError(
            f"{record} has responses to {plural(number, 'prompt')}, and an error over prompts "
            f"needs {_LEAST_PROMPTS} or more: {cure}"
        )


def _require_known(
    folder: str, prompts: str | None, reward: str | None, chosen: Collection[str]
) -> None:
    """Refuse options that are wrong by themselves."""
    if _CHECKPOINTS in chosen:
        raise ConfigError(
            f"{folder} is a checkpoint, and --checkpoints names others: give one of them, or "
            "--checkpoints with a YAML file of settings."
        )
    if prompts is not None:
        _require_prompts(Path(prompts).expanduser())
    if reward is not None and prompts is None and not _PROMPTS_OF_SETTINGS.intersection(chosen):
        _require_own_prompts(folder, reward)
    tasks = [name for name in (reward or "").split(", ") if name in TASKS]
    if reward is not None and tasks and reward not in TASKS:
        raise ConfigError(
            f"--reward {tasks[0]} is a whole task: give it alone, or functions (FILE.py:NAME)."
        )
    if reward is not None and not is_task(reward):
        raise ConfigError(
            f"--reward {reward} is neither FILE.py:NAME of a reward function nor one of "
            f"{', '.join(TASKS)}."
        )


def _require_own_prompts(folder: str, reward: str) -> None:
    """Refuse a reward function beside which nothing names prompts; a task has its own."""
    if not any(map(defines_function, files_of_task(reward))) and reward != _BY_REFERENCE:
        return
    with verification(False):
        first, *others = checkpoint_folders(folder)
    if others or _find_record(first) is None:
        raise ConfigError(
            f"--reward {reward} rewards responses, and nothing names the prompts: give --prompts "
            "FILE (jsonl, parquet or csv), those of training."
        )


def _require_prompts(file: Path) -> None:
    """Refuse a file that is not there, or whose first line has no prompt."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} (--prompts).")
    cure = "Give a file of prompts (jsonl, parquet or csv)."
    if not file.stat().st_size:
        raise ConfigError(f"{file} is empty (--prompts). {cure}")
    if file.suffix == ".parquet":
        columns = set(read_schema(file).names)
    else:
        first = read_text(file, cure).partition("\n")[0]
        columns = set(next(reader([first]), []))
        if file.suffix != ".csv":
            with reading(file, cure):
                row = parse_json(first)
            columns = set(row) if isinstance(row, dict) else set()
    if not columns & set(_PROMPT):
        raise ConfigError(
            f"{file} has no prompts (--prompts): its lines need one of {', '.join(_PROMPT)}, and "
            f"the first has {', '.join(sorted(columns)) or 'none'}."
        )


def _read_training(checkpoint: Path) -> dict[str, Any]:
    """Training's data as `batch_config` has them; empty where no contract says them."""
    contract = CheckpointFolder(checkpoint).contract or {}
    config = contract.get("config")
    config = config if isinstance(config, Mapping) else {}
    data = config.get("data")
    training = config.get("training")
    if not isinstance(data, Mapping) or "dataset_name" not in data:
        return {}
    names = {
        name: name for name in ("dataset_name", "dataset_path", "dataset_options", *PROMPT_SETTINGS)
    }
    names |= {"held_out_split": "E_split", "train_split": "U_split"}
    batch = {ours: data[theirs] for theirs, ours in names.items() if data.get(theirs)}
    if isinstance(path := batch.get("dataset_path"), str):
        # a run's own files are named from its folder
        inside = checkpoint.resolve().parents[1] / path
        batch["dataset_path"] = str(inside if inside.exists() else path)
    if isinstance(training, Mapping):
        batch["B_U"] = training.get("prompts_per_step", contract.get("prompts_per_step"))
        if training.get("prompt_weighting") == "difficulty":
            batch["U_weighting"] = "difficulty"
    return {name: value for name, value in batch.items() if value is not None}


def _find_record(checkpoint: Path) -> Path | None:
    """The recorded batch of the next step, if its weights replay that step."""
    folder = checkpoint / "next_update"
    file = folder / "rollouts.parquet"
    if not file.is_file() or not (folder / "update.json").is_file():
        return None
    replays = read_json(folder / "update.json").get("replayable") is not False
    return file if replays else None


def _distinct_prompts(record: Path) -> set[tuple[int, ...]]:
    """Token ids of the prompts of a recorded batch."""
    return {tuple(ids) for ids in read_arrow(record)["prompt_ids"].to_pylist()}


def _prompts_of_record(record: Path, reward: str | None, chosen: Collection[str]) -> dict[str, Any]:
    """E of as many responses to each prompt of the recorded batch; errors are over prompts."""
    batch: dict[str, Any] = {
        "dataset_name": reward or _BY_REFERENCE,
        "dataset_path": str(record),
        "fixed_prompts": "E",
        "allow_overlap": True,
    }
    if "batch_config.B_E" not in chosen:
        number = len(_distinct_prompts(record))
        batch["B_E"] = number
        batch["G_E"] = max(2, _RESPONSES // number)
    return batch


def _has_no_splits(task: str) -> bool:
    """Whether a task is a file of prompts, which has no splits by itself."""
    return task == _BY_REFERENCE or task not in TASKS
