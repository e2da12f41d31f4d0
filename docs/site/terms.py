"""Tooltips at the first use of a term on each page; docs/glossary.md defines the terms.

The theme opens them under the pointer, at a tap, and where the keyboard's focus is.

A name of one letter is a symbol of formulas and not marked, but for E and U, which are batches.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path

GLOSSARY = Path(__file__).parents[1] / "glossary.md"
WITHOUT = ("glossary.md", "reference/", "gallery/")
"""Pages whose terms are not marked."""
PLAIN_WORDS = {
    *("alarm", "budget", "contract", "decay", "gain", "gradient", "objective", "prefix", "price"),
    *("reliability", "repeat", "replay", "share", "step", "target", "trial"),
}
"""Terms that pages use in their everyday sense too, where a tooltip would be wrong."""
UNMARKED = {"a", "abbr", "button", "code", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "svg", "th"}
TAG = re.compile(r"""(<(?:[^<>"']|"[^"]*"|'[^']*')*>)""")


def plain(cell: str) -> str:
    """A cell of the glossary as text."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").replace("\\|", "|")


@cache
def meanings() -> dict[str, str]:
    """The meaning of each name of each term."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in GLOSSARY.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| term |")
    ]
    names = {name: plain(row[1]) for row in rows for name in row[0].split(", ")}
    return {
        name: meaning
        for name, meaning in names.items()
        if (len(name) > 1 or name in ("E", "U")) and name not in PLAIN_WORDS
    }


@cache
def pattern() -> re.Pattern[str]:
    """Any of the names as a word, the longest first."""
    names = sorted(meanings(), key=len, reverse=True)
    return re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?![\w([-])")


def with_tooltips(page: str) -> str:
    """The HTML of a page, with each term marked where it is first used in running text."""
    seen: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        name = match[1]
        meaning = meanings()[name]
        if meaning in seen:
            return name
        seen.add(meaning)
        return f'<abbr tabindex="0" title="{escape(meaning)}">{name}</abbr>'

    depth = 0
    parts = TAG.split(page)
    for k, part in enumerate(parts):
        if k % 2 == 0:
            parts[k] = part if depth else pattern().sub(mark, part)
        elif (tag := re.match(r"</?([a-z]\w*)", part)) and tag[1] in UNMARKED:
            depth += -1 if part.startswith("</") else not part.endswith("/>")
    return "".join(parts)


def on_page_content(html, page, config, files):
    """Mark the terms of a page."""
    if page.file.src_uri.startswith(WITHOUT):
        return html
    return with_tooltips(html)
