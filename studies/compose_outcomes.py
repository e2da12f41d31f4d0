"""What came of a run on `compose`, and the statistics of paired runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from studies.control_study_rows import wilson

SOLVED = 0.5
"""A run is solved when greedy decoding of more than this share of two maps is accepted."""
RESCUE = 60
"""The step at which the demonstrations begin."""


@dataclass(frozen=True)
class Outcome:
    """The numbers of a run that the page needs.

    Attributes:
        arm: Its name.
        base: Seed of the base.
        seed: Of the run.
        steps: Optimizer steps.
        solved: Whether the last reading is solved.
        discovery: Step of the first reading that is solved; None if none is.
        start: Reading of the base, by name.
        end: The last reading, by name.
        strategy: (step, P('>') on unsolved prompts) of the readings that have one.
        entropy: Nats per response, mean over ten steps from step 0, 50 and from ten before the end.
        tokens: Generated tokens per response, mean over the run.
        seconds: Of processor time.
        away: Means of |h/h* − 1| and of h/h* − 1 of the responses drawn from step 60 on; None
            without a target.
        unsolved: P(first result right) and P(accepted) at step 60, on two maps; None in runs that
            are solved by then.
    """

    arm: str
    base: int
    seed: int
    steps: int
    solved: bool
    discovery: int | None
    start: Mapping[str, float | None]
    end: Mapping[str, float | None]
    strategy: Sequence[tuple[int, float]]
    entropy: tuple[float, float, float]
    tokens: float
    seconds: float
    away: tuple[float, float] | None = None
    unsolved: tuple[float, float] | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """Base and seed."""
        return self.base, self.seed

    @property
    def solved_before_rescue(self) -> bool:
        """Whether the demonstrations came too late to be needed."""
        return self.discovery is not None and self.discovery <= RESCUE

    def strategy_at(self, step: int) -> float | None:
        """P('>') on unsolved prompts at a reading; None where there is none."""
        return dict(self.strategy).get(step)


def outcome(content: Mapping[str, Any]) -> Outcome:
    """The outcome of the content of a cell's file."""
    readings, steps = content["readings"], content["steps"]
    entropy = steps["entropy_response"]
    places = (0, min(RESCUE, len(entropy)) - 10, len(entropy) - 10)
    return Outcome(
        arm=content["arm"],
        base=content["base"],
        seed=content["seed"],
        steps=readings[-1]["step"],
        solved=readings[-1]["greedy"] > SOLVED,
        discovery=next((r["step"] for r in readings if r["greedy"] > SOLVED), None),
        start={k: v for k, v in readings[0].items() if k != "step"},
        end={k: v for k, v in readings[-1].items() if k != "step"},
        strategy=[
            (r["step"], r["strategy_unsolved"])
            for r in readings
            if r["strategy_unsolved"] is not None
        ],
        entropy=tuple(float(np.mean(entropy[max(i, 0) :][:10])) for i in places),  # type: ignore
        tokens=float(np.mean(steps["length"])),
        seconds=content["seconds"],
        away=_away(steps),
        unsolved=next(
            (
                (r["first"], r["composed"])
                for r in readings
                if r["step"] == RESCUE and r["greedy"] <= SOLVED
            ),
            None,
        ),
    )


