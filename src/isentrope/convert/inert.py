"""Files of torch.save read as data: tensors and plain values, no code of the file.

DeepSpeed saves objects of its own classes beside the tensors. A class that is not needed to rebuild
tensors is replaced by an inert stand-in, so that nothing of the file is imported or called.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from isentrope.reading import reading

_REBUILDS = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"}
_PLAIN = {("collections", "OrderedDict"): OrderedDict, ("torch", "Size"): torch.Size}


def _of_class(rebuild: Any, _class: Any, arguments: Any, _state: Any) -> Any:
    return rebuild(*arguments)


def _with_attributes(data: Any, _requires_grad: Any, _hooks: Any, _state: Any) -> Any:
    return data


_ALONE = {
    ("torch._tensor", "_rebuild_from_type_v2"): _of_class,
    ("torch._utils", "_rebuild_parameter_with_state"): _with_attributes,
}
"""Tensors of other classes, and such as have attributes: the tensor is rebuilt alone."""


class Inert:
    """Stand-in for an object of a class that is not loaded."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = arguments
        del named

    def __setstate__(self, state: Any) -> None:
        """Drop the state."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What rebuilds tensors, plain containers, and stand-ins for all else."""
        if plain := _PLAIN.get((module, name)):
            return plain
        if rebuild := _ALONE.get((module, name)):
            return rebuild
        if module == "torch._utils" and name in _REBUILDS:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return super().find_class(module, name)
        return type(name, (Inert,), {})


def load_as_data(file: Path) -> Any:
    """The content of a file of torch.save, on the CPU.

    Returns:
        Its tensors, containers and plain values; other objects are `Inert`.

    Raises:
        FileError: If it cannot be read.
    """
    module = SimpleNamespace(
        Unpickler=_Unpickler, load=lambda f, **_: _Unpickler(f).load(), __name__="inert"
    )
    with reading(file):
        return torch.load(file, map_location="cpu", weights_only=False, pickle_module=module)
