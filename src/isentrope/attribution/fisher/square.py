"""The kernel of a batch with itself, checked once, with its pairs by relation (T7).

The relations are a sequence with itself (diagonal), with another response to the same prompt draw
(same_prompt), and with a response to another prompt (cross_prompt).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import PromptPairs, require_finite


@dataclass(frozen=True)
class SquareKernel:
    """A kernel of one batch of at least two prompts.

    Attributes:
        matrix: (n, n) float64, symmetric and positive semi-definite up to rounding.
        pairs: Its rows and columns by prompt.
    """

    matrix: Tensor
    pairs: PromptPairs

    @classmethod
    def of(
        cls, matrix: Tensor, prompt_index: Tensor | None = None, *, rounding: float = 1e-6
    ) -> SquareKernel:
        """Check that a matrix is the kernel of a batch of at least two prompts.

        Args:
            matrix: (n, n) K of one batch with itself, or its cosines.
            prompt_index: (n,) prompt draw of each sequence, the independent unit; None: each is of
                its own prompt.
            rounding: How far entries may be off, relative to the largest (symmetry) and to the
                trace (negative eigenvalues). A kernel whose rows were held in bfloat16
                needs more.

        Returns:
            The kernel, made symmetric.

        Raises:
            ValueError: If it is not; the message says by how much.
        """
        matrix = torch.as_tensor(matrix, dtype=torch.float64)
        prompts = torch.arange(len(matrix)) if prompt_index is None else prompt_index
        require_finite(matrix)
        off, size = float((matrix - matrix.T).abs().max()), float(matrix.abs().max())
        if off > rounding * size:
            raise ValueError(
                "The kernel is not symmetric: entries differ from their mirror images by up to "
                f"{off:.3g}, the largest entry is {size:.3g}. Pass rounding= if that is rounding."
            )
        pairs = PromptPairs(prompts, prompts)
        if pairs.n_prompts < 2:
            raise ValueError(
                "All sequences belong to one prompt: there is no cross-prompt relation and no "
                "error over prompts. Give a batch of at least two prompts."
            )
        matrix = (matrix + matrix.T) / 2
        _require_semidefinite(matrix, rounding)
        return cls(matrix, pairs)

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def diagonal(self) -> Tensor:
        """(n,) K_ii."""
        return self.matrix.diagonal()

    @cached_property
    def masks(self) -> dict[str, Tensor]:
        """(n, n) bool, the entries of "diagonal", "same_prompt" and "cross_prompt"."""
        same, diagonal = self.pairs.same, torch.eye(len(self), dtype=torch.bool)
        return {"diagonal": diagonal, "same_prompt": same & ~diagonal, "cross_prompt": ~same}

    def means(self, values: Tensor) -> dict[str, Tensor]:
        """Means of (n, n) values over each relation that has a pair.

        Args:
            values: (n, n).

        Returns:
            (1 + P,) by relation, whole and without each prompt.
        """
        found = {name: mask for name, mask in self.masks.items() if bool(mask.any())}
        return {name: self.pairs.means(values, mask) for name, mask in found.items()}

    def norms(self) -> tuple[Tensor, Tensor]:
        """Trace and squared Frobenius norm, whole and without each prompt, at the batch's shape.

        Means over pairs are taken from the remaining prompts and multiplied by the numbers of
        pairs of the whole batch, so that a deletion does not count as a smaller matrix.

        Returns:
            tr K and |K|²_F, (1 + P,) each.
        """
        trace = len(self) * self.means(self.matrix)["diagonal"]
        square = torch.zeros_like(trace)
        for name, mean in self.means(self.matrix.square()).items():
            square += int(self.masks[name].sum()) * mean
        return trace, square

    def fit(self) -> Tensor:
        """(n, n) least-squares a I + b (same prompt) + c 11ᵀ: each entry its relation's mean."""
        fit = torch.zeros_like(self.matrix)
        for mask in self.masks.values():
            if bool(mask.any()):
                fit[mask] = self.matrix[mask].mean()
        return fit

    def deletions(self) -> Iterator[tuple[Tensor, SquareKernel]]:
        """What is left without each prompt in turn.

        Yields:
            (n,) bool of the sequences that are left, and their kernel.
        """
        for prompt in range(self.pairs.n_prompts):
            kept = self.pairs.rows != prompt
            left = self.pairs.rows[kept]
            yield kept, SquareKernel(self.matrix[kept][:, kept], PromptPairs(left, left))


def _require_semidefinite(matrix: Tensor, rounding: float) -> None:
    slack = rounding * max(float(matrix.trace()), 0.0)
    shifted = matrix + slack * torch.eye(len(matrix))
    if bool(matrix.any()) and int(torch.linalg.cholesky_ex(shifted).info):
        lowest, highest = torch.linalg.eigvalsh(matrix)[[0, -1]].tolist()
        raise ValueError(
            f"A kernel is a Gram matrix and has no negative eigenvalues; this one has {lowest:.3g} "
            f"(largest {highest:.3g}). Pass rounding= if that is rounding."
        )
