"""What the site adds to the Markdown that is read on its own: formulas, and links out of docs/.

```math      becomes an SVG of outlines, drawn here: nothing is left for the reader's browser
../src/      a link to a module becomes one to its entry in the reference
../configs/, ../studies/, ../examples/  recipes and scripts are copied beside the pages
"""

from __future__ import annotations

import re
from pathlib import Path

import ziamath
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

NETWORK = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
ROOT = Path(__file__).parents[2]
BESIDE = ("configs/*.yaml", "studies/*.py", "examples/*.py", "examples/*.ipynb")
"""Files out of docs/ that pages link to."""
NOUNS = ("estimate", "rollouts", "vectors", "differences")


def formula(source, language, css_class, options, md, **_) -> str:
    """An SVG in the colour of the text; its name is the TeX it was drawn from."""
    drawn = ziamath.Latex(source.strip(), size=18, color="currentColor").svg()
    name = source.strip().replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'<div class="formula" role="math" aria-label="{name}">{drawn}</div>'


def module_page(match: re.Match[str]) -> str:
    """`../src/isentrope/room/file.py` as an anchor of the room's page."""
    parts = match["path"].split("/")
    page = "nouns" if parts[0] in NOUNS else parts[0]
    return f"({match['up']}reference/{page}.md#isentrope.{'.'.join(parts)})"


def on_config(config):
    """Let superfences draw fences named math."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "formula", "format": formula}]


def on_files(files, config):
    """Put recipes and scripts, and the gallery as it was run, into the site."""
    beside = {str(p.relative_to(ROOT)): p for pattern in BESIDE for p in ROOT.glob(pattern)}
    run = ROOT / "build" / "gallery"
    beside |= {f"gallery/{p.relative_to(run)}": p for p in run.rglob("*.*") if p.suffix != ".log"}
    for name, path in sorted(beside.items()):
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links to the repository around the pages into links within the site."""
    markdown = re.sub(
        r"\((?P<up>(\.\./)*)\.\./src/isentrope/(?P<path>[\w/]+)\.py\)", module_page, markdown
    )
    markdown = re.sub(
        r"\(((?:\.\./)*)\.\./((?:configs|studies|examples)/\w[\w.]*\.(?:yaml|py|ipynb))",
        r"(\1\2",
        markdown,
    )
    markdown = re.sub(r"\(((?:\.\./)*)\.\./README\.md[^)]*\)", r"(\1index.md)", markdown)
    room, name = page.file.src_uri.rpartition("/")[::2]
    if room == "gallery" and name == "index.md":
        return re.sub(r"\((\d\d_\w+)\.py\)", r"(\1.md)", markdown)
    if room == "gallery":
        stem = name.removesuffix(".md")
        markdown += f"\n\nAs a [script]({stem}.py) and as a [notebook]({stem}.ipynb).\n"
    return markdown


def on_post_page(output, page, config):
    """Refuse a page that would fetch something when it is opened."""
    if fetched := NETWORK.search(output):
        raise PluginError(f"{page.file.src_uri} loads {fetched[0]} from the network.")
    return output
