"""training_args.bin of transformers and TRL, read without running anything that is in it.

The file is a pickle, and a pickle may call any function. This reader knows no function and imports
nothing: each class that the file names becomes an inert stand-in, whose attributes are read as
plain values. So a file of another version of TRL, or of a subclass of its configuration, is read
as well, and TRL does not have to be installed. What no training arguments contain (a call of
anything but an enum, a device, a path or a container) is refused, since the file is then not what
it says it is.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAINING_ARGS = "training_args.bin"
_LARGEST = 16 * 2**20
"""Bytes; the file of a real run has a few thousand."""

_SECRET = ("hub_token", "push_to_hub_token")
_LIBRARIES = (
    "trl",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "deepspeed",
    "huggingface_hub",
)
_CALLED = {
    ("torch", "device"),
    ("torch", "Size"),
    ("datetime", "timedelta"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib", "PureWindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}
_CONTAINERS: dict[tuple[str, str], type] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("builtins", "tuple"): tuple,
}


@dataclass(frozen=True)
class SavedArguments:
    """The arguments of a trainer.

    Attributes:
        kind: Name of their class, such as "GRPOConfig".
        fields: Value of every argument by name; an enum is its value, and what is no plain value
            (a device, a plug-in) is left out.
        processes: Number of processes that trained; 1 where the file does not say.
    """

    kind: str
    fields: Mapping[str, Any]
    processes: int = 1


class _Refused(ValueError):
    """The pickle asks for something that training arguments do not need."""


class _Inert(dict):
    """Stands for an object of the file; nothing of the real class is there."""

    __slots__ = ("given",)  # apart from the attributes that the file gives it

    module = name = ""
    given: tuple[Any, ...]

    def __new__(cls, *given: Any, **_: Any) -> _Inert:
        made = super().__new__(cls)
        made.given = given
        return made

    def __init__(self, *given: Any) -> None:
        """Only a call of the class arrives here; an object that is built does not.

        Args:
            *given: Arguments of the call.

        Raises:
            _Refused: If training arguments have no such call.
        """
        super().__init__()
        package = self.module.split(".")[0]
        known = package in _LIBRARIES and self.name[:1].isupper()
        if not known and (self.module, self.name) not in _CALLED:
            raise _Refused(f"calls {self.module}.{self.name}")

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """An enum may be a key of a dictionary."""
        return id(self)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """An inert class of that name.

        Args:
            module: Named in the file; never imported.
            name: Named in the file.

        Returns:
            A container of builtins, or a stand-in.
        """
        if container := _CONTAINERS.get((module, name)):
            return container
        return type(name, (_Inert,), {"module": module, "name": name})

    def persistent_load(self, pid: Any) -> Any:
        """Refuse tensors, which the arguments of a trainer do not hold.

        Args:
            pid: Named in the file.

        Raises:
            _Refused: Always.
        """
        raise _Refused("holds tensors")


def read_training_arguments(path: Path) -> SavedArguments:
    """Read training_args.bin.

    Args:
        path: The file.

    Returns:
        Its arguments.

    Raises:
        ValueError: If it is not the arguments of a trainer, or asks for code to be run.
    """
    try:
        read = _unpickled(path)
    except _Refused as error:
        raise ValueError(
            f"{path} is not read: it {error}, which no training arguments do, so it may be meant "
            "to run code. Remove the file, and say the settings of training in the configuration."
        ) from None
    except Exception as error:  # a torn or foreign file fails in many ways
        raise ValueError(
            f"{path} cannot be read as training arguments ({type(error).__name__}: {error}): "
            "remove the file, and say the settings of training in the configuration."
        ) from error
    if not isinstance(read, _Inert):
        raise ValueError(
            f"{path} holds a {type(read).__name__}, not training arguments: remove the file, and "
            "say the settings of training in the configuration."
        )
    state = vars(read)
    fields = {key: _plain(v) for key, v in state.items() if key not in _SECRET}
    fields = {key: value for key, value in fields.items() if value is not _OPAQUE}
    return SavedArguments(type(read).__name__, fields, _processes(state))


def _unpickled(path: Path) -> Any:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path.stat().st_size} bytes are too many")
    if not zipfile.is_zipfile(path):
        raise ValueError("not a file of torch.save")
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/data.pkl")]
        if archive.getinfo(name).file_size > _LARGEST:
            raise ValueError("the pickle is too large")
        with archive.open(name) as file:
            return _Unpickler(file).load()


_OPAQUE = object()


def _plain(value: Any) -> Any:
    """A value as JSON has it; `_OPAQUE` where it is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _Inert):  # an enum is called with its value
        enum = len(value.given) == 1 and value.module.split(".")[0] in _LIBRARIES
        return _plain(value.given[0]) if enum else _OPAQUE
    if isinstance(value, dict):
        plain = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item is not _OPAQUE}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [v for item in value if (v := _plain(item)) is not _OPAQUE]
    return _OPAQUE


def _processes(state: Mapping[str, Any]) -> int:
    held = state.get("distributed_state")
    found = vars(held).get("num_processes", 1) if isinstance(held, _Inert) else 1
    return found if isinstance(found, int) else 1
