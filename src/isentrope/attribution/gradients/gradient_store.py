"""Gradients held by layer: exact, in bfloat16 or in int8 blocks; with the model, on CPU or disk."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from isentrope.attribution.gradients.storage_plan import INT8_BLOCK, Storage
from isentrope.nouns.vectors import Vector
from isentrope.system.processes import Ranks


class GradientStore:
    """n gradients: one matrix (n, size) per parameter."""

    def __init__(self, theta: Vector, n: int, storage: Storage, folder: Path | None = None) -> None:
        """Allocate zeros.

        Args:
            theta: The parameters, for names, shapes, dtype and device.
            n: Rows.
            storage: How to keep them.
            folder: Where the files go if they are kept on disk.
        """
        self._like = theta
        self._rows: Vector = {}
        self._scales: Vector = {}
        for name, p in theta.items():
            dtype = {"exact": p.dtype, "bfloat16": torch.bfloat16, "int8": torch.int8}[storage.kept]
            blocks = -(-p.numel() // INT8_BLOCK)
            size = blocks * INT8_BLOCK if storage.kept == "int8" else p.numel()
            if storage.where == "disk" and size:
                assert folder is not None
                path = str(folder / f"{len(self._rows)}.bin")
                held = torch.from_file(path, shared=True, size=n * size, dtype=dtype)
                self._rows[name] = held.view(n, size)
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
        held, new = self._rows[name], gradients.flatten(1)
        rows = rows.to(held.device)
        if held.dtype == new.dtype:
            held.index_add_(0, rows, new.to(held.device))
            return
        unique, place = rows.unique(return_inverse=True)
        total = self._read(name, unique).float()
        total.index_add_(0, place, new.to(total))
        if name in self._scales:
            padded = torch.nn.functional.pad(total, (0, held.shape[1] - total.shape[1]))
            in_blocks = padded.unflatten(1, (-1, INT8_BLOCK))
            scale = in_blocks.abs().amax(2) / 127
            self._scales[name][unique] = scale.to(self._scales[name])
            total = (in_blocks / scale.clamp_min(1e-38)[..., None]).round().flatten(1)
        held[unique] = total.to(held.dtype)

    def share(self, ranks: Ranks) -> None:
        """Give every process all rows, where each has added to rows of its own.

        Args:
            ranks: The processes.
        """
        ranks.join([*self._rows.values(), *self._scales.values()])

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
        held = self._rows[name][rows]
        if name not in self._scales:
            return held
        scales = self._scales[name][rows]
        whole = (held.unflatten(1, (-1, INT8_BLOCK)) * scales[..., None]).flatten(1)
        return whole[:, : self._like[name].numel()]
