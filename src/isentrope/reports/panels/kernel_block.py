"""The kernel of the evaluation with the update: how steps on U move other responses.

    cos_ij = K_ij / √(K_ii K_jj),     rows the responses on which entropy is measured, columns U

Columns stand in the order of clusters that move the rows alike, and a second figure sets what each
cluster does to entropy against its mean reward.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from isentrope.attribution.fisher.kernel import DIAGONALS
from isentrope.attribution.fisher.pair_classes import HELD_OUT
from isentrope.reports.palette import INK, by_sign
from isentrope.reports.panel import Panel
from isentrope.reports.panels.kernel import CELLS, picture
from isentrope.reports.read_run import Measurement
from isentrope.reports.rows import columns_of
from isentrope.reports.sentences import number, with_interval
from isentrope.reports.svg import canvas, grid, zero_line
from isentrope.results.kernel import BlockRecord, ClusterRecord
from isentrope.results.results import KernelResult
from isentrope.system.formatting import listed, percent
from isentrope.system.reading import read_tensors

ROWS = {"EU": "response of E", "FU": "fresh response to U's prompts"}


def block_panels(kernel: Measurement[KernelResult]) -> list[Panel]:
    """Heat map and clusters of E × U, or else of fresh responses with U."""
    blocks = kernel.result.blocks
    name = next((name for name in ROWS if name in blocks), None)
    if name is None or blocks[name].singular is None:
        return []
    panels = [_heat_map(kernel, name, blocks[name])]
    clusters = blocks[name].clusters
    if clusters is not None and clusters.parts is not None:
        panels.append(_clusters(kernel, name, clusters.parts))
    return panels


def _heat_map(kernel: Measurement[KernelResult], name: str, record: BlockRecord) -> Panel:
    cosines = _cosines(kernel, name)
    n, m = cosines.shape
    if record.clusters is not None:
        cosines = cosines[:, list(record.clusters.order)]
    figure, (axes,) = canvas(430)
    axes.imshow(
        picture(_averaged(cosines)), interpolation="none", extent=(0, m, n, 0), aspect="auto"
    )
    axes.set_xlabel("response of U, ordered by cluster")
    axes.set_ylabel(ROWS[name])
    values = record.singular.values if record.singular is not None else ()
    data = pd.DataFrame({"rank": np.arange(1, len(values) + 1), "singular_value": values})
    numbers = {}
    if record.singular is not None:
        numbers["effective rank of E × U"] = record.singular.effective_rank
    if record.delta_h is not None:
        numbers["δH₁ of the gradient, kernel form"] = record.delta_h.kernel
    return Panel(
        "kernel_block",
        f"How the update moves other responses ({name})",
        _caption(record),
        kernel.source(f"{name}/kernel.safetensors", "results.json"),
        data,
        figure,
        numbers=numbers,
    )


def _cosines(kernel: Measurement[KernelResult], name: str) -> np.ndarray:
    tensors = read_tensors(kernel.folder / name / "kernel.safetensors")
    scales = [np.sqrt(np.clip(tensors[side].double().numpy(), 0, None)) for side in DIAGONALS]
    for scale in scales:
        scale[scale == 0] = np.inf
    return np.clip(tensors["matrix"].double().numpy() / np.outer(*scales), -1, 1)


def _averaged(cosines: np.ndarray) -> np.ndarray:
    """Means of blocks, so that at most CELLS rows and columns are drawn."""
    n, m = (-(-size // CELLS) for size in cosines.shape)
    rows, columns = cosines.shape[0] // n, cosines.shape[1] // m
    return cosines[: rows * n, : columns * m].reshape(rows, n, columns, m).mean((1, 3))


def _caption(record: BlockRecord) -> str:
    singular, parts = record.singular, []
    assert singular is not None
    rank = f"Effective rank {with_interval(singular.effective_rank)}"
    if singular.null is not None:
        rank += f", {number(singular.null.effective_rank)} for random directions"
    if record.delta_h is not None:
        two = (with_interval(x) for x in (record.delta_h.kernel, record.delta_h.forward_mode))
        kernel, forward = two
        parts.append(
            f"−Σ wA E[(S−S̄)K] is {kernel}, and δH₁ by forward mode on the same responses {forward} "
            f"{record.delta_h.kernel.unit}"
        )
    if record.pair_classes is not None:
        words = [
            f"{name.replace('_', ' ')} pairs ({percent(part.fraction)} of all, falling as "
            f"{part.falls_as}) {with_interval(part.contribution)}"
            for name, part in record.pair_classes.items()
        ]
        parts.append(f"of it {listed(words)}")
    text = "; ".join([rank, *parts])
    return f"{text}. {HELD_OUT}" if record.held_out else f"{text}."


def _clusters(
    kernel: Measurement[KernelResult], name: str, parts: tuple[ClusterRecord, ...]
) -> Panel:
    figure, (axes,) = canvas(270)
    for part in parts:
        colour = by_sign(part.delta_h.value)
        error = part.delta_h.se if part.delta_h.se == part.delta_h.se else 0.0
        axes.errorbar(part.reward, part.delta_h.value, yerr=error, color=INK.light, linewidth=0.8)
        axes.plot(part.reward, part.delta_h.value, "o", color=colour, ms=3 + 2 * part.members**0.5)
    zero_line(axes)
    axes.set_xlabel("mean reward of the cluster")
    axes.set_ylabel(f"δH₁ ({parts[0].delta_h.unit})")
    axes.yaxis.set_major_formatter(lambda value, _: number(value, 2))
    grid(axes, "both")
    data = pd.DataFrame(
        {"members": part.members, "reward": part.reward, "weight": part.weight}
        | columns_of(part.delta_h)
        for part in parts
    )
    most = min(parts, key=lambda part: part.delta_h.value)
    caption = (
        f"{len(parts)} clusters of U's responses by how they move the rows; that of lowest δH₁ has "
        f"{most.members} of them, a mean reward of {number(most.reward)}, and moves entropy by "
        f"{with_interval(most.delta_h)}. A point is as large as its cluster; bars are one standard "
        "error."
    )
    return Panel(
        "kernel_clusters",
        "Who pushes together, and what it costs",
        caption,
        kernel.source(),
        data,
        figure,
    )
