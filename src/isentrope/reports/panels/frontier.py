"""The frontier of a step: what every step of its length could do to entropy and reward (T14).

    (δH, δJ) = c + ρ (|g_H|_P cos(φ − α), |g_J|_P cos φ),     cos α = cos_P(g_J, g_H)

The step and controls of equal length are points in the ellipse; all changes are of first order, at
the training rate.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes

from isentrope.attribution.frontier.frontier import Frontier
from isentrope.attribution.frontier.places import Place
from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import (
    FALL,
    FIRST,
    INK,
    LINE,
    MARKERS,
    MEASURED,
    MUTED,
    REWARD,
    RISE,
    SECOND,
    Chart,
    Mark,
    Series,
)
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading
from isentrope.results.answers.blocks import has_interval, short
from isentrope.results.attributions import SHRUNK
from isentrope.results.results import MeasureResult, TrialResult

ANGLES = 200
"""Points of the edge that are drawn."""

HUES_OF_CONTROLS = (FIRST, SECOND, FALL, RISE, REWARD)
"""Of the page, where each has a dark shade. Five hues and six shapes make 30 different marks."""

SHAPES_OF_CONTROLS = MARKERS.replace("o", "").replace("P", "")
"""Those of the step and of momentum are taken."""


def step_frontier(reading: Reading) -> Iterator[Panel]:
    """The ellipse with the step, and with the controls where they were tried."""
    trial = reading.in_focus(TrialResult)
    measured = reading.in_focus(MeasureResult)
    places: dict[str, Place] = {}
    if trial is not None and trial.result.frontier is not None:
        frontier = trial.result.frontier
        rate = trial.result.eta
        source = trial.source
        for entry in trial.result.tried.values():
            if entry.place is not None and entry.control != SHRUNK:
                places[f"{entry.label} {entry.strength:.3g}"] = entry.place
    elif measured is not None and measured.result.frontier is not None:
        frontier = measured.result.frontier
        rate = measured.result.rate or math.nan
        source = measured.source
    else:
        return
    if not has_interval(frontier.reached) or math.isnan(rate):
        return
    numbers = {
        "r of the step": frontier.reached,
        "cosine of the gradients": frontier.cosine,
        "best ηδJ at no loss of entropy": frontier.best.scaled(rate),
        "ηδJ lost at the entropy of the step": frontier.lost.scaled(rate),
    }
    lead = (
        "Every change of the step that keeps its length is inside of the ellipse, to first order. "
        "Its centre is what momentum and decay do alone. The edge itself has an error."
    )
    chart = frontier_chart(frontier, rate, places)
    if not (has_interval(frontier.entropy) and has_interval(frontier.reward)):
        lead = f"The ellipse is not drawn. {' '.join(frontier.missing)}"
        chart = None
    yield Panel(
        source,
        "frontier",
        f"What any step of this length could do, at η = {short(rate)}",
        lead,
        chart,
        {name: number for name, number in numbers.items() if has_interval(number)},
    )


def frontier_chart(frontier: Frontier, rate: float, places: Mapping[str, Place]) -> Chart:
    """The figure of a frontier that is known.

    Args:
        frontier: Of the step.
        rate: η.
        places: Others of its length, by name.

    Returns:
        Entropy across, reward upwards.
    """

    def at(entropy: Estimate, reward: Estimate) -> tuple[list[Estimate], list[Estimate]]:
        return [entropy.scaled(rate)], [reward.scaled(rate)]

    marks: list[Mark] = [_edge(frontier, rate)]
    centre = at(frontier.centre_entropy, frontier.centre_reward)
    marks.append(Series("momentum and decay", MUTED, *centre, "P"))
    by_control: dict[str, list[Place]] = {}
    for name, place in places.items():
        by_control.setdefault(name.rpartition(" ")[0], []).append(place)
    for k, (name, several) in enumerate(by_control.items()):
        x = [place.entropy.scaled(rate) for place in several]
        y = [place.reward.scaled(rate) for place in several]
        style = {"elinewidth": 0.6, "capsize": 0}
        shape = SHAPES_OF_CONTROLS[k % len(SHAPES_OF_CONTROLS)]
        marks.append(Series(name, HUES_OF_CONTROLS[k % len(HUES_OF_CONTROLS)], x, y, shape, style))
    step = at(frontier.entropy, frontier.reward)
    marks.append(Series("the step", MEASURED, *step, "o", {"ms": 7}))
    unit = frontier.entropy.unit.removesuffix(" per η")
    return Chart(f"ηδH ({unit})", {"ηδJ (reward)": marks}, 380)


def _edge(frontier: Frontier, rate: float) -> Mark:
    """The ellipse, filled so faintly that points are seen on it."""
    turn = np.linspace(0, 2 * math.pi, ANGLES)
    angle = math.acos(max(-1.0, min(1.0, frontier.cosine.value)))
    entropy = frontier.centre_entropy.value + frontier.entropy_reach.value * np.cos(turn - angle)
    reward = frontier.centre_reward.value + frontier.reward_reach.value * np.cos(turn)

    def draw(axes: Axes) -> None:
        axes.fill(rate * entropy, rate * reward, color=LINE, alpha=0.5, linewidth=0)
        axes.plot(rate * entropy, rate * reward, color=INK, linewidth=1.2, label="the edge")

    return draw
