"""What a verb prints: tables of columns, and lines; `cli.console` fits them to the terminal."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isentrope.attribution.influence.classes import BY_GROUP, Classes
from isentrope.nouns.columns import Column, ends, text
from isentrope.nouns.estimate import Estimate
from isentrope.results.attributions import is_it_all
from isentrope.results.result import Result
from isentrope.system.formatting import MISSING, TERMINAL, known

number = TERMINAL.number


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


Printed = Iterator[Table | str]


def value_and_interval(estimate: Estimate | None) -> str:
    """Value and interval; no value without an interval, because a share of noise has no meaning."""
    if estimate is None or known(estimate.ci_low) is None:
        return MISSING
    return f"{number(estimate.value)} {ends(estimate)}"


def interval_title(result: Result) -> str:
    """The heading of intervals, such as "95 % interval"."""
    return f"{100 * result.estimator.confidence:g} % interval"


def named(parts: Mapping[str, Any]) -> str:
    """Names and values in a row, those that there are: "momentum 1 ± 0.1, decay 0 ± 0"."""
    return ", ".join(f"{name} {text(x)}" for name, x in parts.items() if x is not None)


def classes_table(name: str, classes: Mapping[str, Classes]) -> Printed:
    """The table of the tokens' classes, without one that of the sequences; and that of groups."""
    for of in ("tokens" if "tokens" in classes else "sequences", BY_GROUP):
        if of not in classes:
            continue
        rows = classes[of].parts
        columns = [
            Column("class", left=True),
            Column(of.partition("_")[0], lambda part: f"{part.members:.0f}", 2),
            Column("δH ± se", "delta_h"),
            Column("of the fall", lambda part: value_and_interval(part.fall), 1),
            Column("share of δH", lambda part: value_and_interval(part.share_h), 3),
        ]
        if all(part.delta_j is not None for part in rows.values()):
            columns.append(Column("δJ ± se", "delta_j", 4))
            columns.append(Column("share of δJ", lambda part: value_and_interval(part.share_j), 5))
        yield Table(f"{name}: classes of {of.replace('_', ' ')}, per unit η", rows, columns)


def class_lines(classes: Mapping[str, Classes]) -> Printed:
    """Where classes are split, and whether the published criterion is the whole story."""
    found = classes.get("tokens", classes.get("sequences"))
    if found is None:
        return
    yield f"  classes      split at {named(found.thresholds)}"
    if sentence := is_it_all(found, TERMINAL):
        yield f"  criterion    {sentence}"


def reliability_line(estimates: Mapping[str, Estimate]) -> str:
    """How well ranks are known."""
    ranks = named({of: known(r.value) for of, r in estimates.items()})
    return f"  reliability  rank correlation with an infinite E, about: {ranks}"


def each_once(sentences: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Each sentence once, after the names of the numbers that it is on.

    Args:
        sentences: Name of a number, and the sentences on it.

    Yields:
        Such as "gradient trace, gradient b_simple: 8 prompts are too few …".
    """
    names: dict[str, list[str]] = {}
    for name, of in sentences:
        for sentence in of:
            names.setdefault(sentence, []).append(name)
    for sentence, places in names.items():
        yield f"{', '.join(places)}: {sentence}"
