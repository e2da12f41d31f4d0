"""The Fisher kernel: cosines of responses, and how many directions the batch has.

    cos_ij = K_ij / √(K_ii K_jj)

is drawn as a picture. Of U with itself (or of E) the responses are ordered by prompt. Of the
responses on which entropy is measured with U, columns stand in the order of clusters that move the
rows alike, and a second figure sets what each cluster does to entropy against its mean reward.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from isentrope.attribution.fisher.kernel import DIAGONALS, SIDE
from isentrope.attribution.fisher.prompt_pairs import KERNEL_UNIT
from isentrope.reports.drawing import (
    MEASURED,
    Chart,
    Mark,
    Series,
    by_sign,
    dashed,
)
from isentrope.reports.panel import Panel
from isentrope.reports.picture import Picture
from isentrope.reports.read_run import Reading
from isentrope.reports.saved_result import MOVED_BLOCKS, OWN_BLOCKS, SavedResult
from isentrope.reports.words import rows_of
from isentrope.results.answers.blocks import short
from isentrope.results.attributions import BlockRecord
from isentrope.results.results import KernelResult
from isentrope.system.file_contents import read_table, read_tensors

SIMULATED = "observed norms"
"""The null that eigenvalues are counted against."""

ROW_TITLES = {"EU": "response of E", "FU": "fresh response to U's prompts"}

COSINES = {
    name: f"blocks.{{own}}.structure.{relation}.rms_cosine"
    for name, relation in {
        "same prompt": "same_prompt",
        "other prompts": "cross_prompt",
        "same prompt, both correct": "same_prompt right/right",
        "same prompt, one correct": "same_prompt right/wrong",
        "same prompt, both incorrect": "same_prompt wrong/wrong",
    }.items()
} | {
    "same minus other": "blocks.{own}.same_less_other_prompt.rms_cosine",
    "E × U": "blocks.{moved}.structure.cross_prompt.rms_cosine",
}
EFFECTIVE_RANKS = {
    "effective rank": "blocks.{own}.spectrum.effective_rank",
    "effective rank of E × U": "blocks.{moved}.singular.effective_rank",
}


def block_of(result: KernelResult, names: tuple[str, ...]) -> tuple[str, BlockRecord]:
    """The first of these blocks that there is, with its name; "" and an empty one without any."""
    name = next((name for name in names if name in result.blocks), "")
    return name, result.blocks.get(name, BlockRecord(0, 0))


def moved_panels(reading: Reading) -> Iterator[Panel]:
    """How steps on U move other responses, and what its clusters do to entropy."""
    kernel = reading.shown(KernelResult)
    name, block = block_of(kernel.result, MOVED_BLOCKS)
    if block.singular is None:
        return
    cosines = _cosines(kernel, name)
    clusters = block.clusters
    singular = block.singular
    if clusters is not None:
        cosines = cosines[:, clusters.order.numpy()]
    caption = "Cosines; columns stand in the order of clusters, where there are any."
    if singular.null is not None:
        rank = short(singular.null.effective_rank)
        caption += f" Random directions have an effective rank of {rank}."
    paths = {
        "effective rank": "blocks.{moved}.singular.effective_rank",
        "δH₁ of the gradient, kernel form": "blocks.{moved}.delta_h.kernel",
        "by forward mode on the same responses": "blocks.{moved}.delta_h.forward_mode",
    }
    yield Panel(
        kernel.source,
        "kernel_block",
        f"How the update moves other responses ({name})",
        caption,
        _picture(cosines, "response of U, ordered by cluster", ROW_TITLES[name]),
        *kernel.at(paths),
        table=pd.DataFrame({"singular_value": singular.values}),
    )
    if clusters is not None and clusters.parts is not None:
        marks = [
            Series(
                None,
                by_sign(part.delta_h.value),
                [part.reward],
                [part.delta_h],
                style={"ms": 3 + 2 * part.members**0.5, "capsize": 0},
            )
            for part in clusters.parts
        ]
        y = f"δH₁ ({clusters.parts[0].delta_h.unit})"
        yield Panel(
            kernel.source,
            "kernel_clusters",
            "Who pushes together, and what it costs",
            "Clusters of U's responses by how they move the rows; a point is as large as its "
            "cluster.",
            Chart("mean reward of the cluster", {y: marks}),
        )


def own_panels(reading: Reading) -> Iterator[Panel]:
    """How responses of a batch move each other, and the spectrum against its null."""
    kernel = reading.shown(KernelResult)
    name, block = block_of(kernel.result, OWN_BLOCKS)
    if not name:
        return
    prompts = read_table(kernel.folder / name / "rows.parquet", schema=SIDE)["prompt"].to_numpy()
    order = np.argsort(prompts, kind="stable")
    numbers, _ = kernel.at(COSINES)
    caption = (
        f"Root mean square cosines of {len(order)} responses, ordered by prompt: blue-green move "
        "together, red apart."
    )
    yield Panel(
        kernel.source,
        KernelResult.verb,
        f"How responses move each other ({name})",
        caption,
        _picture(_cosines(kernel, name)[np.ix_(order, order)], "response", "response"),
        numbers,
        table=rows_of(numbers),
    )
    if (spectrum := block.spectrum) is None:
        return
    values = spectrum.eigenvalues.numpy()
    ranks = np.arange(1, len(values) + 1)
    top = max(values.max(), 1e-300)
    marks = list[Mark]([Series("observed", MEASURED, ranks, values, style={"ms": 3.5})])
    caption = f"Measured on {len(values)} responses."
    for null in spectrum.nulls:
        if null.name == SIMULATED:
            marks.append(dashed(null.upper, "largest of random directions"))
            caption += (
                f" Eigenvalues above the largest of random directions with the {SIMULATED}: "
                f"{null.above}. Such random directions have effective rank "
                f"{short(null.effective_rank)}."
            )
    low = values[values > 1e-8 * top].min(initial=top)
    marks.append(lambda axes: axes.set(xscale="log", yscale="log", ylim=(low / 2, 2 * top)))
    yield Panel(
        kernel.source,
        "spectrum",
        "In how many directions the batch pushes",
        caption,
        Chart("rank of the eigenvalue", {f"eigenvalue of K ({KERNEL_UNIT})": marks}),
        *kernel.at(EFFECTIVE_RANKS),
    )


def _cosines(kernel: SavedResult[KernelResult], name: str) -> np.ndarray:
    """(n, m) cosines of a block; a symmetric one has its own diagonal."""
    tensors = read_tensors(kernel.folder / name / "kernel.safetensors")
    matrix = tensors["matrix"].double().numpy()
    sides = [np.diag(matrix)] * 2
    if name in MOVED_BLOCKS:
        sides = [tensors[side].double().numpy() for side in DIAGONALS]
    scales = [np.sqrt(np.where(side > 0, side, np.inf)) for side in sides]
    return np.clip(matrix / np.outer(*scales), -1, 1)


def _picture(cosines: np.ndarray, columns: str, rows: str) -> Chart:
    """Cosines of columns with rows."""
    return Chart(columns, {rows: [Picture(cosines)]}, 430)
