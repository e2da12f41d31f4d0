"""The page of the study on `compose`: gates, then the arms, written from the outcomes."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np

from studies.compose_arms import ARMS, UPPER_BOUNDS
from studies.compose_outcomes import (
    RESCUE,
    Outcome,
    Paired,
    Share,
    compare,
    holm,
    solved_share,
)
from studies.control_study_rows import Interval, t_interval

FEWEST_PAIRS = 24
"""Pairs from which on arms are judged."""
Runs = Mapping[str, Sequence[Outcome]]


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

    @property
    def verdict(self) -> str:
        """Whether it holds, and whether the interval says so too."""
        if self.n == 0 or math.isnan(self.value):
            return "not measured"
        if math.isnan(self.low):
            return f"{'holds' if self.holds else 'FAILS'}, no interval"
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
        bounds = "" if math.isnan(gate.low) else f" [{gate.low:.3g}, {gate.high:.3g}]"
        value = "–" if math.isnan(gate.value) else f"{gate.value:.3g}{bounds}"
        lines.append(f"| {gate.name} | {gate.words} | {value} | {gate.n} | {gate.verdict} |")
    return "\n".join(lines)


def by_arm(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by arm, in the order of `ARMS`."""
    names = {run.arm for run in outcomes}
    order = [*(name for name in ARMS if name in names), *sorted(names - {*ARMS})]
    return {name: [run for run in outcomes if run.arm == name] for name in order}


@dataclass(frozen=True)
class Row:
    """An arm beside vanilla.

    Attributes:
        arm: Its name.
        runs: Its outcomes.
        paired: The pairs that it has in common with vanilla.
        adjusted: Holm's p; None for vanilla, upper bounds, and arms of too few pairs.
    """

    arm: str
    runs: Sequence[Outcome]
    paired: Paired
    adjusted: float | None

    @property
    def judged(self) -> bool:
        """Whether there are enough pairs to say something."""
        return self.paired.n >= FEWEST_PAIRS


def rows(runs: Runs) -> list[Row]:
    """One row per arm; the tests of all judged arms but the upper bounds are one family."""
    paired = {arm: compare(own, runs.get("vanilla", [])) for arm, own in runs.items()}
    family = {
        arm: found.p
        for arm, found in paired.items()
        if arm not in ("vanilla", *UPPER_BOUNDS) and found.n >= FEWEST_PAIRS
    }
    adjusted = holm(family)
    return [Row(arm, own, paired[arm], adjusted.get(arm)) for arm, own in runs.items()]


