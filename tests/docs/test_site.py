"""What the site adds to its pages: tooltips, classes of cells, links to edit, and no dead link."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import pytest
import yaml

from tests.docs.pages import ROOT


def hook(name):
    """A module of docs/site, which is no package."""
    spec = spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_term_has_its_meaning_as_a_tooltip_where_it_is_used_first():
    terms = hook("terms")
    page = terms.with_tooltips(
        '<p>The <code>verdict</code> is a verdict. A verdict of <a href="x.html">ESS</a>.</p>'
    )
    meaning = terms.escape(terms.meanings()["verdict"])
    assert page == (
        f'<p>The <code>verdict</code> is a <abbr tabindex="0" title="{meaning}">verdict</abbr>. '
        'A verdict of <a href="x.html">ESS</a>.</p>'
    )


def test_an_attribute_with_a_term_in_it_is_left_alone():
    page = '<img alt="the ESS > 8" src="x.png"><svg aria-label="k"><g>ESS</g></svg>'
    assert hook("terms").with_tooltips(page) == page


def test_a_word_that_pages_use_in_its_everyday_sense_has_no_tooltip():
    terms = hook("terms")
    page = "<p>They share the work, at a fifth of the price; no gain, and no false alarm.</p>"
    assert terms.with_tooltips(page) == page
    glossary = terms.GLOSSARY.read_text(encoding="utf-8")
    defined = set(re.split(r", | *\| *", " | ".join(re.findall(r"^\| (.*?) \|", glossary, re.M))))
    assert defined >= terms.PLAIN_WORDS


def test_letters_of_formulas_are_no_terms_and_batches_are():
    assert {"E", "U", "η*", "k̂", "δH₁"} <= hook("terms").meanings().keys()
    assert not {"s", "S", "H", "h", "J"} & hook("terms").meanings().keys()
    expectation = "<p>E[k²] and E(k²)</p>"
    assert hook("terms").with_tooltips(expectation) == expectation


def test_a_link_to_a_page_or_an_anchor_that_is_not_there_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">x</a> <a href="#here">y</a>'
    )
    (tmp_path / "b.html").write_text(
        '<h2 id="there"><a href="https://a.b/c">z</a><a href="gone.html"></a><a href="a.html#gone">'
    )
    assert hook("links").dead_links(tmp_path) == ["b.html -> a.html#gone", "b.html -> gone.html"]


REMOTES = {
    "https://example.org/a/b.git": "https://example.org/a/b",
    "git@example.org:a/b.git": "https://example.org/a/b",
    "ssh://git@example.org/a/b": "https://example.org/a/b",
    "https://user:word@example.org/a/b.git": "",
    "/srv/git/b": "",
    "": "",
}


@pytest.fixture
def hooks(monkeypatch):
    pytest.importorskip("ziamath")
    pytest.importorskip("mkdocs")
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    return hook("hooks")


@pytest.mark.parametrize("remote", REMOTES)
def test_pages_link_to_their_source_where_the_clone_says_an_address(remote, hooks, monkeypatch):
    monkeypatch.setattr(hooks.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=remote))
    config = SimpleNamespace(mdx_configs={}, edit_uri=None, repo_url=None)
    hooks.on_config(config)
    address = REMOTES[remote]
    assert config.edit_uri == (f"{address}/edit/main/docs/" if address else None)
    assert (f'href="{address}"' in config.copyright) == bool(address)
    assert config.repo_url is None  # with it a page asks the server of the repository


def test_every_tab_is_on_a_screen_of_1280_pixels():
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(re.search(r"^nav:\n(?:(?: .*)?\n)+", lines, re.M)[0])["nav"]
    wide, margins = 8, 24  # pixels of a letter at .7rem, and of a tab around its name
    assert sum(wide * len(name) + margins for tab in nav for name in tab) < 1220
    assert all(isinstance(tab, dict) for tab in nav)


TABLE = """
| policy | quantity | n | value | of | error | what it says |
|---|---|---|---|---|---|---|
| toy | `estimators/functional.py` | 1,024 | −.0043 [−.005, −.003] | .92 | ± 0.01 | {} |
"""


def test_cells_are_named_by_what_they_hold_and_names_break_at_their_marks():
    markdown = pytest.importorskip("markdown")
    tables = hook("tables")
    page = markdown.markdown(
        TABLE.format("A sentence " * 8), extensions=["tables", tables.Tables()]
    )
    assert page.count('class="dense number"') == 4
    assert page.count('class="long dense"') == 2  # its head too
    assert "<code>estimators/<wbr />functional.<wbr />py</code>" in page


def test_a_small_table_is_left_as_it_is():
    markdown = pytest.importorskip("markdown")
    text = "| a | b |\n|---|---|\n| `x_y` | no number 3 |"
    plain = markdown.markdown(text, extensions=["tables"])
    assert markdown.markdown(text, extensions=["tables", hook("tables").Tables()]) == plain
