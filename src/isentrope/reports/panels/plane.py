"""The exploration–exploitation plane: what is earned against the entropy it costs.

At one checkpoint: ΔJ against ΔH over the rate (`trade_off`). Along training: reward against
entropy, one point per step or an evaluated checkpoint, and the law R = b − a exp(h) that is fitted
to the steps. Within one step: (δH_i, δJ_i) of every sequence, and what both sum to.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law
from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import INK, LOSS, MEASURED, MUTED, PAPER, REWARD
from isentrope.reports.panel import Panel
from isentrope.reports.panels.trade_off import trade_off_panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import estimate_in
from isentrope.reports.sentences import has_interval, number, with_interval, without_error
from isentrope.reports.svg import canvas, grid, legend, zero_line
from isentrope.results.attributions import Budget
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import percent

WITH_ERRORS = 24
"""Sequences that are drawn with their errors."""


def plane_panels(reading: Reading) -> list[Panel]:
    """ΔJ against ΔH over the rate, the plane along training, and within one step."""
    found = trade_off_panel(reading.shown(MeasureResult)), _along_training(reading)
    panels = [panel for panel in found if panel is not None]
    influence = reading.shown(InfluenceResult)
    if influence is not None and influence.result.reward is not None:
        panels.append(_within_step(influence, influence.result.entropy, influence.result.reward))
    return panels


def law_of(reading: Reading) -> EntropyLaw | None:
    """The law of a run, fitted to its training log; None where that cannot fix it."""
    if reading.metrics is None or not {"entropy", "reward"} <= set(reading.metrics.columns):
        return None
    known = reading.metrics.dropna(subset=["entropy", "reward"])
    try:
        return fit_entropy_law(known["entropy"].to_list(), known["reward"].to_list())
    except ValueError:  # too few steps, or an entropy that never moved
        return None


def _along_training(reading: Reading) -> Panel | None:
    metrics, evaluation = reading.metrics, _evaluation(reading)
    if evaluation is None and (metrics is None or not {"entropy", "reward"} <= set(metrics)):
        return None
    figure, (axes,) = canvas(310)
    tables = []
    if metrics is not None and {"entropy", "reward"} <= set(metrics):
        _draw_steps(axes, metrics)
        tables.append(metrics[["step", "entropy", "reward"]].assign(of="training batch"))
    if evaluation is not None:
        rows = _draw_evaluations(axes, evaluation)
        tables.append(rows.assign(of="evaluation"))
    law = law_of(reading)
    if law is not None and not law.misfits:
        _draw_law(axes, law)
    axes.set_xlabel("entropy (nats per token)")
    axes.set_ylabel("reward")
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    grid(axes, "both")
    legend(axes)
    data = pd.concat(tables, ignore_index=True)
    last = tables[-1]
    first_row, last_row = last.iloc[0], last.iloc[-1]
    caption = (
        f"From step {first_row['step']:.0f} to {last_row['step']:.0f} entropy went from "
        f"{number(first_row['entropy'])} to {number(last_row['entropy'])} nats per token and "
        f"reward from {number(first_row['reward'])} to {number(last_row['reward'])}."
    )
    fitted = {}
    if law is not None:
        fitted, sentence = _law(law)
        caption += f" {sentence}"
    source = reading.training_source() if metrics is not None else reading.evaluations[0].source()
    title = "Reward against entropy along training"
    return Panel("plane", title, caption, source, data, figure, numbers=fitted)


def _law(law: EntropyLaw) -> tuple[dict[str, Estimate], str]:
    """The numbers of the law, none where it misfits, and what is to be said of it."""
    doubts = " ".join(law.warnings)
    if law.misfits:
        return {}, f"R = b − a exp(h) was fitted to the training batches. {doubts}"
    fitted = {"a of the law": law.a, "reward at no entropy": law.ceiling}
    a, ceiling = (without_error(x) for x in fitted.values())
    sentence = (
        f"The training batches follow R = b − a exp(h) with a = {a}, a reward of {ceiling} at "
        f"h = 0 (R² = {number(law.r_squared, 2)})."
    )
    return fitted, f"{sentence} {doubts}".strip()


def _draw_law(axes: Axes, law: EntropyLaw) -> None:
    entropy = np.linspace(*axes.get_xlim(), 50)
    reward = [law(h) for h in entropy]
    limits = axes.get_ylim()
    axes.plot(entropy, reward, "--", color=INK.light, linewidth=1, label="b − a exp(h)", zorder=1)
    axes.set_ylim(limits)


def _evaluation(reading: Reading) -> pd.DataFrame | None:
    for evaluation in reading.evaluations:
        rows = evaluation.sampled()
        if {"reward", "entropy_per_token"} <= set(rows.columns):
            return rows
    return None


def _draw_steps(axes: Axes, metrics: pd.DataFrame) -> None:
    axes.scatter(
        metrics["entropy"],
        metrics["reward"],
        s=14,
        label="training batch",
        color=MUTED.light,
        alpha=0.45,
        linewidth=0,
    )


def _draw_evaluations(axes: Axes, rows: pd.DataFrame) -> pd.DataFrame:
    path = pd.DataFrame({"step": rows["step"]})
    bars = {}
    for axis, metric in (("entropy", "entropy_per_token"), ("reward", "reward")):
        path[axis] = rows[metric]
        bars[axis] = bars_of(rows, metric)
    axes.errorbar(
        path["entropy"],
        path["reward"],
        xerr=bars["entropy"],
        yerr=bars["reward"],
        fmt="-o",
        color=MEASURED.light,
        linewidth=1.2,
        label="evaluated",
    )
    for row in (path.iloc[0], path.iloc[-1]):
        axes.annotate(
            f"step {row['step']:.0f}",
            (row["entropy"], row["reward"]),
            xytext=(9, 7),
            textcoords="offset points",
            fontsize=11,
            color=INK.light,
            bbox={"facecolor": PAPER.light, "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
            zorder=5,
        )
    return path


def bars_of(rows: pd.DataFrame, metric: str) -> np.ndarray:
    """(2, m) lengths of a metric's intervals below and above; 0 where there is no interval."""
    estimates = [estimate_in(row, metric) for _, row in rows.iterrows()]
    ends = [
        (e.value - e.ci_low, e.ci_high - e.value) if has_interval(e) else (0.0, 0.0)
        for e in estimates
    ]
    return np.array(ends).T


