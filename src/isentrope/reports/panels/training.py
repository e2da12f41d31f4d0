"""Training curves: reward, entropy, what the probe predicted and measured, the noise scale, pass@k.

Everything comes from metrics.jsonl, and from the evaluations of the run's checkpoints. Intervals
are drawn where they are known; where only a standard error is, the bar is one of them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, REWARD
from isentrope.reports.panel import Panel
from isentrope.reports.panels.evaluations import Evaluation
from isentrope.reports.panels.plane import bars_of
from isentrope.reports.read_run import Reading
from isentrope.reports.rows import estimate_in
from isentrope.reports.sentences import number, with_interval
from isentrope.reports.svg import canvas, grid, legend, powers, zero_line

_PASS = r"^pass_at_(\d+)$"


def curve_panels(reading: Reading) -> list[Panel]:
    """Every curve that the run has: reward, entropy, probe, noise scale, pass@k."""
    panels = [_reward(reading), _entropy(reading), _probe(reading), _noise(reading)]
    panels += [_passes(evaluation, k) for k, evaluation in enumerate(reading.evaluations)]
    return [panel for panel in panels if panel is not None]


def _has(reading: Reading, *columns: str) -> bool:
    return reading.metrics is not None and set(columns) <= set(reading.metrics.columns)


def _reward(reading: Reading) -> Panel | None:
    if not _has(reading, "step", "reward"):
        return None
    metrics = reading.metrics
    assert metrics is not None
    figure, (axes,) = canvas(260)
    axes.plot(
        metrics["step"], metrics["reward"], color=REWARD.light, linewidth=1.2, label="training"
    )
    _evaluated(axes, reading, "reward")
    _finish(axes, "reward")
    first, last = _ends(metrics["reward"])
    caption = (
        f"Mean reward of all responses drawn went from {number(first)} over the first tenth of "
        f"{len(metrics)} steps to {number(last)} over the last."
    )
    data = metrics[[c for c in ("step", "reward", "reward_kept", "pass_rate") if c in metrics]]
    return Panel("reward", "Reward", caption, reading.training_source(), data, figure)


def _evaluated(axes: Axes, reading: Reading, metric: str) -> None:
    """The first evaluation's points, where it has the metric."""
    for evaluation in reading.evaluations[:1]:
        rows = evaluation.sampled()
        if metric in rows:
            _draw(axes, rows, metric, "evaluated", MEASURED.light)


