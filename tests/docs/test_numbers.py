"""A number that is told beside a link is on a page that the link leads to."""

import re

import pytest

from tests.docs.figures import is_among, passages, telling, values
from tests.docs.pages import ROOT

TELLING = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DERIVED = {
    "README.md": {"135"},  # millions of parameters, a name
    "attribution.md": {"38"},  # .97 to the power of 32, of 100
    "control.md": {".015"},  # probability of the token, set by the task
    "estimators.md": {"108"},  # rows of the table
    "limitations.md": {"17"},  # copies that the code holds
    "own_checkpoint.md": {"0.19"},  # a version
    "plan.md": {"1.05"},  # an aim
    "proofs.md": {"12", "17", ".015", "17,000"},  # counts of rows, and what a table sums to
    "questions.md": {
        *("40", "58", "27", "89", "99", "74", "85"),  # steps; counts from shares, with intervals
        *("7.6", "17", "5.9"),  # per cent above 1
    },
    "scale.md": {".53"},  # 2034 of 3874 MB
    "stability.md": {"3.7e-9", "1.7"},  # spacing of floats
    "theory.md": {"2024"},  # a year
    "two_lines.md": {"10.5"},  # per cent above 1
}
"""By page: numbers that follow from those of the other page, or are none of its results."""

_LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")


def untold(page, passage):
    """Numbers of two digits or more that no page which the passage links to has."""
    targets = [path for name in _LINK.findall(passage) if (path := page.parent / name).is_file()]
    if not targets:
        return set()
    known = [x for path in targets for x in values(path.read_text(encoding="utf-8"))]
    return {x for x in telling(passage) if not is_among(x, known)}


@pytest.mark.parametrize("page", TELLING, ids=lambda page: page.name)
def test_a_number_beside_a_link_is_on_the_page_that_it_leads_to(page):
    found = [untold(page, x) for x in passages(page.read_text(encoding="utf-8"))]
    assert set().union(*found) <= DERIVED.get(page.name, set())


def test_a_number_that_is_nowhere_is_found(tmp_path):
    (tmp_path / "table.md").write_text("| .5641 ± .02 | 0.125 |\n")
    page = tmp_path / "page.md"
    (passage,) = passages("It is .56 ± .02, or 12.5 %, and not .57 ([table](table.md)).")
    assert untold(page, passage) == {".57"}
