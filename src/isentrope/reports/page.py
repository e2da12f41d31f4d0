"""The page: sections of panels as one HTML file that needs nothing else.

Style, script and figures are inside it, and its content security policy forbids every connection.
A panel's data are in it too, as a table and as CSV to be saved; those of more than
LARGEST_CSV bytes are only begun in the page, and whole in the folder beside it.

Figures are files, and are in the page, where their text stays text and colours follow the page.
Identifiers carry the figure's name, so that two figures in one page do not draw each other's
shapes.
"""

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from isentrope.reports.drawing import COLOURS, DOTS, STYLE, stylesheet
from isentrope.reports.panel import Panel, compared_numbers, differences, templates
from isentrope.reports.points import point_values
from isentrope.reports.read_run import Reading
from isentrope.reports.verdict import FIRST
from isentrope.results.answers.blocks import Sentence
from isentrope.system.file_contents import csv
from isentrope.system.files import sha256, write_bytes
from isentrope.system.reading import figure_left_out


def image(figure: Figure, kind: str, name: str) -> bytes:
    """A figure as SVG, or as PNG for slides; the same name gives the same bytes."""
    buffer = io.BytesIO()
    dated: Any = {"metadata": {"Date": None, "Creator": None}} if kind == "svg" else {}
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format=kind, dpi=DOTS if kind == "svg" else 2 * DOTS, **dated)
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
    opening, _, body = text.partition(">")
    (box,) = re.findall(r'viewBox="[^"]*"', opening)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    text = f'<svg {names} {box} role="img" tabindex="0" aria-label="{escape(caption)}">{body}'
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for variable, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{variable})")
    return text


LARGEST_CSV = 150_000
"""Bytes of CSV that a page carries for one panel."""

TABLE_ROWS = 12
"""Rows of the table under a figure."""


@dataclass(frozen=True)
class PageSection:
    """Panels under one heading.

    Attributes:
        key: Of its link.
        title: The heading: a question that it answers.
        lead: A sentence on how to read it.
        panels: In the order shown.
    """

    key: str
    title: str
    lead: str
    panels: list[Panel]


@dataclass(frozen=True)
class RunColumn:
    """One run of the page.

    Attributes:
        label: "A", "B" and so on; empty where there is one run.
        reading: The run.
        claims: The verdict.
        sections: Everything else.
    """

    label: str
    reading: Reading
    claims: list[Sentence]
    sections: list[PageSection]

    def of(self, sentence: str) -> str:
        """A sentence, with the label of its run if it has one."""
        return f"{self.label}: {sentence}" if self.label else sentence


def write_page(columns: Sequence[RunColumn], folder: Path | None, version: str = "") -> str:
    """Write the files of all panels into a folder.

    Args:
        columns: The runs.
        folder: Of figures and data, beside the page; None to write no file.
        version: Of a page that is served, and loads itself anew when there is another.

    Returns:
        The page, HTML.
    """
    return render_page(
        "report.html.j2",
        version,
        columns=columns,
        first=FIRST,
        sections=list(_sections(columns, folder)),
        folder="" if folder is None else folder.name,
    )


def render_page(template: str, version: str, **values: Any) -> str:
    """A page with style and script, whose policy allows this script alone.

    Args:
        template: Its file.
        version: Of a page that is served; "" for one that is a file.
        **values: What else is put into it.

    Returns:
        HTML.
    """
    names = ("report.js", "live.js") if version else ("report.js",)
    script = "".join(templates().get_template(name).render() for name in names)
    digest = bytes.fromhex(sha256([script.encode()]))
    return (
        templates()
        .get_template(template)
        .render(
            **values,
            version=version,
            light=stylesheet(dark=False),
            dark=stylesheet(dark=True),
            script=Markup(script),
            digest=base64.b64encode(digest).decode(),
        )
    )


def _sections(
    columns: Sequence[RunColumn], folder: Path | None
) -> Iterator[tuple[PageSection, list[Any]]]:
    """Panels of one run, or those that two runs or more have, with differences from the first."""
    shown = [
        {
            panel.key: _show(column, panel, folder)
            for section in column.sections
            for panel in section.panels
        }
        for column in columns
    ]
    by_section: list[tuple[PageSection, list[Any]]] = []
    for sections in zip(*(column.sections for column in columns), strict=True):
        keys = dict.fromkeys(panel.key for section in sections for panel in section.panels)
        rows = [[panels[key] for panels in shown if key in panels] for key in keys]
        by_section.append((sections[0], [r for r in rows if len(r) >= min(2, len(columns))]))
    among = sum(
        len(compared_numbers(row[0]["panel"], other["panel"]))
        for _, rows in by_section
        for row in rows
        for other in row[1:]
    )
    for section, rows in by_section:
        if rows:
            yield section, [(row, _compared(row, among)) for row in rows]


def _compared(row: Sequence[Mapping[str, Any]], among: int) -> list[str]:
    """Sentences on the numbers of each panel beside those of the first, of so many on the page."""
    first, *others = row
    return [
        sentence
        for other in others
        for _, sentence in differences(
            first["panel"], other["panel"], (first["label"], other["label"]), among
        )
    ]


def _show(column: RunColumn, panel: Panel, folder: Path | None) -> Mapping[str, Any]:
    """Write the files of a panel; what the page has of it, by the names of the template."""
    name = f"{column.label.lower()}_{panel.key}" if column.label else panel.key
    data = panel.data
    figure = ""
    points = ""
    refused = ""
    files = {"csv": csv(data)}
    if panel.drawn is not None:
        try:
            drawn = panel.drawn.figure()
            svg = image(drawn, "svg", name)
            points = point_values(panel.drawn, drawn)
            figure = inline(svg, name, panel.caption)
            if folder is not None:
                files |= {"svg": svg, "png": image(drawn, "png", name)}
        except Exception as error:  # those of matplotlib have no class in common
            refused = figure_left_out(error)
            figure = ""
            column.reading.missing.append(f"{panel.title}: {refused}")
    for kind, content in files.items():
        if folder is not None:
            write_bytes(folder / f"{name}.{kind}", content)
    begun = data.head(TABLE_ROWS).astype(object)
    return {
        "panel": panel,
        "id": name,
        "label": column.label,
        "figure": Markup(figure),
        "points": points,
        "refused": refused,
        "data": data,
        "cells": begun.where(begun.notna(), None).to_numpy().tolist(),
        "csv": files["csv"].decode() if len(files["csv"]) <= LARGEST_CSV else None,
    }