def _ends(values: pd.Series) -> tuple[float, float]:
    """Means of the first and the last tenth."""
    tenth = max(1, len(values) // 10)
    return float(values.head(tenth).mean()), float(values.tail(tenth).mean())


def _entropy(reading: Reading) -> Panel | None:
    if not _has(reading, "step", "entropy"):
        return None
    metrics = reading.metrics
    assert metrics is not None
    figure, (axes,) = canvas(260)
    axes.plot(
        metrics["step"], metrics["entropy"], color=MUTED.light, linewidth=1, label="training batch"
    )
    name = "probe/entropy_per_token"
    if name in metrics:
        known = metrics.dropna(subset=[name])
        _band(
            axes, known["step"], known[name], known.get(f"{name}_se"), INK.light, "probe, held out"
        )
    _evaluated(axes, reading, "entropy_per_token")
    _finish(axes, "entropy (nats per token)")
    first, last = _ends(metrics["entropy"])
    caption = (
        f"Entropy of the training batch, which is filtered, went from {number(first)} to "
        f"{number(last)} nats per token; the bands are one standard error."
    )
    columns = ["step", "entropy", name, f"{name}_se"]
    data = metrics[[c for c in columns if c in metrics]]
    return Panel("entropy", "Entropy", caption, reading.training_source(), data, figure)


def _probe(reading: Reading) -> Panel | None:
    predicted, measured = "probe/first_order", "probe/change"
    if not _has(reading, "step", predicted, measured):
        return None
    metrics = reading.metrics
    assert metrics is not None
    known = metrics.dropna(subset=[predicted, measured])
    if not len(known):
        return None
    figure, (axes,) = canvas(260)
    zero_line(axes)
    _band(
        axes,
        known["step"],
        known[predicted],
        known.get(f"{predicted}_se"),
        FIRST.light,
        "predicted before it",
    )
    axes.errorbar(
        known["step"],
        known[measured],
        known.get(f"{measured}_se"),
        fmt="o",
        ms=4,
        elinewidth=1,
        color=MEASURED.light,
        label="measured after it",
    )
    _finish(axes, "ΔH of the step")
    inside = (known[measured] - known[predicted]).abs() <= 2 * known.get(
        "probe/residual_se", np.nan
    )
    sums = number(known[predicted].sum()), number(known[measured].sum())
    caption = (
        f"Over {len(known)} probed steps first order predicted {sums[0]} in all, and {sums[1]} was "
        f"measured; in {inside.sum()} steps the two agree within two standard errors of their "
        "difference."
    )
    columns = [
        "step",
        predicted,
        f"{predicted}_se",
        measured,
        f"{measured}_se",
        "probe/residual",
        "probe/residual_se",
    ]
    data = known[[c for c in columns if c in known]]
    title = "What each step would do, and did"
    return Panel("probe", title, caption, reading.training_source(), data, figure)


def _noise(reading: Reading) -> Panel | None:
    name = "noise_scale/b_simple"
    if not _has(reading, "step", name):
        return None
    metrics = reading.metrics
    assert metrics is not None
    known = metrics.dropna(subset=[name])
    known = known[known[name] > 0]
    if not len(known):
        return None
    figure, (axes,) = canvas(260)
    low, high = (known.get(f"{name}_ci_{end}") for end in ("low", "high"))
    if low is not None and high is not None:
        ends = (low.astype(float), high.astype(float))
        axes.fill_between(known["step"], *ends, color=MEASURED.light, alpha=0.16, linewidth=0)
    axes.plot(known["step"], known[name], color=MEASURED.light, label="B_simple")
    batch = (reading.config.get("training") or {}).get("prompts_per_step")
    if batch:
        axes.axhline(
            batch, color=MUTED.light, dashes=(4, 2), linewidth=1.2, label="prompts per step"
        )
    axes.set_yscale("log")
    _finish(axes, "prompts")
    powers(axes, "y")
    last = known.iloc[-1]
    estimate = estimate_in(last, name)
    caption = f"At step {last['step']:.0f} the noise scale is {with_interval(estimate)} prompts"
    caption += f", a step has {batch}." if batch else "."
    columns = ["step", name, f"{name}_ci_low", f"{name}_ci_high"]
    data = known[[c for c in columns if c in known]]
    return Panel("noise", "Noise scale", caption, reading.training_source(), data, figure)


def _passes(evaluation: Evaluation, place: int) -> Panel | None:
    rows = evaluation.sampled()
    ks = sorted(int(k) for k in rows.columns.astype(str).str.extract(_PASS)[0].dropna())
    ks = [k for k in ks if rows[f"pass_at_{k}"].notna().any()]
    if not ks:
        return None
    figure, (axes,) = canvas(260)
    for place_of_k, k in enumerate(ks):
        shade = 1 - 0.75 * place_of_k / max(1, len(ks) - 1)
        _draw(axes, rows, f"pass_at_{k}", f"pass@{k}", REWARD.light, shade)
    _finish(axes, "share of prompts", columns=3)
    first, last = rows.iloc[0], rows.iloc[-1]
    parts = [
        f"pass@{k} from {with_interval(estimate_in(first, f'pass_at_{k}'))} to "
        f"{with_interval(estimate_in(last, f'pass_at_{k}'))}"
        for k in dict.fromkeys((ks[0], ks[-1]))
    ]
    caption = f"From step {first['step']:.0f} to {last['step']:.0f}: {'; '.join(parts)}."
    columns = [
        "step",
        "decoding",
        *(c for c in rows.columns.astype(str) if c.startswith("pass_at_")),
    ]
    n = int(last.get("n_prompts", 0))
    numbers = {f"pass@{k} at the last step": estimate_in(last, f"pass_at_{k}", n=n) for k in ks}
    key = "pass_at_k" if place == 0 else f"pass_at_k_{place + 1}"
    title = f"pass@k of {evaluation.folder.name}"
    source, scores = evaluation.source(), evaluation.scores(last["step"], ks)
    influences = {f"pass@{k} at the last step": x for k, x in scores.items()}
    return Panel(
        key,
        title,
        caption,
        source,
        rows[columns],
        figure,
        numbers=numbers,
        influences=influences,
    )


def _draw(
    axes: Axes, rows: pd.DataFrame, metric: str, label: str, colour: str, shade: float = 1.0
) -> None:
    axes.errorbar(
        rows["step"],
        rows[metric],
        bars_of(rows, metric),
        fmt="-o",
        ms=4.5,
        color=colour,
        alpha=shade,
        linewidth=1.4,
        capsize=2.5,
        label=label,
    )


def _band(
    axes: Axes, steps: pd.Series, values: pd.Series, se: pd.Series | None, colour: str, label: str
) -> None:
    if se is not None:
        axes.fill_between(steps, values - se, values + se, color=colour, alpha=0.16, linewidth=0)
    axes.plot(steps, values, color=colour, label=label)


def _finish(axes: Axes, label: str, columns: int = 3) -> None:
    axes.set_xlabel("training step")
    axes.set_ylabel(label)
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    grid(axes)
    legend(axes, columns)
