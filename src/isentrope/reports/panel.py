"""A panel of the report: a figure, its message in a sentence, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from isentrope.nouns.estimate import Estimate
from isentrope.results.header import Provenance


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
