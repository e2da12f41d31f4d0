"""A checkpoint folder: the only object that opens its files, each of them once.

    contract.json                  settings of the run that wrote it (`recording.contract`)
    adapter_config.json            settings of an adapter, of PEFT
    *.safetensors                  weights, of which the headers are read here
    trainer_state.json, isentrope_state.json    state of the trainer

What was read is kept by the process, like digests (`manifest`): by what the file system says of the
file. A file that changes is read again, and every one is verified whenever it is asked for.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt

from isentrope.system.checkpoint_names import step_of_folder
from isentrope.system.errors import FileError
from isentrope.system.manifest import read_once
from isentrope.system.reading import read_json, read_tensor_headers, reading, require_types

CONTRACT = "contract.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER = "adapter_model.safetensors"
CURE = "Restore the checkpoint, or choose another."
_STEP_IN = {"trainer_state.json": "global_step", CONTRACT: "step", "isentrope_state.json": "step"}
"""Files of a checkpoint and their keys that state its step."""

T = TypeVar("T")
Header = dict[str, tuple[str, list[int]]]
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
        settings = _json(file)
        require_types(file, settings, _AdapterSettings, CURE)
        return settings

    @property
    def contract(self) -> dict[str, Any] | None:
        """The content of contract.json as it stands there; None where there is none."""
        file = self.path / CONTRACT
        return _json(file) if file.is_file() else None

    @property
    def weights(self) -> list[Path]:
        """Its safetensors files by name."""
        return sorted(self.path.glob("*.safetensors"))

    @property
    def headers(self) -> dict[Path, Header]:
        """Types and shapes of the tensors in each of its safetensors files."""
        return {file: self.header(file.name) for file in self.weights}

    def header(self, name: str) -> Header:
        """Types and shapes of the tensors in one safetensors file."""
        return _once(self.path / name, _headers)

    @property
    def step(self) -> int | None:
        """Its training step, on which its name, that of what it links to, and its files must agree.

        None where neither name nor files say it.

        Raises:
            FileError: Naming two steps.
        """
        names = (self.path.name, self.path.resolve().name)
        stated = [(f"its name, {x}", s) for x in names if (s := step_of_folder(x)) is not None]
        for name, key in _STEP_IN.items():
            file = self.path / name
            if file.is_file() and (step := _json(file).get(key)) is not None:
                stated.append((f"{name} ({key})", step))
        for where, step in stated:
            if type(step) is not int or step != stated[0][1]:
                raise FileError(
                    self.path,
                    f"{self.path} is of step {stated[0][1]} by {stated[0][0]}, and of step "
                    f"{step!r} by {where}: it was renamed, or has a file of another checkpoint. "
                    "Restore it.",
                )
        return stated[0][1] if stated else None


def _json(file: Path) -> dict[str, Any]:
    """A copy of the content of a JSON file, which the caller may change."""
    return copy.deepcopy(_once(file, _content))


def _content(file: Path) -> Any:
    # the states of trainers may hold NaN
    return read_json(file, CURE, finite=file.name in (CONTRACT, ADAPTER_CONFIG))


def _headers(file: Path) -> Header:
    return read_tensor_headers(file, CURE)


def _once(file: Path, read: Callable[[Path], T]) -> T:
    with reading(file, CURE):  # verifies it, which an earlier reader may not have asked for
        return read_once(file, read)
