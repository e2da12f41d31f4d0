"""What is said of a frontier: no more than is known of it."""

import math
from dataclasses import fields, replace

import pytest

from isentrope import Estimate, Frontier
from isentrope.attribution.frontier import frontier as frontiers
from isentrope.attribution.frontier.places import Place
from isentrope.results.answers import frontier as answer

KNOWN = Estimate.from_standard_error(0.5, 0.1, 64, unit="share", method="jackknife")
UNKNOWN = replace(KNOWN, ci_low=math.nan, ci_high=math.nan)
NO_VALUE = replace(UNKNOWN, value=math.nan)
NAMES = [field.name for field in fields(Frontier) if field.name not in ("length", "missing")]


def frontier(missing=(), **numbers):
    return Frontier(length=1.0, missing=missing, **(dict.fromkeys(NAMES, KNOWN) | numbers))


@pytest.mark.parametrize(
    ("missing", "best", "words"),
    [
        ((), KNOWN, "could bring more reward than"),
        ((frontiers._NONE_KEEPS,), NO_VALUE, "could keep entropy"),
        ((frontiers._UNKNOWN_WHETHER,), UNKNOWN, "is known to keep entropy"),
        ((frontiers._UNKNOWN_WHETHER,), NO_VALUE, "is known to keep entropy"),
    ],
)
def test_that_no_step_keeps_entropy_is_said_where_it_is_known(missing, best, words):
    (sentence,) = answer.room_sentences(frontier(missing, best=best), 1e-3)
    assert f"No change of this step of the same length {words}" in sentence.text


WORDS = {
    "lost": "lost",
    "reward_for_a_nat": "a nat less",
    "centre_reward": "ηδJ 0.",
    "centre_entropy": "ηδH",
}
"""Words of the lines by the number that they stand for."""


@pytest.mark.parametrize("name", NAMES)
def test_no_value_without_an_interval_is_in_a_sentence_or_a_line(name):
    without = frontier(**{name: replace(UNKNOWN, value=0.777)})
    texts = [
        *answer.room_lines(without, 1.0),
        *(x.text for x in answer.room_sentences(without, 1.0)),
    ]
    assert not any("0.777" in text or "no interval" in text for text in texts)


@pytest.mark.parametrize(("name", "words"), WORDS.items())
def test_what_has_an_interval_has_words(name, words):
    assert any(words in line for line in answer.room_lines(frontier(), 1e-3))
    assert not any(words in line for line in answer.room_lines(frontier(**{name: UNKNOWN}), 1e-3))


@pytest.mark.parametrize("name", ["reached", "reached_over_plain", "lost"])
def test_no_value_without_an_interval_is_in_the_table_of_places(name):
    names = [field.name for field in fields(Place) if field.name != "length"]
    numbers = dict.fromkeys(names, KNOWN) | {name: replace(UNKNOWN, value=0.777)}
    table = answer.places_table(
        [answer.Placed("bonus", 1.0, Place(length=1.0, **numbers))], "", 1.0, 0.95
    )
    cells = [column.cell(0, row) for row in table.rows for column in table.columns]
    assert not any("0.777" in cell for cell in cells)
    assert any("0.5" in cell for cell in cells)


def test_steps_that_cannot_be_told_apart_are_not_said_to_be_equal():
    gap = Estimate.from_standard_error(0.01, 0.1, 64, unit="share", method="jackknife")
    names = [field.name for field in fields(Place) if field.name != "length"]
    place = Place(length=1.0, **(dict.fromkeys(names, KNOWN) | {"reached_over_plain": gap}))
    (sentence,) = answer.places_sentence([answer.Placed("bonus", 1.0, place)], 0.95)
    assert "none is shown to be nearer to the edge than the plain one, or farther" in sentence.text
