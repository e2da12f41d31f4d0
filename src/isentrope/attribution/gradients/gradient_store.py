"""Gradients held by layer: exact, in bfloat16 or in int8 blocks; with the model, on CPU or disk.

Vectors over θ that are held one beside another: with the model, on the CPU or on disk.

A gradient in G parts has G times the parameters. Each number is kept in the parameters' type, at
least float32, which is the precision that autograd computes it in; a vector that is read is
float64, on the parameters' device. So nothing is lost in float64. In float32 a held number has a
relative rounding of 6e-8.
"""

import shutil
import tempfile
from collections.abc import Sequence
from functools import reduce
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from isentrope.attribution.gradients.storage_plan import INT8_BLOCK, Storage, StoragePlace
from isentrope.nouns.vectors import Vector, require_same_names
from isentrope.parallel.sharded import local_part, with_part


class GradientStore:
    """n gradients: one matrix (n, size) per parameter."""

    def __init__(self, theta: Vector, n: int, storage: Storage) -> None:
        """Allocate zeros.

        On disk they are files of a temporary folder, mapped while they are read or written; the
        folder is removed with this object.

        Args:
            theta: The parameters, for names, shapes, dtype and device.
            n: Rows.
            storage: How to keep them.
        """
        self._like = theta
        self._rows: Vector = {}
        self._scales: Vector = {}
        folder = ""
        if storage.where == "disk":
            folder = tempfile.mkdtemp()
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, p in theta.items():
            dtype = {"exact": p.dtype, "bfloat16": torch.bfloat16, "int8": torch.int8}[storage.kept]
            blocks = -(-p.numel() // INT8_BLOCK)
            size = blocks * INT8_BLOCK if storage.kept == "int8" else p.numel()
            if folder and size:
                path = f"{folder}/{len(self._rows)}.bin"
                mapped = torch.from_file(path, shared=True, size=n * size, dtype=dtype)
                self._rows[name] = mapped.view(n, size)
            else:
                device = p.device if storage.where == "device" else "cpu"
                self._rows[name] = torch.zeros(n, size, dtype=dtype, device=device)
            if storage.kept == "int8":
                self._scales[name] = torch.zeros(n, blocks, device=self._rows[name].device)

    def add(self, name: str, rows: Tensor, gradients: Tensor) -> None:
        """Add gradients to rows.

        Args:
            name: The parameter.
            rows: (b,) rows; one may come twice.
            gradients: (b, *shape).
        """
        stored = self._rows[name]
        new = gradients.flatten(1)
        rows = rows.to(stored.device)
        if stored.dtype == new.dtype:
            stored.index_add_(0, rows, new.to(stored.device))
            return
        unique, place = rows.unique(return_inverse=True)
        total = self._read(name, unique).float()
        total.index_add_(0, place, new.to(total))
        if name in self._scales:
            padded = torch.nn.functional.pad(total, (0, stored.shape[1] - total.shape[1]))
            in_blocks = padded.unflatten(1, (-1, INT8_BLOCK))
            scale = in_blocks.abs().amax(2) / 127
            self._scales[name][unique] = scale.to(self._scales[name])
            total = (in_blocks / scale.clamp_min(1e-38)[..., None]).round().flatten(1)
        stored[unique] = total.to(stored.dtype)

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is held; 0 in a row to which nothing was added."""
        return [*self._rows.values(), *self._scales.values()]

    def block(self, name: str, rows: Tensor | slice = slice(None)) -> Tensor:
        """Rows of one parameter.

        Args:
            name: The parameter.
            rows: Which; all by default.

        Returns:
            (n, size) at the model's device and dtype.
        """
        return self._read(name, rows).to(self._like[name])

    def _read(self, name: str, rows: Tensor | slice) -> Tensor:
        stored = self._rows[name][rows]
        if name not in self._scales:
            return stored
        dequantised = stored.unflatten(1, (-1, INT8_BLOCK)) * self._scales[name][rows][..., None]
        return dequantised.flatten(1)[:, : self._like[name].numel()]


class HeldVectors(Sequence[Vector]):
    """Sums of named vectors that are kept short, and read in float64."""

    def __init__(self, theta: Vector, count: int, where: StoragePlace = "device") -> None:
        """So many vectors of zeros.

        Args:
            theta: The parameters, for names, shapes, dtype and device.
            count: How many.
            where: "device" with the model, "cpu" or "disk".
        """
        self._count = count
        self._like = {name: p.detach() for name, p in theta.items()}  # shapes and devices
        dtype = reduce(torch.promote_types, (p.dtype for p in theta.values()), torch.float32)
        parts = {n: torch.empty((), dtype=dtype, device=p.device).expand(local_part(p).shape)
               for n, p in theta.items()}  # fmt: skip
        self._store = GradientStore(parts, count, Storage(where=where))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        vector: Vector = {}
        at = range(self._count)[index]  # no kernel of a device says that there is no such row
        for name, p in self._like.items():
            row = self._store.block(name, slice(at, at + 1))
            copy = row.to(torch.float64, copy=True)
            vector[name] = with_part(copy.view(local_part(p).shape), p)
        return vector

    def rows(self, name: str) -> Tensor:
        """(n, d) what this process holds of one parameter of all vectors, as it is kept."""
        return self._store.block(name)

    def add(self, index: int, vector: Vector, scale: float = 1.0) -> None:
        """Add to one of the vectors.

        Args:
            index: Which.
            vector: Over the same parameters.
            scale: What it is multiplied with.
        """
        require_same_names(self._like, vector)
        row = torch.tensor([index])
        for name, x in vector.items():
            self._store.add(name, row, scale * local_part(x)[None])
