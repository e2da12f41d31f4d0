"""The gates of the task `compose`: whether exploration is the bottleneck in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.compose_arms import ARMS
from studies.compose_outcomes import RESCUE, Outcome, Share, solved_share
from studies.control_study_rows import Interval, t_interval

Runs = Mapping[str, Sequence[Outcome]]


def by_arm(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by arm, in the order of `ARMS`."""
    names = {run.arm for run in outcomes}
    order = [*(name for name in ARMS if name in names), *sorted(names - {*ARMS})]
    return {name: [run for run in outcomes if run.arm == name] for name in order}


@dataclass(frozen=True)
class Gate:
    """A condition that the task has to meet, and what was measured.

    Attributes:
        name: g1 to g4.
        words: The condition.
        value: What was measured.
        low: Lower 95 % bound, NaN where there is none.
        high: Upper 95 % bound.
        least: The condition's lower bound.
        most: Its upper bound.
        n: Runs or bases.
    """

    name: str
    words: str
    value: float
    low: float
    high: float
    least: float
    most: float
    n: int

    @property
    def holds(self) -> bool:
        """Whether the value meets the condition."""
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        if math.isnan(self.low):
            return "–"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def verdict(self) -> str:
        """Whether it holds, and whether the interval says so too."""
        if math.isnan(self.low):
            return "not measured" if self.n == 0 else "too few for an interval"
        inside = self.least <= self.low and self.high <= self.most
        outside = self.high < self.least or self.low > self.most
        if inside or outside:
            return "holds" if inside else "FAILS"
        return f"{'holds' if self.holds else 'FAILS'}, undecided by its interval"


def gates(runs: Runs) -> list[Gate]:
    """The four gates.

    Args:
        runs: Outcomes by arm.

    Returns:
        g1 (two rows) over bases, the others over runs.
    """
    vanilla, rescued = runs.get("vanilla", []), runs.get("demonstrations", [])
    starts = {run.base: run.start for every in runs.values() for run in every}
    greedy, coverage = (
        t_interval([float(start[name] or 0.0) for start in starts.values()])
        for name in ("greedy", "pass_256")
    )
    late = [run for run in rescued if not run.solved_before_rescue]
    fall = falls(vanilla)
    return [
        _mean_gate("g1", "greedy on two maps, of bases, below .05", greedy, (-math.inf, 0.05)),
        _mean_gate("g1", "pass@256 on two maps, of bases, above .8", coverage, (0.8, math.inf)),
        _share_gate("g2", "vanilla solves 20–60 %", solved_share(vanilla), (0.2, 0.6)),
        _share_gate(
            "g3",
            f"of runs unsolved at step {RESCUE}, demonstrations rescue more than 90 %",
            solved_share(late),
            (0.9, 1.0),
        ),
        Gate(
            "g4",
            "P('>') on unsolved prompts falls tenfold before the median discovery (factor)",
            *(math.exp(x) for x in (fall.value, fall.low, fall.high)),
            least=10.0,
            most=math.inf,
            n=fall.n,
        ),
    ]


def _mean_gate(name: str, words: str, found: Interval, bounds: tuple[float, float]) -> Gate:
    return Gate(name, words, found.value, found.low, found.high, *bounds, n=found.n)


def _share_gate(name: str, words: str, found: Share, bounds: tuple[float, float]) -> Gate:
    if found.n == 0:
        return Gate(name, words, math.nan, math.nan, math.nan, *bounds, n=0)
    return Gate(name, words, found.value, *found.interval, *bounds, n=found.n)


def falls(vanilla: Sequence[Outcome]) -> Interval:
    """log of P('>') at the start over its lowest reading before the median discovery.

    A run that discovers earlier counts up to its own discovery. The median is over the runs that
    discover; without one the last step takes its place.

    Args:
        vanilla: Runs without a control.

    Returns:
        Mean over runs with its t interval.
    """
    found = [run.discovery for run in vanilla if run.discovery is not None]
    median = float(np.median(found)) if found else math.inf
    values = []
    for run in vanilla:
        end = min(median, math.inf if run.discovery is None else run.discovery)
        before = [p for step, p in run.strategy if step <= end]
        values.append(math.log(before[0] / max(min(before), 1e-12)))
    return t_interval(values)


def gate_table(outcomes: Sequence[Outcome]) -> str:
    """The gates as Markdown."""
    lines = ["| gate | condition | measured [95 %] | n | |", "|---|---|---|---|---|"]
    for gate in gates(by_arm(outcomes)):
        lines.append(f"| {gate.name} | {gate.words} | {gate} | {gate.n} | {gate.verdict} |")
    return "\n".join(lines)
