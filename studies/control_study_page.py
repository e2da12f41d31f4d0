"""The page of the control study: a table and a paragraph per task, and a figure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import numpy as np

from studies.control_study_rows import (
    FAMILY,
    FEWEST,
    METRICS,
    Content,
    Row,
    law_residual,
    reading,
    rows_of,
    wilson,
)
from validation.origin import write_results


def table(task: str, rows: Sequence[Row]) -> str:
    """The rows of a task as Markdown."""
    names = list(METRICS[task])
    long = task == "shortcut"
    head = ["control", "strength", "seeds", "steps", "tokens", "h", *names, "above the law"]
    head += ["ends long"] if long else []
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        of_vanilla = row.control == "vanilla"
        values = [
            _number(row.mean(metric)) if of_vanilla else str(row.differences[name])
            for name, metric in METRICS[task].items()
        ]
        tokens = row.mean(lambda c: c.get("tokens"))
        cost = "–" if math.isnan(tokens) else f"{tokens / 1000:.0f}k"
        h = f"{row.mean(reading('entropy')):.3f}"
        steps = row.mean(lambda c: c.get("steps"))
        taken = "–" if math.isnan(steps) else f"{steps:.0f}"
        line = [row.control, f"{row.strength:g}", str(len(row.cells)), taken, cost, h, *values]
        line += [str(row.residual)] + ([ends_long(row)] if long else [])
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def ends_long(row: Row) -> str:
    """Runs that end with more than half of "long", with the Wilson interval of their share."""
    shares = [s for c in row.cells if (s := reading("long")(c)) is not None]
    if not shares:
        return "–"
    found = sum(s > 0.5 for s in shares)
    low, high = wilson(found, len(shares))
    return f"{found}/{len(shares)} [{low:.2f}, {high:.2f}]"


def paragraph(task: str, rows: Sequence[Row]) -> str:
    """What the numbers say of a task; settings without intervals are counted, not judged."""
    others = [row for row in rows if row.control not in ("vanilla", "earlier_stop", "temperature")]
    judged = [row for row in others if row.differences["pass@1"].n >= FEWEST]
    if not judged:
        return f"No setting has {FEWEST} seeds yet: there is nothing to say."
    parts = []
    for name in METRICS[task]:
        for sign, word in ((1, "above"), (-1, "below")):
            found = [_named(row) for row in judged if row.differences[name].sign == sign]
            if found:
                parts.append(f"{name} is {word} vanilla's for {', '.join(found)}")
    parts += [_beaten(name, row, rows) for name in METRICS[task] for row in judged]
    parts = [part for part in parts if part]
    left = [_named(row) for row in judged if row.residual.sign == 1]
    parts += [f"pass@1 is above the law of vanilla runs for {', '.join(left)}"] if left else []
    failed = sum(not c["readings"] for row in others for c in row.cells)
    parts += [f"{failed} runs ended without a reading"] if failed else []
    same = sum(all(d.sign == 0 for d in row.differences.values()) for row in judged)
    parts.append(f"{same} of {len(judged)} settings differ from vanilla in nothing")
    (vanilla,) = [row for row in rows if row.control == "vanilla"]
    parts += [_ended(row, vanilla) for row in others if row.fewer_tokens(vanilla)]
    text = f"By 95 % intervals of paired differences: {'; '.join(parts)}."
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _beaten(name: str, row: Row, rows: Sequence[Row]) -> str:
    """Whether an earlier stop or another temperature of vanilla gains as much; empty if not."""
    own = row.differences[name]
    plain = [r for r in rows if r.control in ("earlier_stop", "temperature")]
    best = max(plain, key=lambda r: r.differences[name].value, default=None)
    if own.sign < 1 or best is None or not best.differences[name].value >= own.value:
        return ""
    gained = f"{_named(best)} without a control ({best.differences[name]})"
    return f"{name} of {_named(row)} ({own}) is not above that of {gained}"


def _ended(row: Row, vanilla: Row) -> str:
    short = row.fewer_tokens(vanilla)
    seeds = {c["seed"] for c in row.cells}
    same = [c for c in vanilla.cells if c["seed"] in seeds]
    tokens = [np.mean([c["tokens"] for c in of]) / 1000 for of in (row.cells, same)]
    return (
        f"{_named(row)} is NOT at equal tokens: {len(short)} of {len(row.cells)} seeds end before "
        f"95 % of vanilla's ({tokens[0]:.0f}k of {tokens[1]:.0f}k on average)"
    )


def start(reading: Mapping[str, float] | None) -> str:
    """A sentence on the model that all runs of a task start from."""
    if reading is None:
        return ""
    shown = {"h": "entropy", "pass@1": "pass_1", "coverage": "coverage"}
    words = [f"{name} {reading[k]:.3f}" for name, k in shown.items() if reading[k] is not None]
    return f"All runs start from {', '.join(words[:-1])} and {words[-1]}.\n\n"


HELD = 0.75
"""Least share of the entropy at the start that a run which was to hold it ends with."""


def not_held(begun: Mapping[str, float] | None, rows: Sequence[Row]) -> str:
    """A sentence on isentropic runs that did not hold the entropy; "" where they did."""
    if begun is None:
        return ""
    ends = [
        (row, row.mean(reading("entropy")))
        for row in rows
        if row.control in ("isentropic", "budget")
    ]
    lost = [(row, h) for row, h in ends if h < HELD * begun["entropy"]]
    sentences = [
        f"{_named(row)} was to hold h, and did not: it ends at {h:.3f}. Its row is no evidence for "
        "or against holding entropy."
        for row, h in lost
    ]
    return "".join(f"{textwrap.fill(sentence, 100)}\n\n" for sentence in sentences)


def _named(row: Row) -> str:
    return f"{row.control} {row.strength:g}"


def figure(tasks: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Per task: pass@1 against coverage or pass@64, and entropy with the law of vanilla runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shape = {"squeeze": False, "layout": "constrained", "figsize": (9, 3.4 * len(tasks))}
    drawing, axes = plt.subplots(len(tasks), 2, **shape)
    names = sorted({row.control for rows in tasks.values() for row in rows})
    colors = {name: f"C{i % 10}" for i, name in enumerate(names)}
    marks = {name: "osD^v<>PX*hd8p"[i % 14] for i, name in enumerate(names)}
    for (task, rows), (left, right) in zip(tasks.items(), axes, strict=True):
        kept = "coverage" if "coverage" in METRICS[task] else "pass_64"
        for name in names:
            own = [row for row in rows if row.control == name]
            style = {"color": colors[name], "marker": marks[name], "ms": 4, "lw": 0.8}
            high = [row.mean(reading(kept)) for row in own]
            at_one = [row.mean(reading("pass_1")) for row in own]
            left.plot(at_one, high, label=name, **style)
            right.plot([row.mean(reading("entropy")) for row in own], at_one, **style)
        family = [c for row in rows for c in row.cells if c["control"] in FAMILY]
        _, (a, b) = law_residual(family, family)
        if not math.isnan(a):
            low, high = right.get_xlim()
            h = np.linspace(low, high, 50)
            right.plot(h, b - a * np.exp(h), "k:", lw=1, label="vanilla's law")
        left.set(title=task, xlabel="pass@1", ylabel=kept.replace("_", "@"))
        right.set(title=task, xlabel="entropy h, nats per token", ylabel="pass@1")
        low, high = left.get_ylim()
        left.set_ylim(bottom=min(low, high - 0.1))  # equal values stay equal
        right.set_ylim(bottom=max(right.get_ylim()[0], 0.0))
    axes[0, 0].legend(fontsize=6, frameon=False)
    drawing.savefig(path, dpi=150)
    plt.close(drawing)


def write_page(
    cells: Sequence[Content], folder: Path, starts: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """Write control_study.md and its figure.

    Args:
        cells: Contents of the files of cells.
        folder: Where to write.
        starts: What was read of the fine-tuned model, by task.

    Returns:
        The text of the page.

    Raises:
        ValueError: If there is no cell.
    """
    if not cells:
        raise ValueError("There is no cell to make a page of: run the study first.")
    tasks = {t: rows_of(t, cells) for t in METRICS if any(c["task"] == t for c in cells)}
    figure(tasks, folder / "control_study.png")
    begun = starts or {}
    parts = [
        f"## {task}\n\n{start(begun.get(task))}{paragraph(task, rows)}\n\n"
        f"{not_held(begun.get(task), rows)}{table(task, rows)}"
        for task, rows in tasks.items()
    ]
    text = TEMPLATE.format(today=date.today(), runs=len(cells), parts="\n\n".join(parts))
    write_results(folder / "control_study.md", text)
    return text


TEMPLATE = """# What each control is worth

