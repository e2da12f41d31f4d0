"""The control of a run: entropy wanted and attained, what was changed for it, and what it cost.

Everything comes from the columns "control/..." of metrics.jsonl, which a run without a control does
not have. Seconds are read from timing.jsonl where they are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from isentrope.reports.drawing import STEP, canvas, frame, line, logged, points, zero_lines
from isentrope.reports.palette import FALL, FIRST, INK, MEASURED, MUTED, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading, read_log
from isentrope.reports.sentences import number
from isentrope.system.formatting import percent

PREFIX = "control/"

NEAR = 0.05
"""Distance from the target, as a share of it, that is mentioned."""

TOUCHED = {
    "touched": ("share of tokens touched", MEASURED),
    "changed": ("Σ|c' − c| / Σ|c|", FALL),
    "strength": ("strength", MUTED),
}

AMONG = {
    "touched_negative": "{} had a negative advantage",
    "touched_unlikely": "{} were less likely than the mean",
}


def control_panels(reading: Reading) -> Iterator[Panel]:
    """What the log tells of a control: entropy, step, tokens; no panels for a run without one."""
    table = _table(reading)
    if table is None:
        return
    name = str(reading.config.get("control", {}).get("name") or "the control")
    yield from _entropy(reading, table, name)
    yield from _step(reading, table)
    yield from _tokens(reading, table, name)


def _table(reading: Reading) -> pd.DataFrame | None:
    """The columns of the control, by their short names, with `step` and what a step took."""
    metrics = reading.logged("step")
    if metrics is None:
        return None
    table = metrics.filter(regex=f"^(step$|{PREFIX})").rename(
        columns=lambda name: str(name).removeprefix(PREFIX)
    )
    if len(table.columns) < 2:
        return None
    table = table.apply(pd.to_numeric, errors="coerce")
    path = reading.folder / "logs" / "timing.jsonl"
    times = pd.DataFrame(read_log(path)[0]) if path.exists() else pd.DataFrame()
    if "step" in times:  # of a line that was cut off, the step has no time
        times = times.drop_duplicates("step", keep="last")
        times = times.rename(columns={f"{PREFIX}seconds": "seconds", "seconds": "whole"})
        new = {"seconds", "whole"} - set(table.columns)
        table = table.merge(times.filter(["step", *new]), on="step", how="left")
    return table


def _known(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows in which all the columns have values; none where a column is not there."""
    return table.reindex(columns=table.columns.union(list(columns), sort=False)).dropna(
        subset=columns
    )


def _entropy(reading: Reading, table: pd.DataFrame, name: str) -> Iterator[Panel]:
    rows = _known(table, "entropy")
    if not len(rows):
        return
    figure, (axes,) = canvas(260)
    logged(axes, rows, "entropy", MEASURED, "attained")
    wanted = _known(table, "target")
    if len(wanted):
        line(axes, wanted["step"], wanted["target"], INK, "target", dashes=(4, 2))
    frame(axes, STEP, "entropy (nats per token)", columns=3)
    first, last = rows["entropy"].iloc[0], rows["entropy"].iloc[-1]
    caption = f"Under {name} entropy went from {number(first)} to {number(last)} nats per token"
    caption += "; the band is one standard error either way." if "entropy_se" in rows else "."
    both = _known(table, "entropy", "target")
    if len(both):
        gap = (both["entropy"] - both["target"]).abs() / both["target"]
        caption += (
            f" It was {percent(gap.mean())} from its target on average, {percent(gap.max())} at "
            f"most, and within {percent(NEAR)} in {percent((gap <= NEAR).mean())} of {len(both)} "
            "steps."
        )
    yield Panel(
        "control_entropy",
        "Entropy wanted and attained",
        caption,
        reading.training_source(),
        rows.filter(["step", "entropy", "entropy_se", "target", "error", "output"]),
        figure,
    )


def _step(reading: Reading, table: pd.DataFrame) -> Iterator[Panel]:
    """Of a control that corrects the step itself: what it expected, and what it asked for."""
    rows = _known(table, "predicted", "asked")
    if not len(rows):
        return
    figure, (axes,) = canvas(260)
    zero_lines(axes)
    logged(axes, rows, "predicted", FIRST, "step without the control")
    logged(axes, rows, "asked", SECOND, "requested of the step")
    measured = reading.logged("step", "probe/change", "probe/change_se", "probe/trust")
    functional = reading.config.get("entropy_probe", {}).get("functional", "per_token")
    if measured is not None and functional == "per_token":
        trusted = measured[measured["probe/trust"] == 1]  # the errors of others mean nothing
        trusted = trusted[trusted["step"].isin(rows["step"])]
        x, y, errors = (trusted[name] for name in ("step", "probe/change", "probe/change_se"))
        if len(trusted):
            points(axes, x, y, MEASURED, "measured by the probe, where trusted", yerr=errors)
    frame(axes, STEP, "ΔH of the step", columns=1)
    caption = (
        f"Uncorrected, the steps would have changed entropy by {number(rows['predicted'].sum())} "
        f"in all to first order; {number(rows['asked'].sum())} was asked of them."
    )
    left = _known(table, "no_correction")["no_correction"]
    if len(left):
        caption += f" {int((left > 0).sum())} of {len(left)} steps were not corrected."
    columns = ["step", "predicted", "asked", "lambda", "gain", "gain_se", "no_correction"]
    yield Panel(
        "control_step",
        "What each step would have done, and was asked to do",
        caption,
        reading.training_source(),
        rows.filter(columns),
        figure,
    )


def _tokens(reading: Reading, table: pd.DataFrame, name: str) -> Iterator[Panel]:
    """Which tokens were touched, how much, how hard, and what it cost."""
    shown = {column: look for column, look in TOUCHED.items() if len(_known(table, column))}
    if not shown:
        return
    figure, panels = canvas(150 * len(shown) + 40, len(shown), sharex=True)
    for axes, (column, (label, colour)) in zip(panels, shown.items(), strict=True):
        rows = _known(table, column)
        axes.plot(rows["step"], rows[column], color=colour.light)
        frame(axes, STEP if axes is panels[-1] else "", label)
    means = table.mean()
    sentences = []
    if "touched" in shown:
        parts = [words.format(percent(means[c])) for c, words in AMONG.items() if c in means]
        if "touched_entropy" in means:
            parts.append(f"their mean entropy was {number(means['touched_entropy'])}")
        among = f"; of those {', '.join(parts)}" if parts else ""
        sentences.append(
            f"On average {name} touched {percent(means['touched'])} of the tokens{among}."
        )
    if "changed" in shown:
        sentences.append(f"It changed {percent(means['changed'])} of the weight.")
    timed = _known(table, "seconds")
    if len(timed):
        whole = _known(timed, "whole")
        share = percent(whole["seconds"].sum() / whole["whole"].sum()) if len(whole) else ""
        of = f", {share} of the time of training" if share else ""
        mean = number(timed["seconds"].mean())
        sentences.append(f"The control took {mean} seconds per step{of}.")
    yield Panel(
        "control_tokens",
        "What was changed, and what it cost",
        " ".join(sentences),
        reading.training_source(),
        table.filter(["step", *shown, *AMONG, "touched_entropy", "seconds"]),
        figure,
    )
