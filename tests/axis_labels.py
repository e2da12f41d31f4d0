"""Labels of axes that leave the unit open, and classes that are told apart by hue alone."""

import ast
import re
from itertools import combinations

from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from isentrope.reports import drawing

UNIT = re.compile(r"(\(|, )(nats|reward|prompts|seconds|tokens)\b")
"""A unit in brackets, or after a comma."""

RATIO = re.compile(r"[÷/]")

WITHOUT_UNIT = {
    "batch, in order of its estimate",
    "coverage",
    "cosine of two responses' gradients",
    "effective rank",
    "expected reward",
    "k",
    "k̂",
    "learning rate η",
    "mean reward of the cluster",
    "pass@1",
    "pass@k",
    "prompt groups in the batch",
    "rank correlation",
    "rank correlation with δH",
    "rank of the eigenvalue",
    "reward",
    "rms cosine",
    "step",
    "training step",
    "η",
}
"""Words for numbers without a unit, and counts that name what is counted."""

COUNTED = re.compile(r"share of|overlap of|response( |$)|fresh response")
"""Beginnings of others: a share of what, and which response of a picture."""


def lacks_unit(label):
    """Whether a label says neither the unit nor that there is none."""
    if label in WITHOUT_UNIT or COUNTED.match(label):
        return False
    return not (UNIT.search(label) or RATIO.search(label))


def unlabelled(figure):
    """Labels of a figure's axes that lack a unit; "" where there is no label at all."""
    for axes in figure.axes:
        bottom = axes.get_subplotspec().is_last_row()
        ticks = [text.get_text() for text in axes.get_yticklabels()]
        named = any(map(str.isalpha, "".join(ticks)))  # bars
        labels = [axes.get_xlabel()] * bottom + [axes.get_ylabel()] * (not named)
        yield from filter(lacks_unit, labels)


def told_by_hue(figure):
    """Pairs of names in a legend that differ by nothing but the hue of what they name."""
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        lines = [handle[0] if isinstance(handle, tuple) else handle for handle in handles]
        drawn = [pair for pair in zip(lines, names, strict=True) if isinstance(pair[0], Line2D)]
        for (one, first), (two, second) in combinations(drawn, 2):
            if shape(one) == shape(two) and one.get_color() != two.get_color():
                yield first, second


def shape(line):
    """What distinguishes a line or its points without its hue."""
    hollow = to_hex(line.get_markerfacecolor()) == drawing.PAPER
    dashes = str(line._unscaled_dash_pattern)
    return line.get_marker(), line.get_linestyle(), dashes, hollow


NAMES = {"xlabel", "ylabel"}


def written_labels(source):
    """Labels of axes that a script gives as text; what is put into one is left out."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        texts = [word.value for word in call.keywords if word.arg in NAMES]
        texts += [w.value for w in call.keywords if name == "colorbar" and w.arg == "label"]
        texts += call.args[:1] if name in ("set_xlabel", "set_ylabel") else []
        for text in texts:
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            words = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
            if words:
                yield "".join(words)
