"""The page: sections of panels as one HTML file that needs nothing else.

Style, script and figures are inside it, and its content security policy forbids every connection.
A panel's data are in it too, as a table and as CSV to be saved; those of more than LARGEST bytes
are only begun in the page, and whole in the folder beside it.

Figures are files, and are in the page, where their text stays text and colours follow the page.
Identifiers carry the figure's name, so that two figures in one page do not draw each other's
shapes.
"""

import base64
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from isentrope.reports.compare import Difference, differences
from isentrope.reports.drawing import COLOURS, DOTS, STYLE, stylesheet
from isentrope.reports.panel import Panel, Section, markup, number, templates
from isentrope.reports.verdict import FIRST, Claim
from isentrope.system.file_contents import csv
from isentrope.system.files import sha256, write_bytes


def svg_file(figure: Figure, name: str) -> bytes:
    """A figure as SVG; the same name gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png_file(figure: Figure) -> bytes:
    """A figure as pixels, for slides."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=2 * DOTS)
    return buffer.getvalue()


def inline(svg: bytes, name: str, caption: str) -> str:
    """A figure for the body of a page.

    Args:
        svg: The file.
        name: Prefix of its identifiers, used once in a page.
        caption: What is seen, for those who hear the page.

    Returns:
        An svg element whose colours are those of the page's scheme, and whose width the page
        decides.
    """
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid="|"#|url\(#)', rf"\g<1>{name}-", text)
    opening, _, rest = text.partition(">")
    (box,) = re.findall(r'viewBox="[^"]*"', opening)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    text = f'<svg {names} {box} role="img" aria-label="{escape(caption)}">{rest}'
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for variable, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{variable})")
    return text


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

    @property
    def panels(self) -> dict[str, Panel]:
        """The panels of all sections by their keys."""
        return {panel.key: panel for section in self.sections for panel in section.panels}

    def of(self, sentence: str) -> str:
        """A sentence, with the label of its run if it has one."""
        return f"{self.label}: {sentence}" if self.label else sentence


@dataclass(frozen=True)
class RenderedPanel:
    """A panel made ready for the page.

    Attributes:
        panel: The panel.
        id: Used once in the page, and the name of its files.
        label: Of its run.
        figure: Inline SVG.
        table: The first rows of its data.
        csv: A link that holds its data; None where they are too large.
        note: On rows that are not shown, and where they are.
    """

    panel: Panel
    id: str
    label: str
    figure: Markup
    table: Markup
    csv: str | None
    note: str


def write_page(columns: Sequence[Column], folder: Path) -> str:
    """Write the files of all panels into a folder.

    Args:
        columns: One run, or two.
        folder: Of figures and data, beside the page.

    Returns:
        The page, HTML.
    """
    light, dark = stylesheet(dark=False), stylesheet(dark=True)
    schemes = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
    style, script = (
        (files("isentrope.reports") / "templates" / name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    digest = base64.b64encode(bytes.fromhex(sha256([script.encode()]))).decode()
    page = templates().get_template("report.html.j2")
    return page.render(
        columns=columns,
        first=FIRST,
        sections=list(_sections(columns, folder)),
        folder=folder.name,
        style=Markup(schemes + style),
        script=Markup(script),
        policy=(
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        ),
    )


Rows = list[tuple[list[RenderedPanel], list[Difference]]]
"""Panels that stand together, one per run, and the differences between two runs."""


def _sections(columns: Sequence[Column], folder: Path) -> Iterator[tuple[Section, Rows]]:
    """What every run has; the files of the other panels are written too."""
    shown = {
        column.label: {key: _show(column, panel, folder) for key, panel in column.panels.items()}
        for column in columns
    }
    for section in columns[0].sections:
        together = [[panels.get(p.key) for panels in shown.values()] for p in section.panels]
        rows = [[x for x in panels if x is not None] for panels in together if None not in panels]
        if rows:
            yield section, [(row, list(differences(*(x.panel for x in row)))) for row in rows]


def _show(column: Column, panel: Panel, folder: Path) -> RenderedPanel:
    name = f"{column.label.lower()}_{panel.key}" if column.label else panel.key
    data, text, note, figure = panel.data, csv(panel.data), "", ""
    write_bytes(folder / f"{name}.csv", text)
    if panel.figure is not None:
        svg = svg_file(panel.figure, name)
        write_bytes(folder / f"{name}.svg", svg)
        write_bytes(folder / f"{name}.png", png_file(panel.figure))
        figure = inline(svg, name, panel.caption)
    fits = len(text) <= LARGEST
    if len(data) > ROWS:
        place = "the CSV" if fits else f"{folder.name}/{name}.csv"
        note = f"{ROWS} of {len(data):,} rows; all of them in {place}.".replace(",", "\u202f")
    cells = [[_cell(x) for x in row] for row in data.head(ROWS).itertuples(index=False)]
    return RenderedPanel(
        panel,
        name,
        column.label,
        Markup(figure),
        markup("data", list(data.columns), cells),
        f"data:text/csv;charset=utf-8,{quote(text.decode())}" if fits else None,
        note,
    )


def _cell(value: Any) -> tuple[str, bool]:
    """The text of a cell, and whether it stands as a number."""
    if value is None or value is pd.NA or value != value:
        return "–", True
    if isinstance(value, float):
        return number(value, 4), True
    return str(value), not isinstance(value, str)