def _within_step(influence: Measurement[InfluenceResult], entropy: Budget, reward: Budget) -> Panel:
    table = influence.result.tables["sequences"]
    figure, (axes,) = canvas(310)
    zero_line(axes)
    zero_line(axes, vertical=True)
    for label, rows, colour in _kinds(table):
        axes.scatter(
            rows["delta_h"],
            rows["delta_j"],
            s=16,
            color=colour,
            alpha=0.55,
            linewidth=0,
            label=label,
        )
    _draw_errors(axes, table)
    axes.set_xlabel(f"δH ({entropy.unit})")
    axes.set_ylabel(f"δJ ({reward.unit})")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(nbins=5)
    grid(axes, "both")
    legend(axes)
    columns = ["sequence", "key", "length", "reward", "advantage", "delta_h", "delta_h_se"]
    data = table[[*columns, "delta_j", "delta_j_se"]]
    numbers = {"δJ of the step": reward.total, "δJ of the gradient": reward.gradient}
    return Panel(
        "plane_step",
        "What each sequence cost and earned",
        _caption(table, entropy.gradient, reward.gradient),
        influence.source("sequences.parquet"),
        data,
        figure,
        numbers=numbers,
    )


def _kinds(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame, str]]:
    advantage = table["advantage"].astype(float)
    kinds = [
        ("rewarded (A > 0)", table[advantage > 0], REWARD.light),
        ("punished (A < 0)", table[advantage < 0], LOSS.light),
    ]
    return [kind for kind in kinds if len(kind[1])] or [("sequences", table, MEASURED.light)]


def _draw_errors(axes: Axes, table: pd.DataFrame) -> None:
    """One standard error both ways, of the sequences that move entropy most."""
    most = table.loc[table["delta_h"].abs().nlargest(WITH_ERRORS).index]
    axes.errorbar(
        most["delta_h"],
        most["delta_j"],
        xerr=most["delta_h_se"],
        yerr=most["delta_j_se"],
        fmt="none",
        ecolor=INK.light,
        elinewidth=0.7,
        alpha=0.5,
        zorder=1,
        label=f"error of the {len(most)} largest",
    )


def _caption(table: pd.DataFrame, entropy: Estimate, reward: Estimate) -> str:
    wasted = float(((table["delta_h"] < 0) & (table["delta_j"] <= 0)).mean())
    return (
        f"{percent(wasted)} of the sequences lower entropy and earn nothing; together they move "
        f"entropy by {with_interval(entropy)} and reward by {with_interval(reward)} per unit η."
    )
