"""What an answer is made of: sentences, tables and lines, which `cli.console` prints."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from isentrope.nouns.columns import Column, ends, text
from isentrope.nouns.estimate import Estimate
from isentrope.system.formatting import MISSING, TERMINAL, known

number = TERMINAL.number


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
