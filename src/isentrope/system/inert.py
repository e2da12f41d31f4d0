"""Pickles read as data: nothing that a file names is imported or called.

A pickle may call any function. Here tensors, containers and plain values are rebuilt; every other
class or function that the file names becomes an inert stand-in, which keeps what it was given. The
caller sees which were named (`classes`) and which were called (`calls`), and may refuse them.

Files of torch.save are zip archives. The CRC of whatever is read of one is checked, which torch
does not do, and a tensor is never larger than what is stored of it.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import torch
from torch import Tensor

LARGEST_PICKLE = 64 * 2**20
"""Bytes; that of a model with a hundred thousand tensors has 15 MB."""
_LARGEST_CONTENT = 20_000_000
"""Values, once those that occur several times are counted as often."""
_CHUNK = 2**24
_CONTAINERS = {
    "collections.OrderedDict": OrderedDict,
    "torch.Size": torch.Size,
    **{f"builtins.{kind.__name__}": kind for kind in (set, frozenset, list, dict, tuple)},
}

ReadStorage = Callable[[str], Tensor]
"""Key of a storage → its bytes."""


class Inert:
    """Stand-in for an object of a class that is not loaded.

    Attributes:
        module: Module of the class, as the file names it.
        name: Name of the class.
        arguments: What it was made of.
        state: What its attributes were set to; None if they were not.
    """

    module = name = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **_: Any) -> Inert:  # noqa: D102
        instance = super().__new__(cls)
        instance.arguments = arguments
        instance.state = None
        return instance

    def attributes(self) -> Mapping[str, Any]:
        """What its attributes were set to, by name."""
        return self.state if isinstance(self.state, dict) else {}

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop an entry: a stand-in of a mapping is not one."""

    def extend(self, items: Any) -> None:
        """Drop entries: a stand-in of a list is not one."""

    append = add = extend


@dataclass
class Loaded:
    """The content of a pickle.

    Attributes:
        value: Tensors, containers, plain values and `Inert`.
        classes: Dotted names of whatever is `Inert` in it.
        calls: Those of them that were called.
    """

    value: Any
    classes: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)


def load_pickle(file: BinaryIO, storage: ReadStorage | None = None) -> Loaded:
    """The content of a pickle.

    Args:
        file: The pickle.
        storage: Gives the bytes of a storage by its key; None where the pickle has no tensors.

    Returns:
        The content.

    Raises:
        ValueError: If it is too large, or refers to itself.
    """
    content = file.read(LARGEST_PICKLE + 1)
    if len(content) > LARGEST_PICKLE:
        raise ValueError(f"its pickle has more than {LARGEST_PICKLE} bytes")
    loaded = Loaded(None)
    loaded.value = _Unpickler(io.BytesIO(content), storage, loaded).load()
    require_bounded(loaded.value)
    return loaded