def first_table(found: Sequence[Row]) -> str:
    """The primary reading."""
    lines = [
        "| arm | solved [95 %] | only this, only vanilla | difference [95 %] | p | Holm |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
        line = [row.arm, str(solved_share(row.runs))]
        if row.arm == "vanilla" or row.paired.n == 0:
            line += ["–"] * 4
        else:
            low, high = row.paired.interval
            line += [f"{row.paired.first}, {row.paired.second}"]
            line += [f"{row.paired.difference:+.2f} [{low:+.2f}, {high:+.2f}]"]
            line += [f"{row.paired.p:.3f}", "–" if row.adjusted is None else f"{row.adjusted:.3f}"]
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


Metric = Callable[[Outcome], float | None]
SECOND: dict[str, Metric] = {
    "steps to discovery": lambda run: float(run.steps if run.discovery is None else run.discovery),
    "one map, greedy": lambda run: run.end["single_greedy"],
    "one map, T = 1": lambda run: run.end["single"],
    "two maps, T = .4": lambda run: run.end["composed_cold"],
    f"nats per response, step {RESCUE}": lambda run: run.entropy[1],
    "at the end": lambda run: run.entropy[2],
    f"log10 P('>'), step {RESCUE}": lambda run: _log10(run.strategy_at(RESCUE)),
}
"""Secondary readings; P('>') is on unsolved prompts."""


def _log10(value: float | None) -> float | None:
    return None if value is None else math.log10(max(value, 1e-12))


def _mean(runs: Sequence[Outcome], metric: Metric) -> Interval:
    return t_interval([x for run in runs if (x := metric(run)) is not None])


def second_table(found: Sequence[Row]) -> str:
    """The secondary readings, means over runs."""
    lines = [f"| arm | {' | '.join(SECOND)} |", "|---" * (1 + len(SECOND)) + "|"]
    for row in found:
        values = [_mean(row.runs, metric) for metric in SECOND.values()]
        lines.append(f"| {row.arm} | {' | '.join(_shown(value) for value in values)} |")
    return "\n".join(lines)


def _shown(value: Interval) -> str:
    if value.n == 0:
        return "–"
    digits = 0 if abs(value.value) >= 10 else 2
    half = "" if math.isnan(value.low) else f" ± {value.high - value.value:.{digits}f}"
    return f"{value.value:.{digits}f}{half}"


def against(found: Sequence[Row], conditions: Sequence[Gate]) -> str:
    """What speaks against the task and against controls of entropy, in sentences."""
    judged = [row for row in found if row.judged and row.arm not in ("vanilla", *UPPER_BOUNDS)]
    bounds = [row for row in found if row.judged and row.arm in UPPER_BOUNDS]
    parts = [
        f"Gate {gate.name} is not met ({gate.words}: {gate.value:.3g})."
        for gate in conditions
        if gate.n and not gate.holds
    ]
    waiting = [row.arm for row in found if not row.judged]
    if waiting:
        parts.append(
            f"Fewer than {FEWEST_PAIRS} pairs, so nothing is said of them: {', '.join(waiting)}."
        )
    sure = [row for row in judged if row.adjusted is not None and row.adjusted < 0.05]
    worse = [row for row in sure if row.paired.difference < 0]
    better = [row for row in sure if row.paired.difference > 0]
    open_ = [row for row in judged if row not in sure]
    if judged and not better:
        parts.append("No arm that a user could run solves more runs than vanilla (Holm, .05).")
    if worse:
        parts.append(f"Worse than vanilla: {_named(worse)}.")
    if open_:
        parts.append(f"Not distinguishable from vanilla: {_named(open_)}.")
    if better:
        parts.append(f"Better than vanilla: {_named(better)}.")
    if bounds:
        parts.append(f"Upper bounds, beside vanilla and outside the family: {_named(bounds)}.")
    return textwrap.fill(" ".join(parts), 100, break_long_words=False, break_on_hyphens=False)


def _named(found: Sequence[Row]) -> str:
    names = []
    for row in found:
        low, high = row.paired.interval
        names.append(f"{row.arm} ({row.paired.difference:+.2f} [{low:+.2f}, {high:+.2f}])")
    return ", ".join(names)


def write_page(outcomes: Sequence[Outcome], folder: Path) -> str:
    """Write compose.md, and the outcomes into compose.json.

    Args:
        outcomes: Of the cells that are there.
        folder: Where to write.

    Returns:
        The text of the page.

    Raises:
        ValueError: If there is no run of vanilla.
    """
    runs = by_arm(outcomes)
    if not runs.get("vanilla"):
        raise ValueError("There is no run of vanilla to compare with: run the study first.")
    found = rows(runs)
    text = TEMPLATE.format(
        today=date.today(),
        runs=len(outcomes),
        pairs=min(len(own) for own in runs.values()),
        bases=len({run.base for run in outcomes}),
        seconds=float(np.median([run.seconds for run in outcomes])),
        against=against(found, gates(runs)),
        gates=gate_table(outcomes),
        first=first_table(found),
        second=second_table(found),
    )
    (folder / "compose.md").write_text(text, encoding="utf-8")
    content = [asdict(run) for run in outcomes]
    (folder / "compose.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    return text


TEMPLATE = """# What holding entropy buys where exploration is the bottleneck

`python -m studies.compose_study`, then `--page`; {today}, {runs} runs of {bases} bases, {pairs}
pairs in every arm, {seconds:.1f} s per run on one core.

{against}

The design, with its calibration on other seeds, was written before the first run
([studies/compose_design.md](../../studies/compose_design.md)).

## The task, measured

A prompt has one map of three digits or two, and an accepted response to two maps is a chain of both
results. Fine-tuning teaches the maps and the links of chains but answers two maps with the first
alone, so RL has to discover one token, '>' after the first result. Demonstrations with one map too
many are punished by RL, which lowers '>' everywhere: discovery is a race. All accuracies are exact,
by teacher forcing on held-out prompts.

{gates}

## Does an arm solve more runs?

A run is solved when greedy decoding of more than half of the held-out prompts of two maps is
accepted at the last step. Arms are compared with vanilla of the same base and seed: exact McNemar
test, Newcombe's interval of a paired difference, Holm's correction over all arms but the upper
bounds. No interval of the table is corrected.

{first}

## What else changed

Means over runs with 95 % t intervals. Steps to discovery count the last step where there is none;
half_rate takes twice the steps. P('>') is on prompts that are not solved, so it has fewer runs.

{second}
"""
