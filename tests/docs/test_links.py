"""Links between pages and to the code lead to files that exist, and paths are named as they are."""

import re

from tests.docs.pages import PAGES, ROOT

SOURCES = ROOT / "src" / "isentrope"
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_CODE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|yaml|md)")
FOLDERS = {"src", "tests", "docs", "validation", "benchmarks", "studies", "configs", "examples"}
PACKAGES = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
FOREIGN = {"examples/converters/convert_dcp_to_hf.py"}
"""Paths of other projects that begin like ours."""


def links(page):
    """(label, target) of the links of a page to files."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for label, target in _LINK.findall(text):
        path = target.partition("#")[0]
        if path and not re.match(r"\w+:", path):
            yield label.strip("`"), page.parent / path


def named(page):
    """Paths of our folders in code spans of a page."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in set(_SPAN.findall(text)) - FOREIGN:
        first, _, rest = path.partition("/")
        ours = first in FOLDERS or (first in PACKAGES and path.endswith(".py"))
        if _CODE.fullmatch(path) and rest and ours:
            yield path


def faults(pages):
    """What is wrong, by page."""
    found = {}
    for page in pages:
        dead = [str(target) for _, target in links(page) if not target.exists()]
        dead += [
            f"{label} for {target}"
            for label, target in links(page)
            if _CODE.fullmatch(label) and not f"/{target.resolve()}".endswith(f"/{label}")
        ]
        dead += [
            path
            for path in named(page)
            if not any((folder / path).exists() for folder in (ROOT, SOURCES, page.parent))
        ]
        if dead:
            found[page.name] = dead
    return found


def test_what_a_page_links_to_or_names_exists():
    assert faults(PAGES) == {}


def test_a_dead_link_a_wrong_label_and_a_path_that_is_gone_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "[there](page.md#here), [gone](gone.md), [`other.md`](page.md), `control/gone.py`,\n"
        "`control/correction.py`, `actor/config.yaml`, [out](https://example.org/x.py)\n"
    )
    assert faults([page]) == {
        "page.md": [str(tmp_path / "gone.md"), f"other.md for {page}", "control/gone.py"]
    }
