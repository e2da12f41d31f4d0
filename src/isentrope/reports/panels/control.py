"""The control of a run: entropy wanted and attained, what was changed for it, and what it cost.

Everything comes from the columns "control/..." of metrics.jsonl, which a run without a control does
not have. Seconds are read from timing.jsonl where they are not among them.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isentrope.reports.palette import FALL, FIRST, INK, MEASURED, MUTED, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import number
from isentrope.reports.svg import canvas, grid, legend, zero_line
from isentrope.runs.log_lines import read_log
from isentrope.system.formatting import percent

PREFIX = "control/"
_NEAR = 0.05
"""Distance from the target, as a share of it, that is mentioned."""


def control_panels(reading: Reading) -> list[Panel]:
    """What the log tells of a control: entropy, step, tokens; no panels for a run without one."""
    table = _table(reading)
    if table is None:
        return []
    name = str((reading.config.get("control") or {}).get("name") or "the control")
    panels = [_entropy(reading, table, name), _step(reading, table), _tokens(reading, table, name)]
    return [panel for panel in panels if panel is not None]


def _table(reading: Reading) -> pd.DataFrame | None:
    """The columns of the control, by their short names, with `step` and what a step took."""
    metrics = reading.metrics
    if metrics is None or "step" not in metrics:
        return None
    names = [c for c in metrics.columns if str(c).startswith(PREFIX)]
    if not names:
        return None
    table = metrics[["step", *names]].rename(columns=lambda c: str(c).removeprefix(PREFIX))
    table = table.apply(pd.to_numeric, errors="coerce")
    times = _timing(reading)
    if times is not None:
        own = times.rename(columns={f"{PREFIX}seconds": "seconds", "seconds": "whole"})
        own = own[["step", *(c for c in ("seconds", "whole") if c in own and c not in table)]]
        table = table.merge(own, on="step", how="left")
    return table


def _timing(reading: Reading) -> pd.DataFrame | None:
    """timing.jsonl; the last line of each step, None where there is no such file."""
    path = reading.folder / "logs" / "timing.jsonl"
    if not path.exists():
        return None
    table = pd.DataFrame(read_log(path)[0])  # of a line that was cut off, the step has no time
    return table.drop_duplicates("step", keep="last") if "step" in table else None


def _known(table: pd.DataFrame, *columns: str) -> pd.DataFrame | None:
    """The rows in which all the columns have values; None where there are none."""
    if not set(columns) <= set(table.columns):
        return None
    rows = table.dropna(subset=list(columns))
    return rows if len(rows) else None


def _entropy(reading: Reading, table: pd.DataFrame, name: str) -> Panel | None:
    rows = _known(table, "entropy")
    if rows is None:
        return None
    figure, (axes,) = canvas(260)
    _line(axes, rows, "entropy", "attained", MEASURED.light)
    wanted = _known(table, "target")
    if wanted is not None:
        axes.plot(wanted["step"], wanted["target"], color=INK.light, dashes=(4, 2), label="target")
    _finish(axes, "entropy (nats per token)")
    first, last = rows["entropy"].iloc[0], rows["entropy"].iloc[-1]
    caption = f"Under {name} entropy went from {number(first)} to {number(last)} nats per token"
    caption += "; the band is one standard error either way." if "entropy_se" in rows else "."
    both = None if wanted is None else _known(table, "entropy", "target")
    if both is not None:
        gap = (both["entropy"] - both["target"]).abs() / both["target"]
        mean, most, near = (
            percent(float(x)) for x in (gap.mean(), gap.max(), (gap <= _NEAR).mean())
        )
        caption += (
            f" It was {mean} from its target on average, {most} at most, and within "
            f"{percent(_NEAR)} in {near} of {len(both)} steps."
        )
    columns = ["step", "entropy", "entropy_se", "target", "error", "output"]
    title = "Entropy wanted and attained"
    return _panel(reading, "control_entropy", title, caption, rows, columns, figure)


def _step(reading: Reading, table: pd.DataFrame) -> Panel | None:
    """Of a control that corrects the step itself: what it expected, and what it asked for."""
    rows = _known(table, "predicted", "asked")
    if rows is None:
        return None
    figure, (axes,) = canvas(260)
    zero_line(axes)
    _line(axes, rows, "predicted", "step without the control", FIRST.light)
    _line(axes, rows, "asked", "requested of the step", SECOND.light)
    measured = _measured_change(reading, rows)
    if measured is not None:
        axes.errorbar(
            measured["step"],
            measured["delta_h"],
            measured["delta_h_se"],
            fmt="o",
            ms=4,
            elinewidth=1,
            color=MEASURED.light,
            label="measured by the probe, where trusted",
        )
    _finish(axes, "ΔH of the step")
    caption = (
        f"Uncorrected, the steps would have changed entropy by {number(rows['predicted'].sum())} "
        f"in all to first order; {number(rows['asked'].sum())} was asked of them."
    )
    if "no_correction" in table:
        left = table["no_correction"].dropna()
        caption += f" {int((left > 0).sum())} of {len(left)} steps were not corrected."
    columns = ["step", "predicted", "asked", "lambda", "gain", "gain_se", "no_correction"]
    title = "What each step would have done, and was asked to do"
    return _panel(reading, "control_step", title, caption, rows, columns, figure)


def _measured_change(reading: Reading, rows: pd.DataFrame) -> pd.DataFrame | None:
    metrics = reading.metrics
    assert metrics is not None
    names = {"probe/change": "delta_h", "probe/change_se": "delta_h_se"}
    per_token = (reading.config.get("entropy_probe") or {}).get("functional", "per_token")
    if not {*names, "probe/trust"} <= set(metrics.columns) or per_token != "per_token":
        return None
    trusted = metrics[metrics["probe/trust"] == 1]  # the errors of others mean nothing
    measured = trusted[["step", *names]].rename(columns=names).dropna()
    measured = measured[measured["step"].isin(rows["step"])]
    return measured if len(measured) else None


_AMONG = {
    "touched_negative": "{} had a negative advantage",
    "touched_unlikely": "{} were less likely than the mean",
}


def _tokens(reading: Reading, table: pd.DataFrame, name: str) -> Panel | None:
    """Which tokens were touched, how much, how hard, and what it cost."""
    shown = [c for c in ("touched", "changed", "strength") if _known(table, c) is not None]
    cost = _cost(table)
    if not shown:
        return None
    figure, panels = canvas(150 * len(shown) + 40, len(shown), sharex=True)
    labels = {
        "touched": "share of tokens touched",
        "changed": "Σ|c' − c| / Σ|c|",
        "strength": "strength",
    }
    colours = {"touched": MEASURED, "changed": FALL, "strength": MUTED}
    for axes, column in zip(panels, shown, strict=True):
        rows = table.dropna(subset=[column])
        axes.plot(rows["step"], rows[column], color=colours[column].light)
        _finish(axes, labels[column], last=axes is panels[-1])
    sentences = []
    if "touched" in shown:
        parts = [words.format(_mean(table, c)) for c, words in _AMONG.items() if c in table]
        held = _known(table, "touched_entropy")
        if held is not None:
            parts.append(f"their mean entropy was {number(float(held['touched_entropy'].mean()))}")
        sentences.append(
            f"On average {name} touched {_mean(table, 'touched')} of the tokens"
            + (f"; of those {', '.join(parts)}." if parts else ".")
        )
    if "changed" in shown:
        sentences.append(f"It changed {_mean(table, 'changed')} of the weight.")
    if cost:
        sentences.append(cost)
    columns = ["step", *shown, *_AMONG, "touched_entropy", "seconds"]
    title = "What was changed, and what it cost"
    return _panel(reading, "control_tokens", title, " ".join(sentences), table, columns, figure)


def _cost(table: pd.DataFrame) -> str:
    rows = _known(table, "seconds")
    if rows is None:
        return ""
    sentence = f"The control took {number(float(rows['seconds'].mean()))} seconds per step"
    whole = _known(rows, "whole")
    if whole is None:
        return f"{sentence}."
    share = float(whole["seconds"].sum() / whole["whole"].sum())
    return f"{sentence}, {percent(share)} of the time of training."


def _mean(table: pd.DataFrame, column: str) -> str:
    return percent(float(table[column].dropna().mean()))


def _line(axes: Axes, rows: pd.DataFrame, column: str, label: str, colour: str) -> None:
    axes.plot(rows["step"], rows[column], color=colour, label=label)
    if f"{column}_se" in rows:
        half = rows[f"{column}_se"]
        low, high = rows[column] - half, rows[column] + half
        axes.fill_between(rows["step"], low, high, color=colour, alpha=0.16, linewidth=0)


def _finish(axes: Axes, label: str, last: bool = True) -> None:
    if last:
        axes.set_xlabel("training step")
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    grid(axes)
    if axes.get_legend_handles_labels()[0]:
        legend(axes, 3)


def _panel(
    reading: Reading,
    key: str,
    title: str,
    caption: str,
    rows: pd.DataFrame,
    columns: list[str],
    figure: Figure,
) -> Panel:
    data = rows[[c for c in columns if c in rows]]
    return Panel(key, title, caption, reading.training_source(), data, figure)
