"""The Fisher kernel: cosines of responses, and how many directions the batch has.

    cos_ij = K_ij / √(K_ii K_jj)

is drawn as a picture whose opacity is its size, so it needs no ground of its own. Of U with itself
(or of E) the responses are ordered by prompt. Of the responses on which entropy is measured with U,
columns stand in the order of clusters that move the rows alike, and a second figure sets what each
cluster does to entropy against its mean reward.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from isentrope.attribution.fisher.clusters import ClusterPart
from isentrope.attribution.fisher.kernel import DIAGONALS, SIDE
from isentrope.attribution.fisher.spectrum import Spectrum
from isentrope.reports.drawing import APART, MEASURED, TOGETHER, by_sign, chart, dashed, points
from isentrope.reports.panel import Panel, number, with_interval
from isentrope.reports.read_run import Measurement, Reading
from isentrope.results.kernel import BlockRecord
from isentrope.results.results import KernelResult
from isentrope.system.reading import read_table, read_tensors

SIMULATED = "observed norms"
"""The null that eigenvalues are counted against."""

HUES = LinearSegmentedColormap.from_list(
    "cosine", [(0, APART), (0.5, f"{APART}00"), (0.5, f"{TOGETHER}00"), (1, TOGETHER)], N=49
)
"""Hue by sign and opacity by size, in few shades, so that the picture is small."""

OWN, MOVED = ("UU", "EE"), ("EU", "FU")
"""Blocks of a batch with itself, and of measured responses with U; the first there is is shown."""

ROWS = {"EU": "response of E", "FU": "fresh response to U's prompts"}

RELATIONS = {
    "same_prompt": "same prompt",
    "cross_prompt": "other prompts",
    "same_prompt right/right": "same prompt, right with right",
    "same_prompt right/wrong": "same prompt, right with wrong",
    "same_prompt wrong/wrong": "same prompt, wrong with wrong",
}


def block_of(result: KernelResult, names: tuple[str, ...]) -> tuple[str, BlockRecord | None]:
    """The first of these blocks that there is, with its name; "" and None if there is none."""
    name = next((name for name in names if name in result.blocks), "")
    return name, result.blocks.get(name)


def moved_panels(reading: Reading) -> Iterator[Panel]:
    """How steps on U move other responses, and what its clusters do to entropy."""
    kernel = reading.shown(KernelResult)
    name, block = ("", None) if kernel is None else block_of(kernel.result, MOVED)
    if kernel is None or block is None or block.singular is None:
        return
    cosines, clusters, singular = _cosines(kernel, name), block.clusters, block.singular
    if clusters is not None:
        cosines = cosines[:, clusters.order.numpy()]
    rank = f"Effective rank {with_interval(singular.effective_rank)}"
    if singular.null is not None:
        rank += f", {number(singular.null.effective_rank)} for random directions"
    sentences, numbers = [rank], {"effective rank of E × U": singular.effective_rank}
    if block.delta_h is not None:
        form, forward = block.delta_h.kernel, block.delta_h.forward_mode
        numbers["δH₁ of the gradient, kernel form"] = form
        sentences.append(
            f"−Σ wA E[(S−S̄)K] is {with_interval(form)}, and δH₁ by forward mode on the same "
            f"responses {with_interval(forward)} {form.unit}"
        )
    values = singular.values.numpy()
    yield Panel(
        "kernel_block",
        f"How the update moves other responses ({name})",
        f"{'; '.join(sentences)}.",
        kernel.source(f"{name}/kernel.safetensors", "results.json"),
        pd.DataFrame({"rank": np.arange(1, len(values) + 1), "singular_value": values}),
        _picture(cosines, "response of U, ordered by cluster", ROWS[name]),
        numbers,
    )
    if clusters is not None and clusters.parts is not None:
        yield _clusters(kernel, clusters.parts)


def _clusters(kernel: Measurement[KernelResult], parts: tuple[ClusterPart, ...]) -> Panel:
    changes, rewards = [part.delta_h for part in parts], [part.reward for part in parts]
    marks = [
        points([x], [change], by_sign(change.value), ms=3 + 2 * part.members**0.5, capsize=0)
        for x, change, part in zip(rewards, changes, parts, strict=True)
    ]
    y, most = f"δH₁ ({changes[0].unit})", min(parts, key=lambda part: part.delta_h.value)
    return Panel(
        "kernel_clusters",
        "Who pushes together, and what it costs",
        f"{len(parts)} clusters of U's responses by how they move the rows; that of lowest δH₁ has "
        f"{most.members} of them, a mean reward of {number(most.reward)}, and moves entropy by "
        f"{with_interval(most.delta_h)}. A point is as large as its cluster.",
        kernel.source(),
        pd.DataFrame(
            {"members": part.members, "reward": part.reward, "weight": part.weight}
            | part.delta_h.columns()
            for part in parts
        ),
        chart("mean reward of the cluster", y, *marks, zero="y", grid="both"),
    )


def own_panels(reading: Reading) -> Iterator[Panel]:
    """How responses of a batch move each other, and the spectrum against its null."""
    kernel = reading.shown(KernelResult)
    name, block = ("", None) if kernel is None else block_of(kernel.result, OWN)
    if kernel is None or block is None:
        return
    prompts = read_table(kernel.folder / name / "rows.parquet", schema=SIDE)["prompt"].to_numpy()
    order = np.argsort(prompts, kind="stable")
    cosines = _cosines(kernel, name)[np.ix_(order, order)]
    structure = block.structure or {}
    relations = {words: structure[key] for key, words in RELATIONS.items() if key in structure}
    rms = {f"rms cosine, {words}": row.rms_cosine for words, row in relations.items()}
    rms["rms cosine, same less other"] = (block.same_less_other_prompt or {}).get("rms_cosine")
    numbers = {name: estimate for name, estimate in rms.items() if estimate is not None}
    words = [f"{name} {with_interval(estimate)}" for name, estimate in numbers.items()]
    yield Panel(
        KernelResult.verb,
        f"How responses move each other ({name})",
        f"{len(cosines)} responses, ordered by prompt: {'; '.join(words) or 'no two of a prompt'}. "
        "Blue-green move together, red apart.",
        kernel.source(f"{name}/kernel.safetensors", f"{name}/rows.parquet", "results.json"),
        pd.DataFrame(
            [
                {"relation": words, "entries": row.entries, "quantity": quantity} | cosine.to_dict()
                for words, row in relations.items()
                for quantity in ("mean_cosine", "rms_cosine")
                if (cosine := getattr(row, quantity)) is not None
            ]
        ),
        _picture(cosines, "response, ordered by prompt", "response"),
        numbers,
    )
    if block.spectrum is not None:
        yield _spectrum(kernel, block.spectrum)


def _cosines(kernel: Measurement[KernelResult], name: str) -> np.ndarray:
    """(n, m) cosines of a block; a symmetric one has its own diagonal."""
    tensors = read_tensors(kernel.folder / name / "kernel.safetensors")
    matrix = tensors["matrix"].double().numpy()
    own = [np.diag(matrix)] * 2
    sides = [tensors[side].double().numpy() for side in DIAGONALS] if name in MOVED else own
    scales = [np.sqrt(np.where(side > 0, side, np.inf)) for side in sides]
    return np.clip(matrix / np.outer(*scales), -1, 1)


def _picture(cosines: np.ndarray, columns: str, rows: str) -> Figure:
    """A picture of cosines; pixels of a large kernel are means of its cells."""

    def draw(axes: Axes) -> None:
        axes.imshow(np.sign(cosines) * np.abs(cosines) ** 0.7, HUES, vmin=-1, vmax=1, aspect="auto")

    figure = chart(columns, rows, draw, height=430)
    figure.axes[0].set(xticks=[], yticks=[])
    return figure


def _spectrum(kernel: Measurement[KernelResult], spectrum: Spectrum) -> Panel:
    """Eigenvalues by rank; those above the largest of random matrices are counted."""
    values = spectrum.eigenvalues.numpy()
    ranks, top = np.arange(1, len(values) + 1), max(values.max(), 1e-300)
    marks = [points(ranks, values, MEASURED, "observed", ms=3.5)]
    caption = f"Effective rank {with_interval(spectrum.effective_rank)} of {len(values)} responses"
    for null in spectrum.nulls:
        if null.name == SIMULATED:
            marks.append(dashed(null.upper, f"largest of random directions, {SIMULATED}"))
            caption += (
                f", {number(null.effective_rank)} for random directions with the {SIMULATED}; "
                f"{null.above} eigenvalues stand above the largest of those"
            )
    low = values[values > 1e-8 * top].min(initial=top)

    def logarithmic(axes: Axes) -> None:
        axes.set(xscale="log", yscale="log", ylim=(low / 2, 2 * top))

    return Panel(
        "spectrum",
        "In how many directions the batch pushes",
        f"{caption}.",
        kernel.source(),
        pd.DataFrame({"rank": ranks, "eigenvalue": values}),
        chart("rank", "eigenvalue of K", *marks, logarithmic, height=430, columns=1),
        {"effective rank": spectrum.effective_rank},
    )
