"""The page of the study on `compose`: gates, then the arms, written from the outcomes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from scipy import stats

from studies.compose_arms import UPPER_BOUNDS
from studies.compose_gates import Gate, Runs, by_arm, gate_table, gates
from studies.compose_outcomes import (
    RESCUE,
    Outcome,
    Paired,
    compare,
    holm,
    record,
    solved_share,
)
from studies.control_study_rows import FEWEST, Interval, t_interval
from validation.origin import write_results

ANSWER = Path(__file__).with_name("compose_answer.md")
"""Written by hand from the tables of the page."""
FEWEST_PAIRS = 24
"""Pairs from which on arms are judged."""


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
    f"first result right, step {RESCUE}": lambda run: run.unsolved and run.unsolved[0],
    f"log10 P(accepted), step {RESCUE}": lambda run: run.unsolved and _log10(run.unsolved[1]),
    "distance from the target": lambda run: run.away and run.away[0],
    "with its sign": lambda run: run.away and run.away[1],
}
"""Secondary readings; P('>') is on unsolved prompts, the two after it of unsolved runs."""


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
    if math.isnan(value.low):
        return "–"
    digits = 0 if abs(value.value) >= 10 else 2
    return f"{value.value:.{digits}f} ± {value.high - value.value:.{digits}f}"


def later_discoveries(runs: Runs) -> str:
    """What sets runs apart that are unsolved at step 60 and solved at the end, in a sentence.

    Values are taken as differences to the mean of their arm, so arms that discover often do not
    count as evidence; intervals are Welch's. Demonstrations are left out.

    Args:
        runs: Outcomes by arm.

    Returns:
        The sentence; empty where there are fewer than three runs of either kind.
    """
    late = {
        arm: [run for run in own if run.strategy_at(RESCUE) is not None]
        for arm, own in runs.items()
        if arm != "demonstrations"
    }
    solved = [run.solved for own in late.values() for run in own]
    if min(sum(solved), len(solved) - sum(solved)) < FEWEST:
        return ""
    parts = []
    for metric, unit in (
        (lambda run: run.entropy[1], "nats per response"),
        (lambda run: _log10(run.strategy_at(RESCUE)), "in log10 P('>')"),
    ):
        values = np.concatenate([_centred([metric(run) for run in own]) for own in late.values()])
        yes, no = values[np.array(solved)], values[~np.array(solved)]
        test = stats.ttest_ind(yes, no, equal_var=False)
        bounds = test.confidence_interval(0.95)
        parts.append(
            f"{yes.mean() - no.mean():+.2f} [{bounds.low:+.2f}, {bounds.high:+.2f}] {unit}"
        )
    text = (
        f"Of {len(solved)} runs without a solution at step {RESCUE}, {sum(solved)} are solved at "
        f"the end. At step {RESCUE} these differ from the others of their arm by "
        f"{' and by '.join(parts)}."
    )
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def _centred(values: Sequence[float]) -> np.ndarray:
    return np.array(values) - np.mean(values) if values else np.array([])


def against(found: Sequence[Row], conditions: Sequence[Gate]) -> str:
    """What speaks against the task and against controls of entropy, in sentences."""
    judged = [row for row in found if row.judged and row.arm not in ("vanilla", *UPPER_BOUNDS)]
    bounds = [row for row in found if row.judged and row.arm in UPPER_BOUNDS]
    parts = [
        f"Gate {gate.name} {gate.verdict} ({gate.words}: {gate})."
        for gate in conditions
        if not math.isnan(gate.low) and not gate.holds
    ]
    waiting = [f"{row.arm} ({row.paired.n})" for row in found if not row.judged]
    if waiting:
        parts.append(
            f"Fewer than {FEWEST_PAIRS} pairs, so nothing is said of them: {', '.join(waiting)}."
        )
    sure = [row for row in judged if row.adjusted is not None and row.adjusted < 0.05]
    worse = [row for row in sure if row.paired.difference < 0]
    better = [row for row in sure if row.paired.difference > 0]
    open_ = [row for row in judged if row not in sure]
    if not judged:
        parts.append(f"There is no answer yet: arms are judged from {FEWEST_PAIRS} pairs on.")
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
        answer=ANSWER.read_text(encoding="utf-8"),
        gates=gate_table(outcomes),
        first=first_table(found),
        second=second_table(found),
        later=later_discoveries(runs),
    )
    write_results(folder / "compose.md", text)
    (folder / "compose.json").write_text(record(outcomes), encoding="utf-8")
    return text


TEMPLATE = """# What holding entropy buys where exploration is the bottleneck

`python -m studies.compose_study`, then `--page`; {today}, {runs} runs of {bases} bases, {pairs}
pairs in every arm, {seconds:.1f} s per run on one core.

{against}

## The answer, in words

{answer}
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

Means over runs with 95 % t intervals, from three runs on. Steps to discovery count the last step
where there is none; half_rate takes twice the steps. P('>') is on prompts that are not solved, so
it has fewer runs. The two columns after it were chosen after the runs: whether the first result of
a chain is right, and the probability of an accepted response (a chain, or a guess), in runs that
are unsolved at step 60. The distance from the target, of the budgets, is the mean of |h/h* − 1| of
the responses drawn from step 60 on; h is in nats per response, of budget_strategy at its position.

{second}

{later}"""
