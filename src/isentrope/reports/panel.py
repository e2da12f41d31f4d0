"""A panel of the report: a figure, its message in a sentence, and its source.

Estimates are written here too: in words, short and with their errors, from rows of tables.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from isentrope.nouns.estimate import COLUMNS, Estimate
from isentrope.results.header import Provenance
from isentrope.system.formatting import MISSING, PAGE, known


@dataclass(frozen=True)
class Source:
    """Where the data of a panel come from.

    Attributes:
        command: What makes them again.
        files: The files that were read.
        made_with: Versions and seeds; empty where the files do not say.
    """

    command: str
    files: tuple[str, ...]
    made_with: Provenance = field(default_factory=Provenance)

    @property
    def versions(self) -> str:
        """Versions and seeds in one line."""
        made = self.made_with
        own = {"isentrope": made.isentrope, "commit": made.git, "python": made.python}
        return _listed(own | made.packages)

    @property
    def seeds(self) -> str:
        """Seeds in one line."""
        return _listed(self.made_with.seeds)


def _listed(made_with: Mapping[str, object]) -> str:
    known = [f"{name} {value}" for name, value in made_with.items() if value is not None]
    return ", ".join(known) or "not recorded"


@dataclass(frozen=True)
class Panel:
    """One figure or table of the report.

    Attributes:
        key: Its name in files and links.
        title: A few words.
        caption: What is seen, computed from the data.
        source: Where the data come from.
        data: What is drawn, to be taken along.
        figure: The figure; None for a panel of text or a table.
        numbers: Estimates that another run's may be compared with, by what they are.
        influences: Of the prompts on these numbers, by key of the prompt, where they are known.
        body: Markup instead of a figure, as wide as the page.
    """

    key: str
    title: str
    caption: str
    source: Source
    data: pd.DataFrame
    figure: Figure | None = None
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    influences: Mapping[str, pd.Series] = field(default_factory=dict)
    body: Markup = field(default_factory=Markup)


@dataclass(frozen=True)
class Section:
    """Panels under one heading.

    Attributes:
        key: Of its link.
        title: The heading: a question that it answers.
        panels: In the order shown.
        lead: A sentence on how to read it.
    """

    key: str
    title: str
    panels: tuple[Panel, ...]
    lead: str = ""


@cache
def templates() -> Environment:
    """The templates of the page; what is put into them is escaped."""
    return Environment(
        loader=PackageLoader("isentrope.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def markup(macro: str, *values: object) -> Markup:
    """What a macro of bodies.html.j2 makes of its values."""
    return getattr(templates().get_template("bodies.html.j2").module, macro)(*values)


number = PAGE.number

Row = Mapping[str, Any]
"""A row of a table, by column; each column has a type of its own."""


def has_interval(estimate: Estimate) -> bool:
    """Whether an estimate has both ends of its interval, so that its error bar can be trusted."""
    return math.isfinite(estimate.ci_low) and math.isfinite(estimate.ci_high)


def with_interval(estimate: Estimate | None) -> str:
    """Value and interval, "−0.0018 [−0.0024, −0.0011]"; its standard error without one."""
    if estimate is None or known(estimate.value) is None:
        return MISSING
    low, high = known(estimate.ci_low), known(estimate.ci_high)
    if low is not None or high is not None:
        return f"{number(estimate.value)} {PAGE.interval(low, high)}"
    if known(estimate.se) is not None:
        return f"{with_error(estimate)} (no interval)"
    return f"{number(estimate.value)} (no interval)"


def without_error(estimate: Estimate | None) -> str:
    """Value and interval, "0.013 [0.0083, ∞)", and no standard error: for a ratio."""
    return with_interval(None if estimate is None else replace(estimate, se=math.nan))


def with_error(estimate: Estimate | None) -> str:
    """Value and standard error, such as "−1.78 ± 0.34"."""
    return MISSING if estimate is None else PAGE.with_error(estimate.value, known(estimate.se))


def bare(value: float, se: float = math.nan) -> Estimate:
    """A number of which only the error is known, or not even that: without an interval."""
    return Estimate(value, se, math.nan, math.nan, 0, "", "")


def estimates_in(table: pd.DataFrame, metric: str = "") -> list[Estimate]:
    """The estimates in the rows of a table.

    Args:
        table: Its columns are METRIC, METRIC_se, METRIC_ci_low and METRIC_ci_high; or value, se,
            ci_low and ci_high. The number of units is in n or n_prompts, if it is known.
        metric: Its name; "" for the second kind.

    Returns:
        One per row, with NaN in place of what is not there.
    """
    names = [metric + end if metric else field for field, end in COLUMNS.items()]
    numbers = table.reindex(columns=names).apply(pd.to_numeric, errors="coerce").astype(float)
    units = table.get("n", table.get("n_prompts", [0] * len(table)))
    rows = zip(records(numbers), units, strict=True)
    return [Estimate.of_columns(metric, row, int(n), "", "") for row, n in rows]


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table whose columns have names."""
    return cast("list[Row]", table.to_dict("records"))


def from_to(estimates: Sequence[Estimate]) -> str:
    """From the first to the last, "from 0.5 [0.4, 0.6] to 0.7 [0.6, 0.8]"."""
    return f"from {with_interval(estimates[0])} to {with_interval(estimates[-1])}"