def _away(steps: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    """The mean distance of a budget from its target, as a share of it, and with its sign."""
    if "target" not in steps:
        return None
    drawn, target = (np.array(steps[name][RESCUE:]) for name in ("entropy_drawn", "target"))
    away = drawn / target - 1
    return float(np.abs(away).mean()), float(away.mean())


STARTS = ("greedy", "pass_256")
ENDS = ("single_greedy", "single", "composed_cold")


def record(outcomes: Sequence[Outcome]) -> str:
    """What the page is made of, as JSON: one row per run, four digits.

    Args:
        outcomes: Of all runs.

    Returns:
        The text. P('>') at every reading is of vanilla alone, whose fall is a gate; of the others
        it is that of step 60.
    """
    named = {
        "start": {run.base: [run.start.get(name) for name in STARTS] for run in outcomes},
        "of start": STARTS,
        "of run": ["arm", "base", "seed", "steps", "solved", "discovery", *ENDS, "entropy"],
    }
    named["of run"] += [f"strategy, step {RESCUE}", "unsolved", "away", "seconds", "strategy"]
    named["runs"] = [
        [
            *(run.arm, run.base, run.seed, run.steps, int(run.solved), run.discovery),
            *(run.end.get(name) for name in ENDS),
            *(run.entropy, run.strategy_at(RESCUE), run.unsolved, run.away, run.seconds),
            run.strategy if run.arm == "vanilla" else None,
        ]
        for run in outcomes
    ]
    content = json.loads(json.dumps(named), parse_float=lambda x: float(f"{float(x):.4g}"))
    return json.dumps(content, separators=(",", ":")).replace('],["', '],\n["') + "\n"


@dataclass(frozen=True)
class Share:
    """A share with its 95 % Wilson interval."""

    count: int
    n: int

    @property
    def value(self) -> float:
        """The share."""
        return self.count / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bounds."""
        return wilson(self.count, self.n)

    def __str__(self) -> str:
        if self.n == 0:
            return "–"
        low, high = self.interval
        return f"{self.count}/{self.n} = {self.value:.2f} [{low:.2f}, {high:.2f}]"


def solved_share(runs: Sequence[Outcome]) -> Share:
    """How many runs are solved."""
    return Share(sum(run.solved for run in runs), len(runs))


@dataclass(frozen=True)
class Paired:
    """Two arms on the same pairs.

    Attributes:
        both: Pairs that both solve.
        first: Pairs that only the first solves.
        second: Pairs that only the second solves.
        neither: Pairs that neither solves.
    """

    both: int
    first: int
    second: int
    neither: int

    @property
    def n(self) -> int:
        """Pairs."""
        return self.both + self.first + self.second + self.neither

    @property
    def difference(self) -> float:
        """Share solved by the first minus that of the second."""
        return (self.first - self.second) / self.n

    @property
    def p(self) -> float:
        """Of the exact McNemar test, two-sided; 1 where no pair differs."""
        differing = self.first + self.second
        return float(stats.binomtest(self.first, differing).pvalue) if differing else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bounds of the difference: Newcombe's hybrid score interval of paired shares.

        Source: Newcombe 1998, Statistics in Medicine 17, 2635–2650, method 10, which takes the
        correlation from the table with a continuity correction where it is positive.
        """
        n, one, two = self.n, self.both + self.first, self.both + self.second
        (low_1, high_1), (low_2, high_2) = wilson(one, n), wilson(two, n)
        p_1, p_2 = one / n, two / n
        margins = one * (n - one) * two * (n - two)
        cross = self.both * self.neither - self.first * self.second
        if cross > 0:
            cross = max(cross - n / 2, 0.0)
        phi = cross / math.sqrt(margins) if margins else 0.0

        def half(a: float, b: float) -> float:
            return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

        return (
            self.difference - half(p_1 - low_1, high_2 - p_2),
            self.difference + half(high_1 - p_1, p_2 - low_2),
        )


def compare(first: Sequence[Outcome], second: Sequence[Outcome]) -> Paired:
    """Count the pairs that two arms have in common.

    Args:
        first: Runs of one arm.
        second: Runs of the other.

    Returns:
        The counts.
    """
    other = {run.pair: run.solved for run in second}
    pairs = [(run.solved, other[run.pair]) for run in first if run.pair in other]
    counts = [pairs.count(kind) for kind in ((True, True), (True, False), (False, True))]
    return Paired(*counts, neither=pairs.count((False, False)))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values of a family of tests."""
    adjusted, largest = {}, 0.0
    for place, (name, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(values) - place) * p))
        adjusted[name] = largest
    return adjusted
