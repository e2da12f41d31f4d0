"""Classes of table cells, by which site/extra.css keeps tables readable on every screen.

A cell of a column of sentences is `long`, a number is `number`, and the cells of a table of many
columns are `dense`. Long names in code may break after `/`, `_` and `.`, and nowhere else.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from markdown import Extension
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString

NUMBER = re.compile(r"[-+−±≤≥<>~\[(]?\s*[\d.∞][^A-Za-z]{0,27}(?:[a-z]{1,2})?")
LONG = 40
"""Characters from which on a cell is read as a sentence."""
DENSE = 7
"""Columns from which on a table is dense."""
UNBROKEN = 14
"""Characters of code that stay on one line."""


class Cells(Treeprocessor):
    """Gives the cells of every table their classes."""

    def run(self, root: Element) -> None:
        """Walk the tables of a page, after their cells have become elements."""
        for table in root.iter("table"):
            rows = [[cell for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")]
            for column in zip(*rows, strict=True):
                texts = ["".join(cell.itertext()).strip() for cell in column]
                is_long = max(map(len, texts)) > LONG
                for cell, text in zip(column, texts, strict=True):
                    classes = [
                        name
                        for name, holds in (
                            ("long", is_long),
                            ("dense", len(rows[0]) >= DENSE),
                            ("number", NUMBER.fullmatch(text) is not None),
                        )
                        if holds
                    ]
                    if classes:
                        cell.set("class", " ".join(classes))
            for cell in (cell for row in rows for cell in row):
                for code in list(cell.iter("code")):
                    let_break(code)


def let_break(code: Element) -> None:
    """Put `<wbr>` into a long name, after the characters at which it may break."""
    name = code.text or ""
    if len(name) <= UNBROKEN or " " in name or len(code):
        return
    first, *rest = re.findall(r"[^/_.]*[/_.]+|[^/_.]+", name)
    code.text = AtomicString(first)
    for piece in rest:
        gap = Element("wbr")
        gap.tail = AtomicString(piece)
        code.append(gap)


class Tables(Extension):
    """The extension of Markdown."""

    def extendMarkdown(self, md) -> None:
        """Run last, when code and links in cells are there."""
        md.treeprocessors.register(Cells(md), "site_tables", -10)


def on_config(config):
    """Add the extension to those of the site."""
    config.markdown_extensions.append(Tables())
