"""Gradients held by layer: exact or in bfloat16; with the model, on CPU or disk."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from isentrope.attribution.gradients.storage_plan import Storage
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
        for name, p in theta.items():
            dtype = p.dtype if storage.kept == "exact" else torch.bfloat16
            shape = (n, p.numel())
            if storage.where == "disk" and p.numel():
                assert folder is not None
                path = str(folder / f"{len(self._rows)}.bin")
                held = torch.from_file(path, shared=True, size=n * p.numel(), dtype=dtype)
                self._rows[name] = held.view(shape)
            else:
                device = p.device if storage.where == "device" else "cpu"
                self._rows[name] = torch.zeros(shape, dtype=dtype, device=device)

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
        total = held[unique].float()
        total.index_add_(0, place, new.to(total))
        held[unique] = total.to(held.dtype)

    def share(self, ranks: Ranks) -> None:
        """Give every process all rows, where each has added to rows of its own.

        Args:
            ranks: The processes.
        """
        ranks.join(self._rows.values())

    def block(self, name: str, rows: Tensor | slice = slice(None)) -> Tensor:
        """Rows of one parameter.

        Args:
            name: The parameter.
            rows: Which; all by default.

        Returns:
            (n, size) at the model's device and dtype.
        """
        return self._rows[name][rows].to(self._like[name])
