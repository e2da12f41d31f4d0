"""Curves of a run by step: what training logged, pass@k, and measurements at several checkpoints.

Training curves come from the logs of the run; bands are intervals, or one standard error where a
log has none. In the study a point is one measurement.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import (
    FALL,
    FIRST,
    INK,
    LOSS,
    MEASURED,
    MUTED,
    REWARD,
    SECOND,
    Mark,
    Series,
    dashed,
)
from isentrope.reports.evaluations import Evaluation
from isentrope.reports.panel import Panel, bar_panel, curve_panel
from isentrope.reports.panels.attribution import proxies_of
from isentrope.reports.panels.change import change_at_rate, parts_of, predicted
from isentrope.reports.panels.kernel import cosines_of, ranks_of
from isentrope.reports.read_run import Reading
from isentrope.reports.words import estimates_in, within_one_se
from isentrope.results.result import Result
from isentrope.results.results import AuditResult, KernelResult, MeasureResult
from isentrope.system.formatting import percent

PER_TOKEN = "entropy (nats per token)"
OF_STEP = "ΔH of the step"


@dataclass(frozen=True)
class Logged:
    """Columns of the training log by step.

    Attributes:
        key: Of the panel.
        title: Of the panel.
        label: Of the vertical axis.
        drawn: Label and colour by column; there is no panel without the first of them.
        evaluated: The metric of evaluations that is drawn beside them.
        level: The setting of training that is a line across them; the axis is logarithmic then.
    """

    key: str
    title: str
    label: str
    drawn: dict[str, tuple[str, str]]
    evaluated: str = ""
    level: str = ""


TRAINING = (
    Logged("reward", "Reward", "reward", {"reward": ("training", REWARD)}, evaluated="reward"),
    Logged(
        "entropy",
        "Entropy",
        PER_TOKEN,
        {
            "entropy": ("training batch", MUTED),
            "probe/entropy_per_token": ("probe, held out", INK),
        },
        evaluated="entropy_per_token",
    ),
    Logged(
        "probe",
        "What each step would do, and did",
        OF_STEP,
        {
            "probe/first_order": ("predicted before it", FIRST),
            "probe/change": ("measured after it", MEASURED),
        },
    ),
    Logged(
        "noise",
        "Noise scale",
        "prompts",
        {"noise_scale/b_simple": ("noise scale", MEASURED)},
        level="prompts_per_step",
    ),
)
CONTROL = (
    Logged(
        "control_entropy",
        "Entropy wanted and attained",
        PER_TOKEN,
        {"control/entropy": ("attained", MEASURED), "control/target": ("target", INK)},
    ),
    Logged(
        "control_step",
        "What each step would have done, and was asked to do",
        OF_STEP,
        {
            "control/predicted": ("step without the control", FIRST),
            "control/asked": ("requested of the step", SECOND),
        },
    ),
    Logged(
        "control_tokens",
        "What was changed",
        "share",
        {
            "control/touched": ("of tokens touched", MEASURED),
            "control/changed": ("of their weight changed", FALL),
        },
    ),
    Logged(
        "control_time",
        "What it took",
        "seconds of the step",
        {"control/seconds": ("the control", MEASURED), "seconds": ("the whole step", MUTED)},
    ),
)


def training_panels(reading: Reading) -> Iterator[Panel]:
    """Reward, entropy, the probe and the noise scale."""
    return (panel for logged in TRAINING for panel in _logged(reading, logged))


def control_panels(reading: Reading) -> Iterator[Panel]:
    """What the logs tell of a control, and its time; no panels for a run without one."""
    return (panel for logged in CONTROL for panel in _logged(reading, logged))


def _logged(reading: Reading, logged: Logged) -> Iterator[Panel]:
    curves, marks, caption = list[Series](), list[Mark](), ""
    for column, (label, colour) in logged.drawn.items():
        rows = reading.logged("step", column)
        if logged.level:
            rows = rows[rows[column] > 0]
        if not curves and not len(rows):
            return
        curves.append(
            Series(label, colour, rows["step"].tolist(), estimates_in(rows, column), "-o")
        )
    for evaluation in reading.evaluations[:1]:
        if logged.evaluated in evaluation.table:
            curves.append(evaluated(evaluation, logged.evaluated, "evaluated", MEASURED))
    if logged.level:
        level = reading.config.get("training", {}).get(logged.level)
        marks += [dashed(level, logged.level.replace("_", " "))] if level else []
        marks.append(lambda axes: axes.set_yscale("log"))
    both = reading.logged("control/entropy", "control/target")
    if logged.key == "control_entropy" and len(both):
        gap = (both["control/entropy"] / both["control/target"] - 1).abs().mean()
        caption = f"; on average the two are {percent(gap)} apart"
    summed = logged.label == OF_STEP
    head = (logged.key, logged.title, logged.label)
    yield from curve_panel(reading.source, *head, curves, *marks, summed=summed, caption=caption)


def evaluated(evaluation: Evaluation, metric: str, label: str, colour: str) -> Series:
    """A metric of an evaluation by step."""
    steps = evaluation.sampled()["step"].tolist()
    return Series(label, colour, steps, evaluation.along(metric), "-o")


def passes(reading: Reading) -> Iterator[Panel]:
    """pass@k of every evaluation, and by group of prompts."""
    for place, evaluation in enumerate(reading.evaluations, 1):
        rows = evaluation.sampled().dropna(axis="columns", how="all")
        ks = sorted(int(k) for name in rows for k in re.findall(r"^pass_at_(\d+)$", str(name)))
        if not ks:
            continue
        last = rows["step"].iloc[-1]
        curves = [
            evaluated(evaluation, f"pass_at_{k}", f"pass@{k}", f"{REWARD}{round(255 * shade):02x}")
            for k, shade in zip(ks, np.linspace(1, 0.25, len(ks)), strict=True)
        ]
        key = "pass_at_k" if place == 1 else f"pass_at_k_{place}"
        title, label = f"pass@k of {evaluation.folder.name}", "share of prompts"
        for panel in curve_panel(evaluation.source, key, title, label, curves):
            numbers = {f"{curve.label} at the last step": curve.y[-1] for curve in curves}
            by_prompt = {
                f"pass@{k} at the last step": x for k, x in evaluation.scores(last, ks).items()
            }
            yield replace(panel, numbers=numbers, influences=by_prompt)
        groups = evaluation.groups[evaluation.groups["step"] == last]
        groups = groups[groups["decoding"] == rows["decoding"].iloc[-1]]
        if len(groups):
            yield bar_panel(
                evaluation.source,
                f"pass_by_group_{place}",
                f"pass@{ks[0]} by group of prompts, {evaluation.folder.name}",
                f"At step {last:.0f}. A bar without an interval is of one prompt.",
                "share",
                dict(zip(groups["group"], estimates_in(groups, f"pass_at_{ks[0]}"), strict=True)),
            )


Numbers = Callable[[Any], dict[str, Estimate | None]]
"""From a result to estimates by name."""

STUDIES: tuple[tuple[str, str, type[Result], str, dict[str, str], Numbers], ...] = (
    (
        "study_change",
        "The step along training",
        MeasureResult,
        "ΔH",
        {"measured": MEASURED, "first order": FIRST},
        lambda result: {"measured": change_at_rate(result), "first order": predicted(result)},
    ),
    (
        "study_budget",
        "Who decided the step",
        MeasureResult,
        "δH₁ per η",
        {"momentum": MUTED, "gradient": INK, "total": FIRST},
        lambda result: {**parts_of(result)},
    ),
    (
        "study_range",
        "How far first order reaches",
        MeasureResult,
        "learning rate η",
        {"linear range η*": SECOND, "training rate": MUTED},
        lambda result: {
            "linear range η*": result.linear_range,
            "training rate": within_one_se(result.rate or math.nan, 0.0),
        },
    ),
    (
        "study_kernel",
        "How alike responses are",
        KernelResult,
        "rms cosine",
        {"same prompt": MEASURED, "other prompts": MUTED, "E × U": INK},
        cosines_of,
    ),
    (
        "study_rank",
        "Directions of the batch",
        KernelResult,
        "effective rank",
        {"effective rank": MEASURED, "effective rank of E × U": INK},
        ranks_of,
    ),
    (
        "study_audit",
        "Proxies along training",
        AuditResult,
        "rank correlation",
        {"token covariance": MEASURED, "S* × advantage": INK, "surprisal × A": LOSS},
        lambda result: {**proxies_of(result)},
    ),
)
"""Key, title, results, vertical axis, colours by name, and numbers of a panel of the study."""


def study_panels(reading: Reading) -> Iterator[Panel]:
    """One panel per question that two checkpoints answer, from the change to the proxies."""
    for key, title, kind, label, colours, numbers in STUDIES:
        measured = [m for m in reading.of(kind) if m.step is not None]
        found = [(m.step or 0, numbers(m.result)) for m in measured]
        curves = list[Series]()
        for name, colour in colours.items():
            known = [(step, e) for step, by in found if (e := by.get(name)) is not None]
            known = [(step, e) for step, e in known if not math.isnan(e.value)]
            steps, estimates = [step for step, _ in known], [e for _, e in known]
            curves.append(Series(name, colour, steps, estimates, "-o"))
        if len({step for curve in curves for step in curve.x}) > 1:
            folder = str(measured[0].folder)
            every = f"{reading.folder / 'measurements' / kind.verb}_*"
            source = measured[0].source
            command = source.command.replace(folder, every)
            source = replace(source, command=command, path=every)
            yield from curve_panel(source, key, title, label, curves)
