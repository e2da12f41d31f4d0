"""What the site adds to the Markdown that is read on its own: formulas, and links out of docs/.

```math      becomes an SVG of outlines, drawn here: nothing is left for the reader's browser
../src/      a link to a module becomes one to its entry in the reference
../configs/, ../studies/, ../examples/  recipes and scripts are copied beside the pages
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import ziamath
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

NETWORK = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
ROOT = Path(__file__).parents[2]
BESIDE = ("configs/*.yaml", "studies/*.py", "examples/*.py", "examples/*.ipynb")
"""Files out of docs/ that pages link to."""
OUTSIDE = r"\[([^\]\n]+)\]\((?:\.\./)+(?:[A-Z]+|studies/\w+)\.md\)"
"""A link to a page for those who have a clone, of which the site keeps the words."""
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
    name = ".".join(part for part in parts if part != "__init__")
    return f"({match['up']}reference/{page}.md#isentrope.{name})"


def repository() -> str:
    """Where this clone came from, as an address for a browser; empty where it does not say.

    A workflow of GitHub says it in its environment, and a clone by its remote.
    """
    if (server := os.environ.get("GITHUB_SERVER_URL")) and "GITHUB_REPOSITORY" in os.environ:
        return f"{server}/{os.environ['GITHUB_REPOSITORY']}"
    asked = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    remote = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote).removesuffix(".git")
    return address if address.startswith("https://") and "@" not in address else ""


def on_config(config):
    """Name the version, link pages to their sources, and draw fences named math."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/isentrope/_version.py").read_text())
    config.copyright = f"isentrope {version[1]}"
    if address := repository():  # no repo_url: Material asks its server for stars at every visit
        config.copyright += f' · <a href="{address}">source</a>'
        config.edit_uri = f"{address}/edit/main/docs/"
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
    markdown = re.sub(OUTSIDE, r"\1", markdown)
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
