"""Training curves: reward, entropy, what the probe predicted and measured, the noise scale, pass@k.

Everything comes from metrics.jsonl, and from the evaluations of the run's checkpoints. Intervals
are drawn where they are known; where only a standard error is, the bar is one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from isentrope.reports.drawing import STEP, canvas, frame, line, logged, points, reach, zero_lines
from isentrope.reports.evaluations import Evaluation
from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, REWARD, Colour
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import estimate_in, from_to, number, with_interval


def reward(reading: Reading) -> Iterator[Panel]:
    """Reward of the responses drawn, and of those evaluated."""
    rows = reading.logged("step", "reward")
    if rows is None:
        return
    figure, (axes,) = canvas(260)
    line(axes, rows["step"], rows["reward"], REWARD, "training", linewidth=1.2)
    _evaluated(axes, reading, "reward")
    frame(axes, STEP, "reward", columns=3)
    first, last = _ends(rows["reward"])
    yield Panel(
        "reward",
        "Reward",
        f"Mean reward of all responses drawn went from {first} over the first tenth of "
        f"{len(rows)} steps to {last} over the last.",
        reading.training_source(),
        rows.filter(["step", "reward", "reward_kept", "pass_rate"]),
        figure,
    )


def entropy(reading: Reading) -> Iterator[Panel]:
    """Entropy of the training batch, of the probe's responses, and of those evaluated."""
    rows, held_out = reading.logged("step", "entropy"), "probe/entropy_per_token"
    if rows is None:
        return
    figure, (axes,) = canvas(260)
    line(axes, rows["step"], rows["entropy"], MUTED, "training batch", linewidth=1)
    probed = reading.logged("step", held_out)
    if probed is not None:
        logged(axes, probed, held_out, INK, "probe, held out")
    _evaluated(axes, reading, "entropy_per_token")
    frame(axes, STEP, "entropy (nats per token)", columns=3)
    first, last = _ends(rows["entropy"])
    yield Panel(
        "entropy",
        "Entropy",
        f"Entropy of the training batch, which is filtered, went from {first} to {last} nats per "
        "token; the bands are one standard error.",
        reading.training_source(),
        rows.filter(["step", "entropy", held_out, f"{held_out}_se"]),
        figure,
    )


def _ends(values: pd.Series) -> tuple[str, str]:
    """Means of the first and the last tenth."""
    tenth = max(1, len(values) // 10)
    return number(float(values.head(tenth).mean())), number(float(values.tail(tenth).mean()))


def probe(reading: Reading) -> Iterator[Panel]:
    """What the probe predicted before each step, and measured after it."""
    predicted, measured = "probe/first_order", "probe/change"
    rows = reading.logged("step", predicted, measured)
    if rows is None:
        return
    figure, (axes,) = canvas(260)
    zero_lines(axes)
    logged(axes, rows, predicted, FIRST, "predicted before it")
    errors = rows.get(f"{measured}_se")
    points(axes, rows["step"], rows[measured], MEASURED, "measured after it", yerr=errors)
    frame(axes, STEP, "ΔH of the step", columns=3)
    apart = (rows[measured] - rows[predicted]).abs()
    inside = apart <= 2 * rows.get("probe/residual_se", np.nan)
    columns = [predicted, measured, "probe/residual"]
    yield Panel(
        "probe",
        "What each step would do, and did",
        f"Over {len(rows)} probed steps first order predicted {number(rows[predicted].sum())} in "
        f"all, and {number(rows[measured].sum())} was measured; in {inside.sum()} steps the two "
        "agree within two standard errors of their difference.",
        reading.training_source(),
        rows.filter(["step", *(f"{name}{end}" for name in columns for end in ("", "_se"))]),
        figure,
    )


def noise(reading: Reading) -> Iterator[Panel]:
    """The noise scale beside the prompts of a step."""
    name = "noise_scale/b_simple"
    rows = reading.logged("step", name)
    rows = None if rows is None else rows[rows[name] > 0]
    if rows is None or not len(rows):
        return
    figure, (axes,) = canvas(260)
    low, high = (rows.get(f"{name}_ci_{end}") for end in ("low", "high"))
    band = None if low is None or high is None else (low.astype(float), high.astype(float))
    line(axes, rows["step"], rows[name], MEASURED, "B_simple", band=band)
    batch = reading.config.get("training", {}).get("prompts_per_step")
    if batch:
        style = {"color": MUTED.light, "dashes": (4, 2), "linewidth": 1.2}
        axes.axhline(batch, label="prompts per step", **style)
    axes.set_yscale("log")
    frame(axes, STEP, "prompts", columns=3)
    last = rows.iloc[-1]
    yield Panel(
        "noise",
        "Noise scale",
        f"At step {last['step']:.0f} the noise scale is {with_interval(estimate_in(last, name))} "
        f"prompts{f', a step has {batch}' if batch else ''}.",
        reading.training_source(),
        rows.filter(["step", name, f"{name}_ci_low", f"{name}_ci_high"]),
        figure,
    )


def passes(reading: Reading) -> Iterator[Panel]:
    """pass@k of every evaluation."""
    for place, evaluation in enumerate(reading.evaluations):
        rows = evaluation.sampled()
        columns = [name for name in rows if re.fullmatch(r"pass_at_\d+", str(name))]
        known = [name for name in columns if rows[name].notna().any()]
        if not known:
            continue
        ks = sorted(int(str(name).rpartition("_")[2]) for name in known)
        figure, (axes,) = canvas(260)
        for i, k in enumerate(ks):
            shade = 1 - 0.75 * i / max(1, len(ks) - 1)
            _draw(axes, evaluation, f"pass_at_{k}", f"pass@{k}", REWARD, alpha=shade)
        frame(axes, STEP, "share of prompts", columns=3)
        first, last = rows["step"].iloc[0], rows["step"].iloc[-1]
        estimates = {k: evaluation.along(f"pass_at_{k}") for k in ks}
        ends = [f"pass@{k} {from_to(estimates[k])}" for k in dict.fromkeys((ks[0], ks[-1]))]
        scores = evaluation.scores(last, ks)
        yield Panel(
            "pass_at_k" if place == 0 else f"pass_at_k_{place + 1}",
            f"pass@k of {evaluation.folder.name}",
            f"From step {first:.0f} to {last:.0f}: {'; '.join(ends)}.",
            evaluation.source(),
            rows.filter(regex="^(step|decoding|pass_at_.*)$"),
            figure,
            numbers={f"pass@{k} at the last step": estimates[k][-1] for k in ks},
            influences={f"pass@{k} at the last step": x for k, x in scores.items()},
        )


def _evaluated(axes: Axes, reading: Reading, metric: str) -> None:
    """The first evaluation's points, where it has the metric."""
    for evaluation in reading.evaluations[:1]:
        if evaluation.along(metric):
            _draw(axes, evaluation, metric, "evaluated", MEASURED)


def _draw(
    axes: Axes, evaluation: Evaluation, metric: str, label: str, colour: Colour, alpha: float = 1.0
) -> None:
    estimates, style = evaluation.along(metric), {"fmt": "-o", "linewidth": 1.4, "alpha": alpha}
    steps, values = evaluation.sampled()["step"], [estimate.value for estimate in estimates]
    points(axes, steps, values, colour, label, yerr=reach(estimates), **style)
