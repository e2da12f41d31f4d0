"""The Fisher kernel: how a step on one response moves the log-probability of another (T7).

    K₁(t, t') = Σ_α P_α ∂_αS(t) ∂_αS(t')  =  W P Wᵀ,      W_i = ∂S(t_i)
    δ log π(t) = η Σ_t' K₁(t, t') w(t') A(t')

Exact, for the parameters of LoRA factors, linear layers, embeddings and norms; P is diagonal and
acts on one side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    require_finite_kernel,
    shared_identities,
)
from isentrope.attribution.fisher.spectrum import Spectrum, kernel_spectrum
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.fisher.structure import (
    KernelStructure,
    cross_structure,
    kernel_structure,
)
from isentrope.attribution.gradients.gram import gram, gram_diagonals
from isentrope.attribution.gradients.sketch import Sketch
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.file_contents import (
    TableSchema,
    read_table,
    read_tensor_headers,
    read_tensor_notes,
    read_tensors,
    sort_metadata,
)
from isentrope.system.files import write_file
from isentrope.system.one_line import one_line, plural
from isentrope.system.reading import reading

SIDE = TableSchema(
    {
        **{"prompt": "int64", "key": "string?", "identity": "string", "length": "int64"},
        **dict.fromkeys(("reward", "advantage"), "double"),
    }
)
"""rows.parquet and columns.parquet."""


DIAGONALS = ("row_diagonal", "column_diagonal")
"""Names of the diagonals in kernel.safetensors."""


@dataclass(frozen=True)
class FisherKernel:
    """A block of K₁.

    Attributes:
        matrix: (n_E, n_U) float64, K₁(t_i, t_j).
        rows: One row per sequence of E: prompt, key, identity (of the prompt's tokens), length,
            reward, advantage.
        columns: The same of U; `rows` itself for a batch with itself.
        symmetric: Whether it is of one batch with itself.
        parameters: Number of trainable parameters d.
        rounding: Relative rounding error of an entry: that of the runtime dtype, or of storage.
        diagonals: (n_E,) K_ii of the rows and (n_U,) K_jj of the columns of a block of two batches,
            for cosines; None where they were not computed.
    """

    matrix: Tensor
    rows: pd.DataFrame
    columns: pd.DataFrame
    symmetric: bool
    parameters: int
    rounding: float
    diagonals: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_finite_kernel(self.matrix)

    def __repr__(self) -> str:
        rows, columns = self.matrix.shape
        batches = "one batch" if self.symmetric else "two batches"
        size = f"{rows} × {plural(columns, 'response')} of {batches}"
        return one_line(self, f"{size}, {plural(self.parameters, 'parameter')}")

    @property
    def zero_rows(self) -> list[int]:
        """Sequences of E whose row is zero: no step on U moves them, and they move none of U."""
        return (self.matrix == 0).all(1).nonzero()[:, 0].tolist()

    def structure(self, right_above: float | None = None) -> KernelStructure:
        """Means, spreads and cosines of the diagonal, same-prompt and cross-prompt pairs.

        Args:
            right_above: Split a square kernel by correct (reward above this) and incorrect
                responses.

        Returns:
            The structure, with intervals over prompts.

        Raises:
            ValueError: If rewards are needed and missing, or there is only one prompt.
        """
        if not self.symmetric:
            return cross_structure(self.matrix, self.pairs, self.diagonals)
        right = None
        if right_above is not None:
            if self.rows["reward"].isna().any():
                raise ValueError(
                    "The responses have no rewards, so correct and incorrect ones are not known."
                )
            right = torch.tensor((self.rows["reward"] > right_above).to_numpy())
        return kernel_structure(self.square, right)

    def spectrum(self, seed: int = 0) -> Spectrum:
        """Eigenvalues against random matrices of the same shape.

        Args:
            seed: Of the simulated null.

        Returns:
            The spectrum.

        Raises:
            ValueError: If the block is not of a batch with itself.
        """
        if not self.symmetric:
            raise ValueError(
                "The spectrum is that of a batch with itself; this block has two batches: use "
                "singular_spectrum, or compute fisher_kernel(policy, U)."
            )
        return kernel_spectrum(self.square, self.parameters, seed=seed)

    @cached_property
    def pairs(self) -> PromptPairs:
        """Rows and columns by prompt, which is the same where its tokens are equal."""
        return shared_identities(list(self.rows["identity"]), list(self.columns["identity"]))

    @cached_property
    def square(self) -> SquareKernel:
        """The block of a batch with itself, checked."""
        prompts = torch.tensor(self.rows["prompt"].to_numpy())
        return SquareKernel.of(self.matrix, prompts, rounding=self.rounding)

    def save(self, folder: str | Path) -> Path:
        """Write kernel.safetensors, rows.parquet and columns.parquet.

        Args:
            folder: Created if missing.

        Returns:
            The folder.
        """
        folder = Path(folder)
        metadata = {k: str(getattr(self, k)) for k in ("symmetric", "parameters", "rounding")}
        content = {"matrix": self.matrix.contiguous()}
        content |= dict(zip(DIAGONALS, self.diagonals or (), strict=False))

        def write(path: Path) -> None:
            save_file(content, path, metadata)
            sort_metadata(path)

        write_file(folder / "kernel.safetensors", write)
        write_file(folder / "rows.parquet", self.rows.to_parquet)
        write_file(folder / "columns.parquet", self.columns.to_parquet)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> FisherKernel:
        """Read what `save` wrote.

        Args:
            folder: The folder.

        Returns:
            The kernel.
        """
        folder = Path(folder)
        file = folder / "kernel.safetensors"
        rows, columns = (
            read_table(folder / f"{name}.parquet", schema=SIDE) for name in ("rows", "columns")
        )
        shapes = {"matrix": (len(rows), len(columns))}
        if DIAGONALS[0] in read_tensor_headers(file):
            shapes |= {DIAGONALS[0]: (len(rows),), DIAGONALS[1]: (len(columns),)}
        tensors = read_tensors(file, shapes=shapes)
        metadata = read_tensor_notes(file)
        with reading(file):
            return cls(
                tensors["matrix"],
                rows,
                columns,
                {"True": True, "False": False}[metadata["symmetric"]],
                int(metadata["parameters"]),
                float(metadata["rounding"]),
                (tensors[DIAGONALS[0]], tensors[DIAGONALS[1]]) if len(shapes) > 1 else None,
            )


@refuse_other_types
def fisher_kernel(
    policy: Policy,
    E: Rollouts,
    U: Rollouts | None = None,
    *,
    preconditioner: Vector | None = None,
    gradients: GradientOptions = GradientOptions(),
    diagonals: bool = False,
    sketch: Sketch | None = None,
) -> FisherKernel:
    """Compute a block of the Fisher kernel.

    Args:
        policy: The policy.
        E: The rows.
        U: The columns; None: E with itself.
        preconditioner: P, diagonal, by parameter name; None for 1.
        gradients: How gradients are computed, and those of the smaller side held.
        diagonals: Whether the squared norms of both sides of a block of two batches are computed
            too, for its cosines: another pass over each.
        sketch: How far gradients are projected at random: the block is then unbiased, and its
            spread over seeds is its error. None: it is exact.

    Returns:
        The block.
    """
    sides = (score_sums(E), None if U is None else score_sums(U).as_trained())
    matrix = gram(policy, *sides, preconditioner, gradients, sketch)
    norms = None
    if diagonals and sides[1] is not None:
        norms = gram_diagonals(policy, (sides[0], sides[1]), preconditioner, gradients, sketch)
    rows = _index(E)
    dtype = next(iter(policy.theta.values())).dtype
    rounding = {"exact": 0.0, "bfloat16": 4e-3, "int8": 1e-2}[gradients.storage.kept]
    return FisherKernel(
        matrix,
        rows,
        rows if U is None else _index(U),
        U is None,
        sum(p.numel() for p in policy.theta.values()),
        max(rounding, 1e3 * torch.finfo(dtype).eps),
        norms,
    )


def _index(rollouts: Rollouts) -> pd.DataFrame:
    n = len(rollouts)
    columns: dict[str, Any] = {
        "prompt": rollouts.prompt_index.tolist(),
        "key": rollouts.prompt_keys or [None] * n,
        "identity": [" ".join(map(str, ids.tolist())) for ids in rollouts.prompt_ids],
        "length": rollouts.lengths.tolist(),
    }
    for name in ("rewards", "advantages"):
        values = getattr(rollouts, name)
        columns[name[:-1]] = [float("nan")] * n if values is None else values.tolist()
    return pd.DataFrame(columns)
