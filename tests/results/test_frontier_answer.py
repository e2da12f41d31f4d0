"""What is said of a frontier: no more than is known of it."""

import math
from dataclasses import fields, replace

import pytest

from isentrope import Estimate, Frontier
from isentrope.attribution.frontier import frontier as frontiers
from isentrope.attribution.frontier.places import Place
from isentrope.results.answers.frontier import Placed, places_sentence, room_lines, room_sentences

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
    (sentence,) = room_sentences(frontier(missing, best=best), 1e-3)
    assert f"No change of this step of the same length {words}" in sentence.text


def test_what_has_no_interval_has_no_line():
    assert any("lost" in line for line in room_lines(frontier(), 1e-3))
    assert not any("lost" in line for line in room_lines(frontier(lost=UNKNOWN), 1e-3))


def test_steps_that_cannot_be_told_apart_are_not_said_to_be_equal():
    gap = Estimate.from_standard_error(0.01, 0.1, 64, unit="share", method="jackknife")
    names = [field.name for field in fields(Place) if field.name != "length"]
    place = Place(length=1.0, **(dict.fromkeys(names, KNOWN) | {"reached_over_plain": gap}))
    (sentence,) = places_sentence([Placed("bonus", 1.0, place)], 0.95)
    assert "none is shown to be nearer to the edge than the plain one, or farther" in sentence.text
