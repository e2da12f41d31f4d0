"""Vectors over θ that are held one beside another: with the model, on the CPU or on disk.

A gradient in G parts has G times the parameters. Each number is kept in the parameters' type, at
least float32, which is the precision that autograd computes it in; a vector that is read is
float64, on the parameters' device. So nothing is lost in float64. In float32 a held number has a
relative rounding of 6e-8.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from isentrope.attribution.gradients.storage_plan import Where
from isentrope.nouns.sharded_tensors import is_sharded, local_part, with_part
from isentrope.nouns.vectors import Vector, require_same_names


def held_dtype(theta: Mapping[str, Tensor]) -> torch.dtype:
    """The type that a held number has.

    Args:
        theta: The parameters.

    Returns:
        The longest of their types, and of float32.
    """
    longest = torch.float32
    for p in theta.values():
        longest = torch.promote_types(longest, p.dtype)
    return longest


class HeldVectors(Sequence[Vector]):
    """A list of named vectors that are kept short, and read in float64.

    On disk each is a file of a temporary folder, mapped while it is read or written; the folder is
    removed with this object.
    """

    def __init__(self, theta: Vector, where: Where = "device") -> None:
        """An empty list.

        Args:
            theta: The parameters, for names, shapes, dtype and device.
            where: "device" with the model, "cpu" or "disk".
        """
        self._like = {
            name: p.detach() if is_sharded(p) else torch.empty((), device=p.device).expand(p.shape)
            for name, p in theta.items()
        }  # shapes and devices, which hold no copy of θ
        self._size = sum(local_part(p).numel() for p in theta.values())
        self._dtype = held_dtype(theta)
        self._device = next(iter(theta.values())).device if where == "device" else "cpu"
        self._held: list[Tensor | Path] = []
        self._folder: Path | None = None
        if where == "disk":
            self._folder = Path(tempfile.mkdtemp())
            finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, index: Any) -> Any:
        flat, start, vector = self._flat(self._held[index]), 0, dict[str, Tensor]()
        for name, p in self._like.items():
            own = local_part(p)
            end = start + own.numel()
            part = flat[start:end].to(p.device, torch.float64, copy=True).view(own.shape)
            vector[name] = with_part(part, p)
            start = end
        return vector

    def __setitem__(self, index: int, vector: Vector) -> None:
        self._write(self._flat(self._held[index]), vector)

    def append(self, vector: Vector) -> None:
        """Hold another vector.

        Args:
            vector: Over the same parameters.
        """
        if self._folder is None:
            held: Tensor | Path = torch.empty(self._size, dtype=self._dtype, device=self._device)
        else:
            held = self._folder / f"{len(self)}.bin"
        self._write(self._flat(held), vector)
        self._held.append(held)

    def _flat(self, held: Tensor | Path) -> Tensor:
        if isinstance(held, Tensor):
            return held
        return torch.from_file(str(held), shared=True, size=self._size, dtype=self._dtype)

    def _write(self, flat: Tensor, vector: Vector) -> None:
        require_same_names(self._like, vector)
        start = 0
        for name, p in self._like.items():
            end = start + local_part(p).numel()
            flat[start:end] = local_part(vector[name]).flatten()
            start = end
