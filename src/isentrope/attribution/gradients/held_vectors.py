"""Vectors over θ that are held one beside another: with the model, on the CPU or on disk.

A gradient in G parts has G times the parameters. Each number is kept in the parameters' type, at
least float32, which is the precision that autograd computes it in; a vector that is read is
float64, on the parameters' device. So nothing is lost in float64. In float32 a held number has a
relative rounding of 6e-8.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any
from weakref import finalize

import torch

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.storage_plan import Storage, Where
from isentrope.nouns.sharded_tensors import is_sharded, local_part, with_part
from isentrope.nouns.vectors import Vector, require_same_names


class HeldVectors(Sequence[Vector]):
    """Sums of named vectors that are kept short, and read in float64.

    On disk they are files of a temporary folder, mapped while they are read or written; the folder
    is removed with this object.
    """

    def __init__(self, theta: Vector, count: int, where: Where = "device") -> None:
        """So many vectors of zeros.

        Args:
            theta: The parameters, for names, shapes, dtype and device.
            count: How many.
            where: "device" with the model, "cpu" or "disk".
        """
        self._count = count
        self._like = {
            name: p.detach() if is_sharded(p) else torch.empty((), device=p.device).expand(p.shape)
            for name, p in theta.items()
        }  # shapes and devices, which hold no copy of θ
        dtype = reduce(torch.promote_types, (p.dtype for p in theta.values()), torch.float32)
        own = {n: torch.empty((), dtype=dtype, device=p.device).expand(local_part(p).shape)
               for n, p in theta.items()}  # fmt: skip
        folder = None
        if where == "disk":
            folder = Path(tempfile.mkdtemp())
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._store = GradientStore(own, count, Storage(where=where), folder)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        vector: Vector = {}
        for name, p in self._like.items():
            row = self._store.block(name, torch.tensor([index]))
            vector[name] = with_part(row.double().view(local_part(p).shape), p)
        return vector

    def add(self, index: int, vector: Vector, scale: float = 1.0) -> None:
        """Add to one of the vectors.

        Args:
            index: Which.
            vector: Over the same parameters.
            scale: What it is multiplied with.
        """
        require_same_names(self._like, vector)
        for name, x in vector.items():
            self._store.add(name, torch.tensor([index]), scale * local_part(x)[None])
