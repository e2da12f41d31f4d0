"""A panel of the report: what is seen, said in a sentence, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure


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
    made_with: Mapping[str, Any] = field(default_factory=dict)

    @property
    def versions(self) -> str:
        """Versions and seeds in one line."""
        said = self.made_with
        parts = [f"{name} {said[name]}" for name in ("isentrope", "python") if said.get(name)]
        if said.get("git"):
            parts.insert(1, f"commit {str(said['git'])[:8]}{'+' * ('dirty' in str(said['git']))}")
        parts += [f"{name} {version}" for name, version in said.get("packages", {}).items()]
        return ", ".join(parts) or "not recorded"

    @property
    def seeds(self) -> str:
        """Seeds in one line."""
        seeds = self.made_with.get("seeds") or {}
        return ", ".join(f"{name} {seed}" for name, seed in seeds.items()) or "not recorded"


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
        body: Markup instead of a figure, or below it.
        wide: Whether it takes the whole width of the page.
        numbers: Estimates that another run's may be compared with, by what they are.
    """

    key: str
    title: str
    caption: str
    source: Source
    data: pd.DataFrame
    figure: Figure | None = None
    body: Markup = field(default_factory=Markup)
    wide: bool = False
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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
