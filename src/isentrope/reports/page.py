"""The page: sections of panels as one HTML file that needs nothing else.

Style, script and figures are inside it, and its content security policy forbids every connection.
A panel's data are in it too, as a table and as CSV to be saved; those of more than LARGEST bytes
are only begun in the page, and whole in the folder beside it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from isentrope.reports import palette
from isentrope.reports.compare import Difference, differences
from isentrope.reports.panel import Panel, Section
from isentrope.reports.sentences import number
from isentrope.reports.svg import inline
from isentrope.reports.verdict import Claim
from isentrope.system.file_contents import csv
from isentrope.system.files import sha256

LARGEST = 150_000
"""Bytes of CSV that a page carries for one panel."""

ROWS = 12
"""Rows of the table under a figure."""


@dataclass(frozen=True)
class Column:
    """One run of the page.

    Attributes:
        label: "A" or "B"; empty where there is one run.
        name: Of the run folder.
        about: What is shown: checkpoint, task.
        claims: The verdict.
        missing: What is not there.
        sections: Everything else.
    """

    label: str
    name: str
    about: str
    claims: list[Claim]
    missing: list[str]
    sections: list[Section]


@dataclass(frozen=True)
class Shown:
    """A panel made ready for the page.

    Attributes:
        panel: The panel.
        id: Used once in the page.
        label: Of its run.
        figure: Inline SVG.
        table: The first rows of its data.
        csv: A link that holds its data; None where they are too large.
        note: On rows that are not shown, and where they are.
        folder: Where its files are.
    """

    panel: Panel
    id: str
    label: str
    figure: Markup
    table: Markup
    csv: str | None
    note: str
    folder: str

    @property
    def stem(self) -> str:
        """The name of its files."""
        return self.id


@dataclass(frozen=True)
class Row:
    """Panels that stand together: one, or the same one of two runs.

    Attributes:
        panels: One a run.
        differences: Between two runs.
    """

    panels: list[Shown]
    differences: list[Difference]


def identifier(column: Column, panel: Panel) -> str:
    """What a panel is called in page and files: "delta_h", or "a_delta_h" of two runs."""
    return f"{column.label.lower()}_{panel.key}" if column.label else panel.key


def render(columns: Sequence[Column], folder: str, drawn: Mapping[str, bytes]) -> str:
    """The page.

    Args:
        columns: One run, or two.
        folder: Where the files of the panels are, relative to the page.
        drawn: The SVG files of the panels that have a figure, by identifier.

    Returns:
        HTML.
    """
    environment = Environment(
        loader=PackageLoader("isentrope.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _resource("report.js")
    digest = base64.b64encode(bytes.fromhex(sha256([script.encode()]))).decode()
    return environment.get_template("report.html.j2").render(
        columns=columns,
        sections=list(_sections(columns, folder, drawn)),
        alone=_alone(columns),
        style=Markup(_style()),
        script=Markup(script),
        policy=(
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        ),
    )


def _resource(name: str) -> str:
    return (files("isentrope.reports") / "templates" / name).read_text(encoding="utf-8")


def _style() -> str:
    light, dark = palette.stylesheet(dark=False), palette.stylesheet(dark=True)
    schemes = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
    return schemes + _resource("report.css")


def _sections(columns: Sequence[Column], folder: str, drawn: Mapping[str, bytes]) -> Any:
    """(section, rows) of what every run has."""
    for section in columns[0].sections:
        rows = []
        for panel in section.panels:
            same = [_find(column, panel.key) for column in columns]
            if any(other is None for other in same):
                continue
            pairs = zip(columns, same, strict=True)
            shown = [show(c, other, folder, drawn) for c, other in pairs if other is not None]
            changes = differences(shown[0].panel, shown[1].panel) if len(shown) == 2 else []
            rows.append(Row(shown, changes))
        if rows:
            yield section, rows


def _find(column: Column, key: str) -> Panel | None:
    panels = (panel for section in column.sections for panel in section.panels)
    return next((panel for panel in panels if panel.key == key), None)


def _alone(columns: Sequence[Column]) -> list[str]:
    """Sentences on panels that one of two runs has alone."""
    if len(columns) == 1:
        return []
    sentences = []
    for column, other in (columns, columns[::-1]):
        titles = [
            panel.title
            for section in column.sections
            for panel in section.panels
            if _find(other, panel.key) is None
        ]
        if titles:
            sentences.append(f"Only {column.label} ({column.name}) has: {'; '.join(titles)}.")
    return sentences


def show(column: Column, panel: Panel, folder: str, drawn: Mapping[str, bytes]) -> Shown:
    """A panel made ready for the page."""
    name = identifier(column, panel)
    svg = inline(drawn[name], name, panel.caption) if name in drawn else ""
    text = csv(panel.data)
    fits = len(text) <= LARGEST
    return Shown(
        panel=panel,
        id=name,
        label=column.label,
        figure=Markup(svg),
        table=_table(panel.data.head(ROWS)),
        csv=f"data:text/csv;charset=utf-8,{quote(text.decode())}" if fits else None,
        note=_note(panel.data, fits, f"{folder}/{name}.csv"),
        folder=folder,
    )


def _note(data: pd.DataFrame, fits: bool, path: str) -> str:
    if len(data) <= ROWS:
        return ""
    rows = f"{min(ROWS, len(data))} of {len(data):,} rows".replace(",", "\u202f")
    return f"{rows}; all of them in {'the CSV' if fits else path}."


def _table(data: pd.DataFrame) -> Markup:
    heads = Markup("").join(Markup('<th scope="col">{}</th>').format(name) for name in data.columns)
    rows = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_cell(value) for value in row))
        for row in data.itertuples(index=False)
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(heads, rows)


def _cell(value: Any) -> Markup:
    if value is None or value is pd.NA or value != value:
        return Markup('<td class="number">–</td>')
    if isinstance(value, float):
        return Markup('<td class="number">{}</td>').format(number(value, 4))
    kind = Markup("") if isinstance(value, str) else Markup(' class="number"')
    return Markup("<td{}><bdi>{}</bdi></td>").format(kind, value)
