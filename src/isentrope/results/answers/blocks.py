"""What an answer is made of: sentences, tables and lines, and the words of their numbers."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from isentrope.nouns.columns import Column, ends, text
from isentrope.nouns.estimate import Estimate
from isentrope.system.formatting import MISSING, PAGE, TERMINAL, known

number = TERMINAL.number
"""A number in a line."""
short = PAGE.number
"""A number in a sentence."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of an answer, made of numbers with their intervals.

    Attributes:
        text: The sentence.
        tone: "fact"; "doubt" where nothing follows; "sound" where every check passed.
        question: What it answers, in a word or two.
    """

    text: str
    tone: Literal["fact", "sound", "doubt"] = "fact"
    question: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: Above it.
        rows: One object per row, by key where a column shows keys.
        columns: All columns.
        sections: Numbers of rows with a line below them.
    """

    title: str
    rows: Mapping[str, Any] | Sequence[Any]
    columns: Sequence[Column]
    sections: Collection[int] = ()

    def cells(self, column: Column) -> list[str]:
        """The cells of a column."""
        rows = self.rows
        pairs = rows.items() if isinstance(rows, Mapping) else enumerate(rows)
        return [column.cell(key, row) for key, row in pairs]


Printed = Iterator[Sentence | Table | str]


def has_interval(estimate: Estimate) -> bool:
    """Whether an estimate has both ends of its interval, so that its error bar can be trusted."""
    return math.isfinite(estimate.ci_low) and math.isfinite(estimate.ci_high)


def with_interval(estimate: Estimate | None) -> str:
    """Value and interval, "−0.0018 [−0.0024, −0.0011]"; an error without one is not shown."""
    if estimate is None or known(estimate.value) is None:
        return MISSING
    interval = PAGE.interval(estimate.ci_low, estimate.ci_high)
    return f"{short(estimate.value)} {interval.replace(MISSING, '(no interval)')}"


def with_error(estimate: Estimate) -> str:
    """Value and standard error, such as "−1.78 ± 0.34"."""
    return PAGE.with_error(estimate.value, known(estimate.se))


def from_to(estimates: Sequence[Estimate]) -> str:
    """From the first to the last, "from 0.5 [0.4, 0.6] to 0.7 [0.6, 0.8]"."""
    return f"from {with_interval(estimates[0])} to {with_interval(estimates[-1])}"


def moved(change: Estimate, quantity: str, unit: str) -> str:
    """A change whose sign is certain: "lowers entropy by 0.0018 nats per token [0.0011, 0.0024]".

    Args:
        change: With both ends of its interval, which does not contain zero.
        quantity: The quantity that changes.
        unit: Its unit.

    Returns:
        The verb, the size and its interval.
    """
    verb = "lowers" if change.value < 0 else "raises"
    low, high = sorted((abs(change.ci_low), abs(change.ci_high)))
    interval = PAGE.interval(low, high)
    return f"{verb} {quantity} by {short(abs(change.value))} {unit} {interval}"


def value_and_interval(estimate: Estimate | None) -> str:
    """Value and interval; no value without an interval, because a share of noise has no meaning."""
    if estimate is None or known(estimate.ci_low) is None:
        return MISSING
    return f"{number(estimate.value)} {ends(estimate)}"


def interval_title(confidence: float) -> str:
    """The heading of intervals, such as "95 % interval"."""
    return f"{100 * confidence:g} % interval"


def named(parts: Mapping[str, Any]) -> str:
    """Names and values in a row, those that there are: "momentum 1 ± 0.1, decay 0 ± 0"."""
    return ", ".join(f"{name} {text(x)}" for name, x in parts.items() if x is not None)


def each_once(sentences: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Each sentence once, after the names of the numbers that it is on.

    Args:
        sentences: Name of a number, and the sentences on it.

    Yields:
        Such as "gradient trace, gradient b_simple: 8 prompts are too few …".
    """
    names: dict[str, list[str]] = {}
    for name, warnings in sentences:
        for sentence in warnings:
            names.setdefault(sentence, []).append(name)
    for sentence, places in names.items():
        yield f"{', '.join(places)}: {sentence}"
