"""What verbs print first, and that nothing unknown is printed as a dash in a sentence."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from isentrope.results.answers.entropies import WORDS, entropies_sentences
from tests.golden.scenes import COMMANDS

GOLDEN = Path(__file__).parents[1] / "golden" / "expected"


def first_line(agreeing, logged=0.11):
    names = list(WORDS)[:10]
    rows = [
        SimpleNamespace(
            batch="U",
            definition=name,
            agrees=None if agreeing is None else k < agreeing,
            value=SimpleNamespace(value=0.12 + k / 500),
        )
        for k, name in enumerate(names)
    ]
    result = SimpleNamespace(rows=rows, logged=logged, logged_from="step_30")
    return next(entropies_sentences(result)).text


@pytest.mark.parametrize(
    ("agreeing", "answer"),
    [
        (0, "agrees within errors with none of the definitions"),
        (2, "agrees within errors with “per token” on U and “mean of micro-batches” on U"),
        (6, "6 of 10 rows: this U is too small to tell which was logged"),
    ],
)
def test_entropies_begin_with_what_was_logged(agreeing, answer):
    assert answer in first_line(agreeing)


def test_rows_without_an_interval_are_not_said_to_disagree_with_the_log():
    assert "cannot be compared: no row has an interval" in first_line(None)


def test_a_logged_value_of_few_digits_is_asked_for_more_of_them():
    answer = "0.1 (step_30) has too few digits to tell which was logged: 10 of 10 rows round to it"
    assert answer in first_line(10, logged=0.1)


@pytest.mark.parametrize("name", [x for x in COMMANDS if (GOLDEN / f"{x}.txt").exists()])
def test_a_sentence_has_no_dash_for_what_is_not_known(name):
    lines = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if "– of it" in line or "– for a nat" in line]
