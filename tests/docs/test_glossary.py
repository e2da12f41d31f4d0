"""The glossary: each term once, its formula in the theory, and keys and names that exist."""

import re

import pytest

import isentrope
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import TrainConfig
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| term |")
]
SPANS = re.findall(r"`([^`]+)`", TEXT)
WRITTEN = [
    (ROOT / "tests" / "golden" / "expected" / f"{verb}.json").read_text(encoding="utf-8")
    for verb in ("measure", "influence", "kernel", "noise")
]
"""What verbs write."""
SETTINGS = {**MeasureConfig.model_fields, **TrainConfig.model_fields}


def unknown_settings(spans: list[str]) -> list[str]:
    """Spans like section.key whose section is one of the configuration and whose key is not."""
    named = [re.match(r"(\w+)\.(?!parquet)(\w+)(?=$|:)", span) for span in spans]
    pairs = [(m[1], m[2]) for m in named if m and m[1] in SETTINGS]
    return [f"{s}.{key}" for s, key in pairs if key not in SETTINGS[s].annotation.model_fields]


def unknown_results(spans: list[str]) -> list[str]:
    """Paths of numbers, as sweep[].name or budget.name, that no results.json has."""
    paths = [s for s in spans if re.match(r"(?:sweep\[\]|budget|checks|entropy)\.\w+$", s)]
    return [p for p in paths if not any(p.replace("[]", "[0]") in w for w in WRITTEN)]


def test_each_term_is_there_once():
    terms = [row[0] for row in ROWS]
    assert len(terms) > 50
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_entry_has_a_short_meaning_and_a_formula_of_the_theory(row):
    term, meaning, formula, where = row
    theory = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert all((term, where))
    assert meaning.endswith(".")
    assert len(re.findall(r"[.!?] ", meaning)) <= 1
    if formula and "notation" not in formula:
        number, anchor = re.fullmatch(r"\[(T\d+)\]\(theory\.md#(t\d+)-[\w-]+\)", formula).groups()
        assert f"## {number} " in theory
        assert anchor == number.lower()


def test_settings_results_and_public_names_exist():
    assert unknown_settings(SPANS) == []
    assert unknown_results(SPANS) == []
    public = [m[1] for span in SPANS if (m := re.fullmatch(r"ise\.(\w+)", span))]
    assert [name for name in public if not hasattr(isentrope, name)] == []


def test_a_setting_or_result_that_does_not_exist_is_found():
    assert unknown_settings(["batch_config.B_X", "batch_config.B_E"]) == ["batch_config.B_X"]
    assert unknown_results(["sweep[].verdit", "sweep[].verdict"]) == ["sweep[].verdit"]
