"""A checkpoint folder: the only object that opens its files, each of them once, and its step.

    contract.json                  settings of the run that wrote it (`checkpoint.record.contract`)
    adapter_config.json            settings of an adapter, of PEFT
    *.safetensors                  weights, of which the headers are read here
    trainer_state.json, isentrope_state.json    state of the trainer

What was read is kept by the process, like digests (`manifest`): by what the file system says of the
file. A file that changes is read again, and every one is verified whenever it is asked for.

A folder is what its name and its content say; one under another's name is refused. A name without
a step says nothing. The names are

    step_N, checkpoint-N, global_step_N     a checkpoint of ours, of transformers and TRL, of verl
    next_update     in the checkpoint: step N + 1, and the checkpoint's manifest, by update.json
    <verb>_<name>   results, by results.json
    <name>          an evaluation, by metrics.json
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt

from isentrope.system.errors import FileError
from isentrope.system.file_contents import read_tensor_headers
from isentrope.system.files import MANIFEST
from isentrope.system.manifest import file_digest, read_once, verifying
from isentrope.system.reading import read_json, reading, require_types

CONTRACT = "contract.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER = "adapter_model.safetensors"
TRAINER_STATE = "trainer_state.json"
TRAINING_ARGS = "training_args.bin"
VERL_SETTINGS = "verl.yaml"
STATE = "isentrope_state.json"
"""File of a run's checkpoint with the states of its parts."""
RESTORE_CHECKPOINT = "Restore the checkpoint, or choose another."
"""What to do where a file of a checkpoint is wrong."""
_STEP_KEYS = {TRAINER_STATE: "global_step", CONTRACT: "step", STATE: "step"}
"""Files of a checkpoint and their keys that state its step."""
CHECKPOINT = "checkpoint_manifest_sha256"
"""Key of update.json: SHA-256 of the manifest of the checkpoint that the step was taken from."""

NEXT_UPDATE = "next_update"
"""Folder of the step that training took next."""
HELD_OUT_FILE = "held_out.jsonl"
"""File of `next_update/` with prompts that the run does not train on."""

DCP_METADATA = ".metadata"
"""File of a folder that torch.distributed.checkpoint wrote."""

_STEP = re.compile(r"(?:step|checkpoint|global_step)[-_]?(\d+)")
TensorHeaders = dict[str, tuple[str, list[int]]]
"""Type and shape of each tensor."""


class _AdapterSettings(BaseModel):
    """Types of the settings of an adapter that are used here; PEFT reads more."""

    peft_type: str
    base_model_name_or_path: str | None = None
    r: NonNegativeInt = 0
    lora_alpha: NonNegativeFloat = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    lora_dropout: float = 0.0


def step_name(step: int) -> str:
    """The name of a checkpoint.

    Returns:
        For example "step_40".
    """
    return f"step_{step}"


def named_path(entry: str | Path) -> Path:
    """The path of a folder, whose last part is its name also where the entry is "." or ".."."""
    path = Path(entry).expanduser()
    return path.resolve() if path.name in ("", "..") else path


def step_of_folder(name: str) -> int | None:
    """The training step in the name of a checkpoint folder.

    Args:
        name: For example "step_40" or "checkpoint-40".

    Returns:
        The step; None for any other name.
    """
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def written_step(name: str) -> int | None:
    """The training step of a checkpoint that isentrope wrote.

    Args:
        name: Of a folder.

    Returns:
        The step; None for any name that `step_name` does not give, such as "step_04".
    """
    step = step_of_folder(name)
    return step if name == f"step_{step}" else None


def step_within(name: str) -> int | None:
    """The training step in a longer name.

    Args:
        name: For example "step_40_repeat_2" or "second_run_step_40".

    Returns:
        The last step in it, 40; None if there is none.
    """
    steps = _STEP.findall(name)
    return int(steps[-1]) if steps else None


