"""The page as a reader sees it: in Chromium, wide and narrow, light and dark."""

import pytest

from isentrope.reports.report import write_report
from tests.reports.chromium import BROWSER, browser
from tests.reports.made_up import make_run, write_evaluation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed."),
]

TEXTS = (
    "<b>",
    "👩\u200d🚀",
    " שלום",
    " مرحبا",
    "\n",
    "\ufffd",
    "\u202e",
    " " * 3,
    "x" * 90,
    "$a_1$",
)
WIDTHS = (1280, 360)

OVERLAPS = """
[...document.querySelectorAll('figure svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim())
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], k) => boxes.slice(k + 1)
    .filter(([b, q]) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
      && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1.5)
    .map(([b]) => svg.closest('figure').id + ': ' + a + ' / ' + b));
})
"""
HIDDEN = """
[...document.querySelectorAll('.stack')].filter(table => table.checkVisibility())
  .map(table => table.parentElement)
  .filter(box => box.scrollWidth > box.clientWidth + 1)
  .map(box => box.closest('figure').id)
"""
OUTSIDE = """
[...document.querySelectorAll('figure svg text')].filter(t => {
  const box = t.getBoundingClientRect(), room = document.documentElement.clientWidth;
  return box.left < -1 || box.right > room + 1;
}).map(t => t.closest('figure').id + ': ' + t.textContent)
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    here = tmp_path_factory.mktemp("work")
    run = make_run(here / "runs" / "one", texts=TEXTS, steps=(8, 16, 400))
    write_evaluation(here / "eval_runs" / "e", run, steps=(8, 16, 400))
    other = make_run(here / "runs" / "two")
    return {"one": write_report(run).page, "two": write_report(run, other).page}


@pytest.mark.parametrize("which", ["one", "two"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_leaves_the_page_or_complains(tab, reports, which, dark, width):
    tab.console.clear()
    tab.open(reports[which], width, dark)
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(OVERLAPS) == []
    assert tab.value(OUTSIDE) == []
    assert tab.value(HIDDEN) == []
    assert tab.console == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_scheme_reaches_page_and_figures(tab, reports, dark):
    tab.open(reports["one"], 1280, dark)
    page = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('figure svg text')).fill"
    bright = [int(tab.value(colour).split("(")[1].split(",")[0]) for colour in (page, text)]
    assert (bright[0] < bright[1]) == dark
    assert abs(bright[0] - bright[1]) > 80


def test_a_tap_and_the_arrow_keys_show_the_numbers_of_a_token(tab, reports):
    tab.open(reports["one"], 360)
    shown = "document.getElementById('readout').textContent"
    tab.value("document.querySelectorAll('.tokens .t')[1].click()")
    assert tab.value(shown).startswith("position 1, id 1 · δH ")
    tab.value("document.querySelector('.tokens').focus()")
    key = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})"
    tab.value(f"for (let k = 0; k < 3; k++) document.activeElement.dispatchEvent({key})")
    assert tab.value(shown).startswith("position 4, id 4 · ")


def test_the_arrow_keys_and_the_pointer_show_the_values_of_a_figure(tab, reports):
    tab.open(reports["one"], 1280)
    shown = "document.getElementById('readout').textContent"
    svg = "document.querySelector('#delta_h > svg')"
    key = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})"
    tab.value(f"{svg}.focus({{preventScroll: true}}); {svg}.dispatchEvent({key})")
    assert tab.value(shown).startswith("measured · learning rate η ")
    before = tab.value(shown)
    spot = "const box = document.querySelector('.spot').getBoundingClientRect()"
    place = "clientX: box.left + 6, clientY: box.top + 6"
    event = f"new PointerEvent('pointermove', {{bubbles: true, pointerType: 'mouse', {place}}})"
    tab.value(f"{{ {spot}; hide(); {svg}.dispatchEvent({event}) }}")
    assert tab.value(shown) == before


def test_the_toggle_colours_tokens_by_reward(tab, reports):
    tab.open(reports["one"], 1280)
    colours = (
        "[...document.querySelectorAll('.tokens .t')].map(t => getComputedStyle(t).background)"
    )
    before = tab.value(colours)
    tab.value("document.querySelector('input[value=j]').click()")
    assert tab.value(colours) != before


def test_a_large_update_stays_small_and_opens_at_once(tab, tmp_path):
    run = make_run(tmp_path / "runs" / "large", prompts=64, group=8, texts=(" token",) * 79)
    page = write_report(run).page
    assert page.stat().st_size < 8_000_000
    assert tab.open(page, 1280) < 2.0


def test_a_response_of_32k_tokens_opens_at_once(tab, tmp_path):
    page = write_report(make_run(tmp_path / "r", 1, 2, ("x",) * 32_768, steps=(8,))).page
    assert page.stat().st_size < 8_000_000
    assert tab.open(page, 360) < 2.0


def test_it_prints_without_cutting_a_figure(tab, reports):
    tab.open(reports["one"], 1280, dark=True)
    tab.send("Emulation.setEmulatedMedia", media="print")
    ground = tab.value("getComputedStyle(document.documentElement).getPropertyValue('--paper')")
    assert ground == "#fdfdfc"
    rule = "getComputedStyle(document.querySelector('figure:not(.wide)')).breakInside"
    assert tab.value(rule) == "avoid"
    tab.send("Emulation.setEmulatedMedia", media="")