def load_torch(file: str | Path | BinaryIO) -> Loaded:
    """The content of a file of torch.save, on the CPU.

    Returns:
        The content.

    Raises:
        ValueError: If it is no such file, a number of it was changed, or they are big-endian.
    """
    with _open_archive(file) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/data.pkl")] or ("data.pkl",)
        top = name.removesuffix("data.pkl")
        if f"{top}byteorder" in archive.namelist() and archive.read(f"{top}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        with archive.open(name) as pickled:
            return load_pickle(
                cast(BinaryIO, pickled), lambda key: _read_storage(archive, top, key)
            )


def require_intact(file: str | Path) -> None:
    """Refuse a file of torch.save of which a part differs from its CRC.

    Raises:
        ValueError: If it does, or it is no such file.
    """
    with _open_archive(file) as archive:
        if part := archive.testzip():
            raise ValueError(f"{part!r} in it was changed: its CRC is another one")


def require_bounded(content: Any) -> None:
    """Refuse content that is much larger than its file: cycles, and repetitions of repetitions.

    Raises:
        ValueError: If it is, or a tensor has more numbers than are stored.
    """
    counted: dict[int, float] = {}

    def count(value: Any) -> float:
        if isinstance(value, Tensor):
            local = getattr(value, "_local_tensor", value)
            stored = local.untyped_storage().nbytes() if local.layout == torch.strided else 0
            if local.numel() * local.element_size() > stored:
                raise ValueError(f"a tensor of shape {tuple(value.shape)} is not stored whole")
            return 1
        if not isinstance(value, (dict, list, tuple, set, frozenset)):
            return 1
        if id(value) not in counted:
            counted[id(value)] = math.inf  # met again before its parts are counted: a cycle
            parts = value.values() if isinstance(value, dict) else value
            counted[id(value)] = 1 + sum(map(count, parts))
        return counted[id(value)]

    if count(content) > _LARGEST_CONTENT:
        raise ValueError("its content is much larger than the file, or contains itself")


def without_stand_ins(content: Any) -> Any:
    """Dictionaries, lists and tuples without the `Inert` in them."""
    if isinstance(content, dict):
        return {k: without_stand_ins(v) for k, v in content.items() if not isinstance(v, Inert)}
    if isinstance(content, (list, tuple)):
        return type(content)([without_stand_ins(v) for v in content if not isinstance(v, Inert)])
    return content


@contextmanager
def _open_archive(file: str | Path | BinaryIO) -> Iterator[zipfile.ZipFile]:
    """A file of torch.save as a zip archive, whose parts take no more room than the file."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        assert archive.fp is not None
        size = archive.fp.seek(0, io.SEEK_END)
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > size:
            raise ValueError("it is packed, which torch.save does not do")
        yield archive


class _Unpickler(pickle._Unpickler):  # in C, a number in the file decides how much memory it takes
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def __init__(self, file: BinaryIO, storage: ReadStorage | None, loaded: Loaded) -> None:
        super().__init__(file)
        self.storage = storage and cache(storage)
        self.loaded = loaded

    def find_class(self, module, name):
        """A container, a way of rebuilding tensors, a type of numbers, or a stand-in."""
        module = "builtins" if module == "__builtin__" else module
        dotted = f"{module}.{name}"
        if dotted in _CONTAINERS:
            return _CONTAINERS[dotted]
        if dotted in _REBUILDS:
            return _REBUILDS[dotted]
        if module == "torch" and isinstance(kind := vars(torch).get(name), torch.dtype):
            return kind
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            if name == "UntypedStorage":
                return torch.uint8
            return torch.storage._storage_type_to_dtype_map()[name]
        if dotted in _TENSORS:
            return None
        return _make_stand_in(module, name, self.loaded)

    def persistent_load(self, pid: Any) -> Tensor:
        """The numbers of a tensor, as a vector."""
        kind, dtype, key, _, _ = pid
        if kind != "storage" or self.storage is None:
            raise ValueError("it refers to something outside of it")
        return self.storage(key).view(dtype)

    def load_build(self) -> None:
        """Give a stand-in its state; nothing else has one."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], Inert):
            self.stack[-1].state = state

    def refuse(self) -> None:
        """Refuse names of a registry of this process, and arrays that announce their size.

        Raises:
            ValueError: Always.
        """
        raise ValueError("it holds an extension, or an array of bytes")

    dispatch[pickle.BUILD[0]] = load_build
    for _code in (pickle.BYTEARRAY8, pickle.EXT1, pickle.EXT2, pickle.EXT4):
        dispatch[_code[0]] = refuse


def _make_stand_in(module: str, name: str, loaded: Loaded) -> type[Inert]:
    dotted = f"{module}.{name}"
    loaded.classes.add(dotted)

    def called(*_: Any, **_named: Any) -> None:
        loaded.calls.add(dotted)

    return type("Inert", (Inert,), {"module": module, "name": name, "__init__": called})


def _read_storage(archive: zipfile.ZipFile, top: str, key: str) -> Tensor:
    """The bytes of one storage."""
    name = f"{top}data/{key}"
    content = torch.empty(archive.getinfo(name).file_size, dtype=torch.uint8)
    with archive.open(name) as file:
        for part in content.split(_CHUNK):  # what is read is held twice
            cast(io.BufferedIOBase, file).readinto(part.numpy().data)
    return content


def _rebuild(storage: Tensor, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    return storage.as_strided(tuple(size), tuple(stride), offset)


def _rebuild_of_type(storage: Tensor, *arguments: Any) -> Tensor:
    return _rebuild(storage.view(arguments[5]), *arguments)


def _keep_data(data: Any, *_: Any) -> Any:
    return data


def _rebuild_without_class(rebuild: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """The tensor alone, without what its class adds; a stand-in of a class that is no tensor."""
    del kind
    built = rebuild(*arguments)
    if isinstance(built, Inert):
        built.state = state
    return built


_REBUILDS = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_of_type,
    "torch._utils._rebuild_parameter": _keep_data,
    "torch._utils._rebuild_parameter_with_state": _keep_data,
    "torch._tensor._rebuild_from_type_v2": _rebuild_without_class,
}
_TENSORS = {"torch.Tensor", "torch.nn.parameter.Parameter", "torch.Parameter"}
