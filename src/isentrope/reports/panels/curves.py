"""Curves of a run by step: what training logged, pass@k, and measurements at several checkpoints.

Training curves come from the logs of the run; bands are intervals, or one standard error where a
log has none. In the study a point is one measurement.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from isentrope.reports.drawing import (
    FIRST,
    INK,
    LOSS,
    MEASURED,
    MUTED,
    REWARD,
    SECOND,
    Bars,
    Mark,
    Series,
    dashed,
)
from isentrope.reports.evaluations import unit_of_log
from isentrope.reports.panel import Panel, curve_panel
from isentrope.reports.panels.kernel import COSINES, EFFECTIVE_RANKS
from isentrope.reports.read_run import Reading
from isentrope.reports.words import estimates_in
from isentrope.results.result import Result
from isentrope.results.results import AuditResult, KernelResult, MeasureResult
from isentrope.system.formatting import percent

ENTROPY = "entropy ({unit})"
OF_STEP = "ΔH of the step ({unit})"
PREDICTED = "probe/first_order"


@dataclass(frozen=True)
class Logged:
    """Columns of the training log by step.

    Attributes:
        key: Of the panel.
        title: Of the panel.
        label: Of the vertical axis, with the unit of the first column in place of {unit}.
        drawn: Label and colour by column; there is no panel without one of them.
        evaluated: The metric of evaluations that is drawn beside them.
        level: The setting of training that is a line across them; the axis is logarithmic then.
    """

    key: str
    title: str
    label: str
    drawn: dict[str, tuple[str, str]]
    evaluated: str = ""
    level: str = ""


TRAINING_LOGS = (
    Logged("reward", "Reward", "reward", {"reward": ("training", REWARD)}, evaluated="reward"),
    Logged(
        "entropy",
        "Entropy",
        ENTROPY,
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
            PREDICTED: ("predicted before it", FIRST),
            "probe/change": ("measured after it", MEASURED),
        },
    ),
    Logged(
        "noise",
        "Noise scale",
        "noise scale (prompts)",
        {"noise_scale/b_simple": ("noise scale", MEASURED)},
        level="prompts_per_step",
    ),
)
CONTROL_LOGS = (
    Logged(
        "control_entropy",
        "Entropy wanted and attained",
        ENTROPY,
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
        "share of tokens, or of their weight",
        {
            "control/touched": ("of tokens touched", MEASURED),
            "control/changed": ("of their weight changed", INK),
        },
    ),
    Logged(
        "control_time",
        "What it took",
        "time (seconds)",
        {"control/seconds": ("the control", MEASURED), "seconds": ("the whole step", MUTED)},
    ),
)


def training_panels(reading: Reading) -> Iterator[Panel]:
    """Reward, entropy, the probe and the noise scale."""
    return (panel for logged in TRAINING_LOGS for panel in _logged(reading, logged))


def control_panels(reading: Reading) -> Iterator[Panel]:
    """What the logs tell of a control, and its time; no panels for a run without one."""
    columns = [name for logged in CONTROL_LOGS for name in logged.drawn if "control/" in name]
    if any(len(reading.logged("step", column)) for column in columns):
        for logged in CONTROL_LOGS:
            yield from _logged(reading, logged)


def _logged(reading: Reading, logged: Logged) -> Iterator[Panel]:
    curves = list[Series]()
    marks = list[Mark]()
    caption = ""
    rows_of = {column: reading.logged("step", column) for column in logged.drawn}
    if not any(len(rows) for rows in rows_of.values()):
        return
    if logged.key == "probe" and not len(rows_of[PREDICTED]):
        caption = "; the model gives no derivatives to predict it by"
    for column, (label, colour) in logged.drawn.items():
        rows = rows_of[column]
        if logged.level and len(rows):
            rows = rows[rows[column] > 0]
        steps = rows["step"].tolist()
        curves.append(Series(label, colour, steps, estimates_in(rows, column), "-o"))
    for evaluation in reading.evaluations[:1]:
        curves.append(Series("evaluated", MEASURED, *evaluation.along(logged.evaluated), "-o"))
    if logged.level:
        level = reading.config.get("training", {}).get(logged.level)
        marks += [dashed(level, logged.level.replace("_", " "))] if level else []
        marks.append(lambda axes: axes.set_yscale("log"))
    levels = reading.logged("control/entropy", "control/target")
    if logged.key == "control_entropy" and len(levels):
        gap = (levels["control/entropy"] / levels["control/target"] - 1).abs().mean()
        caption = f"; on average the two are {percent(gap)} apart"
    summed = logged.label == OF_STEP
    label = logged.label.format(unit=unit_of_log(reading.config, next(iter(logged.drawn))))
    head = (logged.key, logged.title, label)
    yield from curve_panel(reading.source, *head, curves, *marks, summed=summed, caption=caption)


def passes(reading: Reading) -> Iterator[Panel]:
    """pass@k of every evaluation, and by group of prompts."""
    for place, evaluation in enumerate(reading.evaluations, 1):
        names = {name for _, row in evaluation.sampled() for name, e in row.metrics.items() if e}
        ks = sorted(int(k) for name in names for k in re.findall(r"^pass_at_(\d+)$", name))
        if not ks:
            continue
        shades = np.linspace(255, 0.25 * 255, len(ks)).round().astype(int)
        curves = [
            Series(f"pass@{k}", f"{REWARD}{shade:02x}", *evaluation.along(f"pass_at_{k}"), "-o")
            for k, shade in zip(ks, shades, strict=True)
        ]
        last = curves[0].x[-1]
        key = "pass_at_k" if place == 1 else f"pass_at_k_{place}"
        title = f"pass@k of {evaluation.folder.name}"
        label = "share of prompts"
        for panel in curve_panel(evaluation.source, key, title, label, curves):
            numbers = {str(curve.label): curve.y[-1] for curve in curves}
            by_prompt = {f"pass@{k}": x for k, x in evaluation.scores(last, ks).items()}
            lead = f"At the last step, {last:.0f}."
            yield replace(panel, lead=lead, numbers=numbers, influences=by_prompt)
        if groups := evaluation.by_group(f"pass_at_{ks[0]}"):
            yield Panel(
                evaluation.source,
                f"pass_by_group_{place}",
                f"pass@{ks[0]} by group of prompts, {evaluation.folder.name}",
                f"At step {last:.0f}. A bar without an interval is of one prompt.",
                Bars("share of prompts", groups, changes=False),
            )


STUDIES: tuple[tuple[str, str, type[Result], str, dict[str, str], tuple[str, ...]], ...] = (
    (
        "study_change",
        "The step along training",
        MeasureResult,
        "ΔH ({unit})",
        {"measured": "sweep[{rate}].delta_h", "first order": "sweep[{rate}].first_order"},
        (MEASURED, FIRST),
    ),
    (
        "study_budget",
        "Who decided the step",
        MeasureResult,
        "δH₁ ({unit} per η)",
        {"momentum": "budget.momentum", "gradient": "budget.gradient", "total": "budget.total"},
        (MUTED, INK, FIRST),
    ),
    (
        "study_range",
        "How far first order reaches",
        MeasureResult,
        "learning rate η",
        {"linear range η*": "linear_range"},
        (SECOND,),
    ),
    (
        "study_kernel",
        "How alike responses are",
        KernelResult,
        "rms cosine",
        {name: COSINES[name] for name in ("same prompt", "other prompts", "E × U")},
        (MEASURED, MUTED, INK),
    ),
    (
        "study_rank",
        "Directions of the batch",
        KernelResult,
        "effective rank",
        EFFECTIVE_RANKS,
        (MEASURED, INK),
    ),
    (
        "study_audit",
        "Proxies along training",
        AuditResult,
        "rank correlation",
        {
            "token covariance": "tokens.proxies.token_covariance.spearman",
            "S* × advantage": "tokens.proxies.discriminator.spearman",
            "surprisal × A": "tokens.proxies.surprisal_advantage.spearman",
        },
        (MEASURED, INK, LOSS),
    ),
)
"""Key, title, results, vertical axis with a place for the unit, paths of numbers by label, and
colours of a panel."""


def study_panels(reading: Reading) -> Iterator[Panel]:
    """One panel per question that two checkpoints answer, from the change to the proxies."""
    for key, title, kind, label, paths, colours in STUDIES:
        measured = [m for m in reading.all_of(kind) if m.step is not None]
        unit = measured[-1].unit if measured else ""
        measured = [m for m in measured if m.unit == unit]
        numbers = [(m.step, m.at(paths)[0]) for m in measured]
        curves = list[Series]()
        for name, colour in zip(paths, colours, strict=True):
            points = [(step, by[name]) for step, by in numbers if name in by]
            steps = [step for step, _ in points]
            estimates = [estimate for _, estimate in points]
            curves.append(Series(name, colour, steps, estimates, "-o"))
        if len({step for curve in curves for step in curve.x}) > 1:
            source = measured[0].source
            pattern = f"{measured[0].folder.parent / kind.verb}_*"
            command = source.command.replace(source.path, pattern)
            source = replace(source, command=command, path=pattern)
            yield from curve_panel(source, key, title, label.format(unit=unit), curves)
