"""Curves of a run by step: reward, entropy, what the probe predicted and measured, its control.

Everything comes from metrics.jsonl, and from the evaluations of the run's checkpoints. Bands are
intervals, or one standard error where the log has no intervals.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from isentrope.reports.drawing import (
    FALL,
    FIRST,
    INK,
    MEASURED,
    MUTED,
    REWARD,
    SECOND,
    STEP,
    Mark,
    bars,
    chart,
    dashed,
    logged,
    points,
)
from isentrope.reports.evaluations import Evaluation
from isentrope.reports.panel import Panel, estimates_in, from_to, number
from isentrope.reports.read_run import Reading, read_log
from isentrope.system.formatting import percent


@dataclass(frozen=True)
class Curves:
    """Columns of metrics.jsonl by step.

    Attributes:
        key: Of the panel.
        title: Of the panel.
        label: Of the vertical axis.
        drawn: Label and colour by column; there is no panel without the first of them.
        also: Further columns of the table.
        summed: Whether each value is the change of one step.
        evaluated: The metric of evaluations that is drawn beside them.
        level: The setting of training that is a line across them; numbers are on a logarithm then.
    """

    key: str
    title: str
    label: str
    drawn: dict[str, tuple[str, str]]
    also: tuple[str, ...] = ()
    summed: bool = False
    evaluated: str = ""
    level: str = ""


TRAINING = (
    Curves(
        "reward",
        "Reward",
        "reward",
        {"reward": ("training", REWARD)},
        ("reward_kept", "pass_rate"),
        evaluated="reward",
    ),
    Curves(
        "entropy",
        "Entropy",
        "entropy (nats per token)",
        {
            "entropy": ("training batch", MUTED),
            "probe/entropy_per_token": ("probe, held out", INK),
        },
        evaluated="entropy_per_token",
    ),
    Curves(
        "probe",
        "What each step would do, and did",
        "ΔH of the step",
        {
            "probe/first_order": ("predicted before it", FIRST),
            "probe/change": ("measured after it", MEASURED),
        },
        ("probe/residual",),
        summed=True,
    ),
    Curves(
        "noise",
        "Noise scale",
        "prompts",
        {"noise_scale/b_simple": ("noise scale", MEASURED)},
        level="prompts_per_step",
    ),
)
CONTROL = (
    Curves(
        "control_entropy",
        "Entropy wanted and attained",
        "entropy (nats per token)",
        {"control/entropy": ("attained", MEASURED), "control/target": ("target", INK)},
    ),
    Curves(
        "control_step",
        "What each step would have done, and was asked to do",
        "ΔH of the step",
        {
            "control/predicted": ("step without the control", FIRST),
            "control/asked": ("requested of the step", SECOND),
        },
        summed=True,
    ),
    Curves(
        "control_tokens",
        "What was changed",
        "share",
        {
            "control/touched": ("of tokens touched", MEASURED),
            "control/changed": ("of their weight changed", FALL),
        },
    ),
)


def training_panels(reading: Reading) -> Iterator[Panel]:
    """Reward, entropy, the probe and the noise scale."""
    return (panel for curves in TRAINING for panel in _panel(reading, curves))


def control_panels(reading: Reading) -> Iterator[Panel]:
    """What the logs tell of a control, and its time; no panels for a run without one."""
    panels = [panel for curves in CONTROL for panel in _panel(reading, curves)]
    yield from panels[:-1]
    for last in panels[-1:]:
        yield replace(last, caption=f"{last.caption}{_time_of_control(reading)}")


def _time_of_control(reading: Reading) -> str:
    """Seconds of a control; empty where they are not logged."""
    path, both = reading.folder / "logs" / "timing.jsonl", ["control/seconds", "seconds"]
    times = pd.DataFrame(read_log(path)[0] if path.exists() else [])
    if not {*both} <= {*times}:
        return ""
    times = times.drop_duplicates("step", keep="last").dropna(subset=both)
    own, whole = (float(times[name].sum()) for name in both)
    if not whole:
        return ""
    return (
        f" The control took {number(own / len(times))} seconds per step, {percent(own / whole)} of "
        "the time of training."
    )


def _panel(reading: Reading, curves: Curves) -> Iterator[Panel]:
    first, *_ = curves.drawn
    rows = reading.logged("step", first)
    if rows is None:
        return
    if curves.level:
        rows = rows[rows[first] > 0]
    if not len(rows):
        return
    marks, parts = list[Mark](), list[str]()
    for name, (label, colour) in curves.drawn.items():
        known = rows.dropna(subset=[name]) if name in rows else rows[:0]
        if len(known):
            marks.append(logged(known, name, colour, label))
            tenth = max(1, len(known) // 10)
            means = [float(part[name].mean()) for part in (known[:tenth], known[-tenth:])]
            went = f"went from {number(means[0])} to {number(means[1])}"
            total = f"sums to {number(known[name].sum())}"
            parts.append(f"{label} {total if curves.summed else went}")
    if {"control/entropy", "control/target"} <= {*rows}:
        gap = (rows["control/entropy"] / rows["control/target"] - 1).abs().mean()
        parts.append(f"on average the two are {percent(gap)} apart")
    for evaluation in reading.evaluations[:1]:
        if curves.evaluated in evaluation.table:
            marks.append(_evaluated(evaluation, curves.evaluated, "evaluated", MEASURED))
    level = reading.config.get("training", {}).get(curves.level)
    if level:
        marks.append(dashed(level, curves.level.replace("_", " ")))
    if curves.level:
        marks.append(lambda axes: axes.set_yscale("log"))
    ends = ("", "_ci_low", "_ci_high") if f"{first}_ci_low" in rows else ("", "_se")
    columns = [f"{name}{end}" for name in (*curves.drawn, *curves.also) for end in ends]
    zero = "y" if curves.summed else ""
    yield Panel(
        curves.key,
        curves.title,
        f"Over {len(rows)} steps: {'; '.join(parts)}.",
        reading.training_source(),
        rows.filter(["step", *columns]),
        chart(STEP, curves.label, *marks, zero=zero),
    )


def passes(reading: Reading) -> Iterator[Panel]:
    """pass@k of every evaluation."""
    for place, evaluation in enumerate(reading.evaluations):
        rows = evaluation.sampled().dropna(axis="columns", how="all")
        ks = sorted(int(k) for name in rows for k in re.findall(r"^pass_at_(\d+)$", str(name)))
        if not ks:
            continue
        estimates = {k: evaluation.along(f"pass_at_{k}") for k in ks}
        marks = [
            _evaluated(evaluation, f"pass_at_{k}", f"pass@{k}", REWARD, alpha=shade)
            for k, shade in zip(ks, np.linspace(1, 0.25, len(ks)), strict=True)
        ]
        first, last = rows["step"].iloc[0], rows["step"].iloc[-1]
        ends = [f"pass@{k} {from_to(estimates[k])}" for k in dict.fromkeys((ks[0], ks[-1]))]
        yield Panel(
            "pass_at_k" if place == 0 else f"pass_at_k_{place + 1}",
            f"pass@k of {evaluation.folder.name}",
            f"From step {first:.0f} to {last:.0f}: {'; '.join(ends)}.",
            evaluation.source(),
            rows.filter(regex="^(step|decoding|pass_at_.*)$"),
            chart(STEP, "share of prompts", *marks),
            {f"pass@{k} at the last step": estimates[k][-1] for k in ks},
            {f"pass@{k} at the last step": x for k, x in evaluation.scores(last, ks).items()},
        )
        groups = evaluation.groups[evaluation.groups["step"] == last]
        groups = groups[groups["decoding"] == rows["decoding"].iloc[-1]]
        if len(groups):
            yield Panel(
                f"pass_by_group_{place + 1}",
                f"pass@{ks[0]} by group of prompts, {evaluation.folder.name}",
                f"At step {last:.0f}. A bar without an interval is of one prompt.",
                evaluation.source(),
                groups,
                bars(groups["group"].tolist(), estimates_in(groups, f"pass_at_{ks[0]}"), "share"),
            )


def _evaluated(evaluation: Evaluation, metric: str, label: str, colour: str, **style: Any) -> Mark:
    """A metric of an evaluation by step."""
    style |= {"fmt": "-o", "linewidth": 1.4}
    steps = evaluation.sampled()["step"]
    return points(steps, evaluation.along(metric), colour, label, **style)
