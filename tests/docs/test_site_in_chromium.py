"""Tables and tooltips as a reader of the site meets them: in Chromium, on a phone and on a desk."""

import time
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_site import hook
from tests.reports.chromium import BROWSER, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed."),
]

SHOWN = (
    "two_lines",
    "collapse",
    "glossary",
    "results/coverage",
    "results/frontier",
    "results/verdict",
)
BROKEN = """
[...document.querySelectorAll('td, th')].flatMap(cell => {
  const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
  for (let node; (node = nodes.nextNode());)
    for (const word of node.data.matchAll(/[^\\s\\u2010-\\u2014/-]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1)
        broken.push(word[0]);
    }
  return broken;
})
"""
LINES_OF_NUMBERS = """
Math.max(...[...document.querySelectorAll('.number')].map(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
}))
"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of pages, with the style of the theme and ours, wrapped as its script does."""
    markdown = pytest.importorskip("markdown")
    material = Path(pytest.importorskip("material").__file__).parent
    (theme,) = material.glob("templates/assets/stylesheets/main.*.min.css")
    ours = ROOT / "docs" / "site" / "extra.css"
    body = "".join(
        markdown.markdown(
            (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"),
            extensions=["tables", hook("tables").Tables()],
        )
        for name in SHOWN
    )
    wrap = '<div class="md-typeset__scrollwrap"><div class="md-typeset__table"><table>'
    body = body.replace("<table>", wrap).replace("</table>", "</table></div></div>")
    page = tmp_path_factory.mktemp("site") / "tables.html"
    page.write_text(
        "<!doctype html><html><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<link rel=stylesheet href={theme.as_uri()}><link rel=stylesheet href={ours.as_uri()}>"
        f'</head><body><article class="md-content__inner md-typeset">{body}</article></body></html>'
    )
    return page


@pytest.mark.parametrize("width", [390, 730])
def test_no_word_or_number_of_a_table_is_broken_and_the_page_does_not_scroll(tab, tables, width):
    tab.open(tables, width)
    assert tab.value(BROKEN) == []
    assert tab.value(LINES_OF_NUMBERS) == 1
    assert tab.value(TOO_WIDE) <= 0


SITE = """
site_name: one page
INHERIT: {root}/mkdocs.yml
docs_dir: {folder}
nav: [index.md]
plugins: []
hooks: ["{root}/docs/site/terms.py"]
extra_css: []
markdown_extensions: []
"""
TOOLTIP = "(document.querySelector('.md-tooltip2--active') ?? {}).textContent ?? ''"
MIDDLE = """
(() => {
  const box = document.querySelector('abbr').getBoundingClientRect();
  return {x: box.x + box.width / 2, y: box.y + box.height / 2};
})()
"""


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A page with one term, built with the theme and the features of the site."""
    config = pytest.importorskip("mkdocs.config")
    build = pytest.importorskip("mkdocs.commands.build")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("pages")
    (folder / "index.md").write_text("# Title\n\nThe ESS of a batch.\n")
    settings = tmp_path_factory.mktemp("settings") / "mkdocs.yml"
    settings.write_text(SITE.format(root=ROOT, folder=folder))
    site = tmp_path_factory.mktemp("built")
    build.build(config.load_config(str(settings), site_dir=str(site)))
    return site / "index.html"


def hover(tab):
    tab.send("Input.dispatchMouseEvent", type="mouseMoved", **tab.value(MIDDLE))


def tap(tab):
    tab.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[tab.value(MIDDLE)])
    tab.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


def focus_by_keyboard(tab):
    for _ in range(40):
        for half in ("keyDown", "keyUp"):
            tab.send("Input.dispatchKeyEvent", type=half, key="Tab", windowsVirtualKeyCode=9)
        if tab.value("document.activeElement.tagName") == "ABBR":
            return


@pytest.mark.parametrize(
    ("reach", "width"),
    [(hover, 1280), (focus_by_keyboard, 1280), (focus_by_keyboard, 390), (tap, 390)],
)
def test_the_meaning_of_a_term_opens_at_the_word_and_inside_the_page(tab, marked, reach, width):
    tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    tab.send("Emulation.setTouchEmulationEnabled", enabled=reach is tap)
    tab.open(marked, width)
    assert tab.value(TOOLTIP) == ""
    reach(tab)
    deadline = time.monotonic() + 10
    while not (text := tab.value(TOOLTIP)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert text.strip() == hook("terms").meanings()["ESS"]
    box = (
        "document.querySelector('.md-tooltip2--active .md-tooltip2__inner').getBoundingClientRect()"
    )
    assert tab.value(f"{box}.left") >= 0
    assert tab.value(f"{box}.right") <= width