@dataclass(frozen=True)
class CheckpointFolder:
    """The files of a checkpoint, or of a base model.

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def is_adapter(self) -> bool:
        """Whether it holds an adapter."""
        return (self.path / ADAPTER_CONFIG).exists()

    @property
    def adapter(self) -> dict[str, Any]:
        """The content of adapter_config.json; empty where the folder holds no adapter.

        Raises:
            FileError: If the file cannot be read, or a setting has another type.
        """
        file = self.path / ADAPTER_CONFIG
        if not file.exists():
            return {}
        settings = _read_json(file)
        require_types(file, settings, _AdapterSettings, RESTORE_CHECKPOINT)
        return settings

    @property
    def contract(self) -> dict[str, Any] | None:
        """The content of contract.json as it stands there; None where there is none."""
        file = self.path / CONTRACT
        return _read_json(file) if file.is_file() else None

    @property
    def trainer_state(self) -> dict[str, Any]:
        """The content of trainer_state.json; empty where there is none."""
        file = self.path / TRAINER_STATE
        return _read_json(file) if file.is_file() else {}

    @property
    def weights(self) -> list[Path]:
        """Its safetensors files by name."""
        return sorted(self.path.glob("*.safetensors"))

    @property
    def headers(self) -> dict[Path, TensorHeaders]:
        """Types and shapes of the tensors in each of its safetensors files."""
        return {file: self.header(file.name) for file in self.weights}

    def header(self, name: str) -> TensorHeaders:
        """Types and shapes of the tensors in one safetensors file."""
        file = self.path / name
        with reading(file, RESTORE_CHECKPOINT):
            return read_once(file, read_tensor_headers)

    @property
    def step(self) -> int | None:
        """Its training step, on which its name, that of what it links to, and its files must agree.

        None where neither name nor files say it.

        Raises:
            FileError: Naming two steps.
        """
        stated: list[tuple[str, Any]] = []
        for name in (self.path.name, self.path.resolve().name):
            stated.append((f"its name, {name}", step_of_folder(name)))
        for name, key in _STEP_KEYS.items():
            file = self.path / name
            if file.is_file():
                stated.append((f"{name} ({key})", _read_json(file).get(key)))
        stated = [(source, step) for source, step in stated if step is not None]
        if not stated:
            return None
        first_source, first = stated[0]
        for source, step in stated:
            if type(step) is not int or step != first:
                raise FileError(
                    f"{self.path} is of step {first} by {first_source}, and of step "
                    f"{step!r} by {source}: it was renamed, or has a file of another checkpoint. "
                    "Restore it.",
                )
        return first


def _read_json(file: Path) -> dict[str, Any]:
    """A copy of the content of a JSON file, which the caller may change."""
    with reading(file, RESTORE_CHECKPOINT):  # verifies it, which an earlier reader may not have
        return copy.deepcopy(read_once(file, _parse_json))


def _parse_json(file: Path) -> Any:
    # the states of trainers may hold NaN
    return read_json(file, RESTORE_CHECKPOINT, finite=file.name in (CONTRACT, ADAPTER_CONFIG))


def require_own_states(checkpoint: Path, steps_taken: float, scheduled: int | None) -> None:
    """Refuse states of an optimizer or a schedule that are of another step than their checkpoint.

    An optimizer that began anew in a resumed run of another trainer has taken fewer steps, and so
    has its schedule; under float16 steps with overflowing gradients are left out.

    Args:
        checkpoint: Its folder; nothing is compared without trainer_state.json.
        steps_taken: Steps that the optimizer counts.
        scheduled: Steps that the learning rate's schedule counts; None if it is not known.

    Raises:
        FileError: Naming both numbers.
    """
    step = CheckpointFolder(checkpoint).step
    if step is None or not (checkpoint / TRAINER_STATE).is_file():
        return
    may_skip = (checkpoint / "scaler.pt").is_file()
    has_contract = (checkpoint / CONTRACT).is_file()
    for part, steps in (("optimizer", steps_taken), ("schedule (scheduler.pt)", scheduled)):
        must_equal = not may_skip and (has_contract or (part == "optimizer" and scheduled == step))
        if steps is not None and (steps > step or (steps < step and must_equal)):
            raise FileError(
                f"{checkpoint} is of step {step}, and its {part} has counted {steps:g} steps: the "
                "state is of another checkpoint. Restore it.",
            )


def require_own_update(folder: Path, update: Mapping[str, Any]) -> None:
    """Refuse the record of a step from another checkpoint than the one that it lies in.

    Args:
        folder: `next_update` of a checkpoint.
        update: Content of its update.json.

    Raises:
        FileError: If its step is not the one after the checkpoint's, or was taken from another.
    """
    checkpoint = folder.parent
    checkpoint_step = CheckpointFolder(checkpoint).step
    step = update.get("step")
    recorded = update.get(CHECKPOINT)
    manifest = checkpoint / MANIFEST
    if checkpoint_step is not None and step is not None and step != checkpoint_step + 1:
        fault = f"records step {step}, and the step from that checkpoint is {checkpoint_step + 1}"
    elif verifying() and recorded and manifest.is_file() and recorded != file_digest(manifest):
        fault = "was recorded at a checkpoint of this step with other files"
    else:
        return
    raise FileError(
        f"{folder} {fault}: it is of another run or checkpoint. Restore the folder, or remove it."
    )


def require_own_name(folder: Path, stated: str) -> None:
    """Refuse results that lie under another name than they state.

    Args:
        folder: The folder of the results.
        stated: The name that the results give to it.

    Raises:
        FileError: Naming both.
    """
    if folder.name != stated:
        raise FileError(
            f"{folder} holds {stated} according to its content: give it that name back."
        )
