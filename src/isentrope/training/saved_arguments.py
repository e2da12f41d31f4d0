"""Reader of training_args.bin of transformers and TRL that runs no code of the file.

The file is a pickle, and a pickle may call any function. This reader calls no function and imports
nothing: each class named in the file is replaced by an inert stand-in, whose attributes are read as
plain values. It therefore reads files of other versions of TRL and of subclasses of its
configuration, and TRL does not have to be installed. A call of anything but an enum, a device, a
path or a container does not occur in training arguments, and is refused.
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
"""Largest size in bytes; the file of a real run has a few thousand."""

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
_CALLABLE = {
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
        fields: Value of every argument by name; an enum by its value. Values that are not plain
            (a device, a plug-in) are omitted.
        processes: Number of training processes; 1 if the file does not contain it.
    """

    kind: str
    fields: Mapping[str, Any]
    processes: int = 1


class _Refused(ValueError):
    """The pickle contains something that training arguments do not need."""


class _Inert(dict):
    """Stand-in for an object of the file, without any code of its class."""

    __slots__ = ("arguments",)  # separate from the attributes that the file sets

    module = name = ""
    arguments: tuple[Any, ...]

    def __new__(cls, *arguments: Any, **_: Any) -> _Inert:
        instance = super().__new__(cls)
        instance.arguments = arguments
        return instance

    def __init__(self, *arguments: Any) -> None:
        """Check a call of the class; building an object without a call skips this method.

        Args:
            *arguments: Arguments of the call.

        Raises:
            _Refused: If training arguments do not contain such a call.
        """
        super().__init__()
        package = self.module.split(".")[0]
        is_class = package in _LIBRARIES and self.name[:1].isupper()
        if not is_class and (self.module, self.name) not in _CALLABLE:
            raise _Refused(f"calls {self.module}.{self.name}")

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Hash by identity, because an enum may be a key of a dictionary."""
        return id(self)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """An inert class of that name."""
        if container := _CONTAINERS.get((module, name)):
            return container
        return type(name, (_Inert,), {"module": module, "name": name})

    def persistent_load(self, pid: Any) -> Any:
        """Refuse tensors, which the arguments of a trainer do not contain.

        Raises:
            _Refused: Always.
        """
        raise _Refused("holds tensors")


def read_training_arguments(path: Path) -> SavedArguments:
    """Read training_args.bin.

    Returns:
        The arguments.

    Raises:
        ValueError: If the file does not hold arguments of a trainer, or would run code.
    """
    try:
        content = _unpickle(path)
    except _Refused as error:
        raise ValueError(
            f"{path} is not read: it {error}, which training arguments never do, so it may be "
            "meant to run code. Remove the file, and set the training settings in the "
            "configuration."
        ) from None
    except Exception as error:  # a truncated or foreign file fails in many ways
        raise ValueError(
            f"{path} cannot be read as training arguments ({type(error).__name__}: {error}): "
            "remove the file, and set the training settings in the configuration."
        ) from error
    if not isinstance(content, _Inert):
        raise ValueError(
            f"{path} holds a {type(content).__name__}, not training arguments: remove the file, "
            "and set the training settings in the configuration."
        )
    state = vars(content)
    fields = {key: _plain(v) for key, v in state.items() if key not in _SECRET}
    fields = {key: value for key, value in fields.items() if value is not _OPAQUE}
    return SavedArguments(type(content).__name__, fields, _processes(state))


def _unpickle(path: Path) -> Any:
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
    """A value as plain JSON; `_OPAQUE` if it is not plain."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _Inert):  # an enum is called with its value
        enum = len(value.arguments) == 1 and value.module.split(".")[0] in _LIBRARIES
        return _plain(value.arguments[0]) if enum else _OPAQUE
    if isinstance(value, dict):
        plain = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item is not _OPAQUE}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [v for item in value if (v := _plain(item)) is not _OPAQUE]
    return _OPAQUE


def _processes(state: Mapping[str, Any]) -> int:
    distributed = state.get("distributed_state")
    number = vars(distributed).get("num_processes", 1) if isinstance(distributed, _Inert) else 1
    return number if isinstance(number, int) else 1