`python -m studies.control_study`, then `--table`; {today}, {runs} runs of the toy.

What went against the isentropic step first: on no task is its pass@1 as high as vanilla's, and on
`shortcut` it does not hold its target (h falls from .188 to .087), so that row is no evidence on
holding entropy. On `countdown` its gain of pass@64 is smaller than that of vanilla stopped at a
quarter of the tokens. On `relay` it learns the new rule more slowly. What it gains is on `split`:
coverage, and pass@64 on prompts that forbid a digit, of which pass@1 is lower. These prompts were
read at T = 1 alone, so it is not known whether a higher temperature of vanilla would do the same.

All runs of a seed have the same prompts and uniforms. They are compared at equally many generated
tokens, those that a control samples for itself included, at the nearest checkpoint, one in five
steps; where a run ended before, the table has its end, and the paragraph of the task says so. Equal
tokens are not equal steps (column "steps"): groups whose rewards are all equal are redrawn, which
takes most of the tokens of a run that answers nearly everything.

The row of vanilla gives means; the other rows give differences to vanilla of the same seed, with
95 % t intervals over seeds, and no interval below three seeds. Held-out prompts; h in nats per
token; pass@64 is unbiased. "best T" is pass@64 at the best of the temperatures evaluated, of
control and vanilla alike, so it says whether a higher temperature would do the same. "above the
law" is pass@1 minus b − a e^h, fitted to vanilla at several learning rates and stops, with a
bootstrap interval over seeds; where h is above that of all these runs, the law is extrapolated and
the excess is no effect. "coverage" is the share of the distinct correct answers that are found,
"forbidden" pass@1 and "forbidden@64" pass@64 on prompts that forbid a digit of the answer, which
are rare among the demonstrations. Settings were fixed before the runs; many intervals are compared,
and one in twenty leaves out 0 by chance.

{parts}

![pass@1 against coverage or pass@64, and entropy](control_study.png)
"""
