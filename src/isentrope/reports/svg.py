"""Figures as files, and inside a page, where their text stays text and colours follow the page.

Identifiers carry the figure's name, so that two figures in one page do not draw each other's
shapes.
"""

from __future__ import annotations

import io
import re

import matplotlib as mpl
from markupsafe import escape
from matplotlib.figure import Figure

from isentrope.reports.drawing import DOTS, STYLE
from isentrope.reports.palette import COLOURS


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
