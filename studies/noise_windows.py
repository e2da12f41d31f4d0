"""Noise and drift over windows of 8 and 16 steps, with 4 to 256 prompts per step.

    python -m studies.noise_windows --run runs/theory

theory_noise splits the variance of a gradient over 40 steps, V = tr Σ/B + Δ, up to 64 prompts per
step. Here the same split is made within windows: V_w is over the w steps of a window around their
mean, and Δ_w is what θ's way through a window leaves, whatever B is.

Fixed before it ran. Subjects: the toy of theory_noise, its first 32 steps: four runs of 16 prompts
per step (seeds 1 to 4), two of 64 (5 and 8), two of 256 (6 and 7); the second of 64 and of 256 only
where the hour allows, whatever the first says. Those of 16 prompts and seed 5 had been made for
theory_noise; their windows had not been looked at. The gradients of a quarter, a half and all of
each step's prompts give B = 4 to 256. Windows do not overlap: w = 8 and w = 16. Errors are of a
jackknife over the windows of all runs of a size, with Student's t; 16 steps of one run are two
windows, and have no interval worth the name.

Reading, by w: within the steps of one run size V(B)/V(4B) is 4 where noise alone acts. The law of
1/B is broken between B and 4B where the interval of that ratio ends below 4, stands where it lies
within 3.2 to 5, and is not decided otherwise. Prediction: Δ_w of the runs with 16 prompts and tr Σ
of those with 256 give the fall from 64 to 256; the page says whether the interval holds it.
Stopping: once. Writes docs/results/noise_windows.md. Half an hour on one thread; what is finished
is kept in the folder and not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.nouns.freedom import t_quantile
from studies.theory_noise import MICRO_BATCHES, PREFIXES, SEEDS, SMALL, run
from studies.theory_policies import run_folder, write_page
from studies.toy_attribution import checkpoints

STEPS = 32
WINDOWS = (8, 16)
RUNS = {SMALL: SEEDS, 64: (5, 8), 256: (6, 7)}
"""Seeds by prompts per step."""
LARGER = (64, 256)


@dataclass(frozen=True)
class Windows:
    """What the windows of some runs say of one batch size, one number per window.

    Attributes:
        variance: V_w.
        noise: Mean of tr Σ_k/B.
        mean_square: |ḡ|² of the mean gradient of the window.
    """

    variance: Tensor
    noise: Tensor
    mean_square: Tensor


def windows_of(runs: list[dict[str, Tensor]], groups: int, width: int) -> Windows:
    """Split the first steps of some runs into windows.

    Args:
        runs: Contents of `theory_noise.Recorder`.
        groups: B, prompts of the kept gradients.
        width: w, steps of a window.

    Returns:
        (windows,) numbers of all runs.
    """
    rows = []
    for kept in runs:
        for first in range(0, STEPS, width):
            steps = slice(first, first + width)
            gram = kept[f"gram_{groups}"][steps, steps].double()
            of_mean = gram.mean()
            variance = (gram.trace() - width * of_mean) / (width - 1)
            noise = kept["traces"][steps].double().mean() / groups
            rows.append(torch.stack([variance, noise, of_mean]))
    return Windows(*torch.stack(rows).T)


def ratio(above: Tensor, below: Tensor) -> tuple[float, float, float]:
    """The ratio of two sums over windows, with the ends of its jackknife interval."""
    value = float(above.sum() / below.sum())
    n = len(above)
    if n < 3:
        return value, float("nan"), float("nan")
    deleted = (above.sum() - above) / (below.sum() - below)
    se = float(((n - 1) / n * (deleted - deleted.mean()).square().sum()).sqrt())
    half = t_quantile(n - 1) * se
    return value, value - half, value + half


def verdict(low: float, high: float) -> str:
    """Of the law of 1/B between B and 4B."""
    if high < 4:
        return "broken"
    return "stands" if low >= 3.2 and high <= 5 else "not decided"


def cell(above: Tensor, below: Tensor) -> str:
    """A ratio as the table has it."""
    value, low, high = ratio(above, below)
    return f"{value:.3g} [{low:.3g}, {high:.3g}]" if low == low else f"{value:.3g}"


def split_rows(found: dict[tuple[int, int, int], Windows]) -> list[str]:
    """One row per window and batch size: V, its parts, and the scale that V alone would suggest."""
    rows = []
    for (prompts, groups, width), windows in found.items():
        ones = torch.ones_like(windows.variance)
        drift = windows.variance - windows.noise
        cells = [
            cell(windows.variance, ones),
            cell(windows.noise, ones),
            cell(drift, ones),
            cell(drift, windows.variance),
            cell(groups * windows.variance, windows.mean_square),
        ]
        rows.append(f"| {width} | {prompts} | {groups} | {len(ones)} | " + " | ".join(cells) + " |")
    return rows


def law_rows(found: dict[tuple[int, int, int], Windows]) -> list[str]:
    """One row per window and size of runs: V(B)/V(4B), and what drift at 16 prompts predicts."""
    rows = []
    for width in WINDOWS:
        small = found[SMALL, SMALL, width]
        drift = float((small.variance - small.noise).mean())
        for prompts in RUNS:
            if (prompts, prompts, width) not in found:
                continue
            few = found[prompts, prompts // MICRO_BATCHES, width]
            all_ = found[prompts, prompts, width]
            _, low, high = ratio(few.variance, all_.variance)
            noise = float(all_.noise.mean())
            predicted = (MICRO_BATCHES * noise + drift) / (noise + drift)
            rows.append(
                f"| {width} | {prompts // MICRO_BATCHES} | {prompts} | "
                f"{cell(few.variance, all_.variance)} | {verdict(low, high)} | {predicted:.2f} |"
            )
    return rows


def tables(runs: dict[int, list[dict[str, Tensor]]]) -> str:
    """Both tables, from the runs by prompts per step."""
    found = {
        (prompts, k * prompts // MICRO_BATCHES, width): windows_of(
            kept, k * prompts // MICRO_BATCHES, width
        )
        for width in WINDOWS
        for prompts, kept in runs.items()
        for k in PREFIXES
    }
    return "\n".join([LAW, *law_rows(found), "", SPLIT, *split_rows(found)])


def main() -> None:
    """Make the runs, the first of each size before the second, and write the page after each."""
    folder = run_folder(__doc__)
    checkpoints(folder, 0)
    runs = {SMALL: [run(folder, seed) for seed in SEEDS]}
    for place in range(2):
        for prompts in LARGER:
            runs.setdefault(prompts, []).append(run(folder, RUNS[prompts][place], prompts, STEPS))
            write_page("noise_windows", tables(runs))


LAW = """### Does V fall as 1/B within a window?

| w | B | 4B | V(B)/V(4B) | law of 1/B | predicted from Δ at 16 prompts |
|---|---|---|---|---|---|"""
SPLIT = """### The variance of the gradient within windows of w steps

| w | prompts per step | B | windows | V | tr Σ/B | drift Δ | Δ ÷ V | B · V over squared mean |
|---|---|---|---|---|---|---|---|---|"""


if __name__ == "__main__":
    main()
