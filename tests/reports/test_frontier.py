"""The ellipse of the frontier on the page, with the step and the controls that were tried."""

import numpy as np
import pytest

from isentrope.reports import drawing
from isentrope.reports.panels.frontier import step_frontier
from isentrope.reports.read_run import read_run
from tests.reports.made_up import estimate, head, measure, write

RATE = 1e-3
"""η of the step, in the made-up results."""
REWARD = "reward per η"
NUMBERS = {
    "reward_reach": (20.0, REWARD),
    "entropy_reach": (8.0, "nats per token per η"),
    "cosine": (-0.6, "cosine"),
    "centre_reward": (1.0, REWARD),
    "centre_entropy": (-0.5, "nats per token per η"),
    "reward": (9.0, REWARD),
    "entropy": (-3.0, "nats per token per η"),
    "best": (16.0, REWARD),
    "best_at_step": (19.0, REWARD),
    "lost": (10.0, REWARD),
    "reward_for_a_nat": (1.5, "reward per nat per token"),
    "reached": (0.5, "share"),
}
CONTROLS = [("clip_cov", 1.0), ("clip_cov", 2.0), *((f"examples/a.py:C{k}", 1.0) for k in range(9))]


def edge(interval=True):
    numbers = {
        name: estimate(value, unit=unit, interval=interval)
        for name, (value, unit) in NUMBERS.items()
    }
    return {"length": 30.0, "missing": [], **numbers}


def tried(control, strength, k):
    over = {
        f"{name}_over_plain": estimate(0.01, unit=unit)
        for name, unit in (("reached", "net share"), ("lost", REWARD))
    }
    place = {name: edge()[name] for name in ("reached", "reward", "lost")}
    place |= {"length": 0.9, "entropy": estimate(-3.0 + k / 10, unit="nats per token per η")}
    part = {"delta_h": estimate(-2e-3), "delta_j": estimate(8e-3, unit="reward")}
    return {"control": control, "strength": strength, "step": part, "gradient": part} | {
        "place": place | over
    }


def trial():
    entries = {f"{name}@{s:g}": tried(name, s, k) for k, (name, s) in enumerate(CONTROLS)}
    entries["shrunk_step@0.5"] = tried("shrunk_step", 0.5, 0)
    part = {"delta_h": estimate(-3e-3), "delta_j": estimate(9e-3, unit="reward")}
    return head("try", "step_8") | {
        "eta": RATE,
        "vanilla": {"step": part, "gradient": part},
        "tried": entries,
        "frontier": edge(),
    }


def drawn(folder):
    (panel,) = step_frontier(read_run(folder))
    return panel, panel.drawn.figure().axes[0]


def points(axes):
    """By name: colour, marker and place."""
    handles, labels = axes.get_legend_handles_labels()
    lines = {x: handle[0] for x, handle in zip(labels, handles, strict=True) if x != "the edge"}
    return {
        name: (line.get_color(), line.get_marker(), line.get_xydata())
        for name, line in lines.items()
    }


def test_the_ellipse_and_the_step_are_of_the_changes_at_the_rate(tmp_path):
    write(tmp_path, "measure", "step_8", measure(frontier=edge()))
    panel, axes = drawn(tmp_path)
    outline = next(line for line in axes.lines if line.get_label() == "the edge")
    entropy, reward = outline.get_xydata().T
    x, y = (entropy / RATE + 0.5) / 8, (reward / RATE - 1.0) / 20
    np.testing.assert_allclose(x**2 + 1.2 * x * y + y**2, 1 - 0.6**2)
    assert points(axes)["the step"][2].tolist() == pytest.approx(np.array([[-3e-3, 9e-3]]))
    assert axes.get_xlabel() == "ηδH (nats per token)"
    assert panel.numbers["ηδJ lost at the entropy of the step"].value == pytest.approx(10 * RATE)


def test_controls_are_told_apart_by_colours_that_have_a_dark_shade(tmp_path):
    write(tmp_path, "try", "step_8", trial())
    marks = points(drawn(tmp_path)[1])
    assert len(marks) == 2 + 10  # the step, momentum and decay; a control's strengths are one mark
    assert "shrunk_step" not in marks
    assert len(marks["clip_cov"][2]) == 2
    light = {shade for shade, _ in drawing.COLOURS.values()}
    assert {colour for colour, _, _ in marks.values()} <= light
    assert len({(colour, marker) for colour, marker, _ in marks.values()}) == len(marks)


def test_a_frontier_without_an_interval_is_not_drawn(tmp_path):
    write(tmp_path, "measure", "step_8", measure(frontier=edge(interval=False)))
    assert list(step_frontier(read_run(tmp_path))) == []


def test_without_intervals_of_the_changes_a_sentence_stands_in_place_of_the_ellipse(tmp_path):
    numbers = edge() | {"missing": ["From 64 prompts … 128 would do."]}
    for name in ("reward", "entropy", "centre_reward", "centre_entropy"):
        numbers[name] = edge(interval=False)[name]
    write(tmp_path, "measure", "step_8", measure(frontier=numbers))
    (panel,) = step_frontier(read_run(tmp_path))
    assert panel.drawn is None
    assert "128 would do" in panel.caption
    assert "r of the step" in panel.caption
