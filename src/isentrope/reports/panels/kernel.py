"""The Fisher kernel: cosines ordered by prompt, and the spectrum against its null.

    cos_ij = K_ij / √(K_ii K_jj)

is drawn as a picture whose opacity is its size, so it needs no ground of its own. Kernels of more
than CELLS rows are averaged in square blocks first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from isentrope.attribution.fisher.kernel import SIDE
from isentrope.attribution.fisher.null_spectra import Null, marchenko_pastur_eigenvalues
from isentrope.attribution.fisher.structure import Relation
from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import APART, INK, LOSS, MEASURED, MUTED, TOGETHER
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.sentences import number, with_interval
from isentrope.reports.svg import canvas, grid, legend, powers
from isentrope.results.kernel import SpectrumRecord
from isentrope.results.results import KernelResult
from isentrope.system.reading import read_table, read_tensors

CELLS = 512
"""Rows of the picture at most."""

SIMULATED = "observed norms"
"""The null that eigenvalues are counted against."""

LEVELS = 24
"""Shades of each sign: few, so that the picture is small."""

RELATIONS = {
    "same_prompt": "same prompt",
    "cross_prompt": "other prompts",
    "same_prompt right/right": "same prompt, right with right",
    "same_prompt right/wrong": "same prompt, right with wrong",
    "same_prompt wrong/wrong": "same prompt, wrong with wrong",
}


def kernel_panels(kernel: Measurement[KernelResult]) -> list[Panel]:
    """Heat map and spectrum of the block of U with itself, or of E."""
    blocks = kernel.result.blocks
    block = next((name for name in ("UU", "EE") if name in blocks), None)
    if block is None:
        return []
    panels = [_heat_map(kernel, block)]
    spectrum = blocks[block].spectrum
    if spectrum is not None:
        panels.append(_spectrum(kernel, spectrum))
    return panels


def _draw_null(axes: Axes, null: Null, values: np.ndarray, **style: Any) -> None:
    """The eigenvalues of a random matrix by rank; nothing is counted against them."""
    curve = marchenko_pastur_eigenvalues(len(values), null.dimension, float(values.mean()))
    curve = curve[curve > float(values.max()) * 1e-8]
    axes.plot(range(1, len(curve) + 1), curve, label=f"null: {null.name}", **style)


def _heat_map(kernel: Measurement[KernelResult], block: str) -> Panel:
    rows = read_table(kernel.folder / block / "rows.parquet", schema=SIDE)
    order = np.argsort(rows["prompt"].to_numpy(), kind="stable")
    cosines = _cosines(kernel, block)[np.ix_(order, order)]
    prompts = rows["prompt"].to_numpy()[order]
    averaged, factor = _averaged(cosines)
    figure, (axes,) = canvas(430)
    n = len(cosines)
    axes.imshow(picture(averaged), interpolation="none", extent=(0, n, n, 0))
    _mark_prompts(axes, prompts)
    axes.set_xlabel("response, ordered by prompt")
    axes.set_ylabel("response")
    axes.spines[["top", "right"]].set_visible(True)
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)
    record = kernel.result.blocks[block]
    structure = record.structure or {}
    relations = {words: structure[key] for key, words in RELATIONS.items() if key in structure}
    data = pd.DataFrame(
        [
            {"relation": words, "entries": row.entries, "quantity": name} | cosine.to_dict()
            for words, row in relations.items()
            for name in ("mean_cosine", "rms_cosine")
            if (cosine := getattr(row, name)) is not None
        ]
    )
    numbers = {
        f"rms cosine, {words}": row.rms_cosine
        for words, row in relations.items()
        if row.rms_cosine is not None
    }
    difference = (record.same_less_other_prompt or {}).get("rms_cosine")
    if difference is not None:
        numbers["rms cosine, same less other prompts"] = difference
    return Panel(
        "kernel",
        f"How responses move each other ({block})",
        _caption(relations, n, factor, difference),
        kernel.source(f"{block}/kernel.safetensors", f"{block}/rows.parquet", "results.json"),
        data,
        figure,
        numbers=numbers,
    )


def _cosines(kernel: Measurement[KernelResult], block: str) -> np.ndarray:
    matrix = read_tensors(kernel.folder / block / "kernel.safetensors")["matrix"].double().numpy()
    scale = np.sqrt(np.clip(np.diag(matrix), 0, None))
    scale[scale == 0] = np.inf
    return np.clip(matrix / np.outer(scale, scale), -1, 1)


def _averaged(cosines: np.ndarray) -> tuple[np.ndarray, int]:
    factor = -(-len(cosines) // CELLS)
    if factor == 1:
        return cosines, 1
    whole = len(cosines) // factor
    cut = cosines[: whole * factor, : whole * factor]
    return cut.reshape(whole, factor, whole, factor).mean((1, 3)), factor


def picture(cosines: np.ndarray) -> np.ndarray:
    """(n, n, 4) hue by sign, opacity by size in LEVELS steps."""
    colours = np.array([to_rgb(APART.light), to_rgb(TOGETHER.light)])
    levels = np.round(np.abs(cosines) ** 0.7 * LEVELS) / LEVELS
    pixels = np.concatenate((colours[(cosines > 0).astype(int)], levels[..., None]), axis=2)
    pixels[levels == 0] = 0
    return pixels


def _mark_prompts(axes: Axes, prompts: np.ndarray) -> None:
    """A tick at the middle of each prompt's responses, numbered where there is room."""
    borders = np.flatnonzero(np.diff(prompts)) + 1
    edges = np.concatenate(([0], borders, [len(prompts)]))
    every = -(-len(borders) // 15) if len(borders) else 1
    middles = (edges[:-1] + edges[1:]) / 2
    names = [str(prompts[edge]) for edge in edges[:-1]]
    axes.set_xticks(middles[::every], names[::every])
    axes.set_yticks(middles[::every], names[::every])
    axes.tick_params(length=2)


def _caption(
    relations: dict[str, Relation], n: int, factor: int, difference: Estimate | None
) -> str:
    note = f" Each cell is the mean of {factor} x {factor} pairs." if factor > 1 else ""
    if "same prompt" not in relations:
        return f"Cosines of {n} responses: blue-green move together, red apart.{note}"
    same, other = relations["same prompt"].rms_cosine, relations.get("other prompts")
    caption = f"Responses to one prompt have an rms cosine of {with_interval(same)}"
    if other is not None:
        caption += f", responses to different prompts of {with_interval(other.rms_cosine)}"
    if difference is not None:
        caption += f"; the difference is {with_interval(difference)}"
    return f"{caption}; blue-green move together, red apart, numbers are prompts.{note}"


def _spectrum(kernel: Measurement[KernelResult], spectrum: SpectrumRecord) -> Panel:
    values = np.array(spectrum.eigenvalues)
    shown = values[values > values.max() * 1e-8]
    figure, (axes,) = canvas(430)
    axes.plot(range(1, len(shown) + 1), shown, "o", ms=3.5, color=MEASURED.light, label="observed")
    styles = zip(spectrum.nulls, (MUTED, LOSS, INK), ((1, 2), (4, 2), (6, 2, 1, 2)), strict=False)
    for null, colour, dashes in styles:
        style = {"color": colour.light, "dashes": dashes, "linewidth": 1.3}
        if null.name == SIMULATED:
            axes.axhline(null.upper, label=f"largest under {SIMULATED}", **style)
        else:
            _draw_null(axes, null, values, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    powers(axes)
    powers(axes, "y")
    axes.set_xlabel("rank")
    axes.set_ylabel("eigenvalue of K")
    grid(axes)
    legend(axes, 1)
    rank = spectrum.effective_rank
    caption = f"Effective rank {with_interval(rank)} of {len(values)} responses"
    null = next((null for null in spectrum.nulls if null.name == SIMULATED), None)
    if null is not None:
        caption += (
            f", {number(null.effective_rank)} for random directions with the {SIMULATED}; "
            f"{null.above} eigenvalues stand above the largest of those"
        )
    caption += "."
    data = pd.DataFrame({"rank": np.arange(1, len(values) + 1), "eigenvalue": values})
    return Panel(
        "spectrum",
        "In how many directions the batch pushes",
        caption,
        kernel.source(),
        data,
        figure,
        numbers={"effective rank": rank},
    )
