"""What the site adds to its pages: tooltips of the glossary, and no link that leads nowhere."""

from importlib.util import module_from_spec, spec_from_file_location

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
        f'<p>The <code>verdict</code> is a <abbr title="{meaning}">verdict</abbr>. A verdict of '
        '<a href="x.html">ESS</a>.</p>'
    )


def test_an_attribute_with_a_term_in_it_is_left_alone():
    page = '<img alt="the ESS > 8" src="x.png"><svg aria-label="k"><g>ESS</g></svg>'
    assert hook("terms").with_tooltips(page) == page


def test_letters_of_formulas_are_no_terms_and_batches_are():
    assert {"E", "U", "η*", "k̂", "δH₁"} <= hook("terms").meanings().keys()
    assert not {"s", "S", "H", "h", "J"} & hook("terms").meanings().keys()


def test_a_link_to_a_page_or_an_anchor_that_is_not_there_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">x</a> <a href="#here">y</a>'
    )
    (tmp_path / "b.html").write_text(
        '<h2 id="there"><a href="https://a.b/c">z</a><a href="gone.html"></a><a href="a.html#gone">'
    )
    assert hook("links").dead_links(tmp_path) == ["b.html -> a.html#gone", "b.html -> gone.html"]
