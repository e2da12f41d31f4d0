"""What is said of a training log: from what to what, by how much, and with which interval."""

import re

import numpy as np
import pytest

from isentrope.results.answers.training import training_sentence


def lines(**columns):
    rows = zip(*columns.values(), strict=True)
    return [
        {"step": k, **dict(zip(columns, row, strict=True))} for k, row in enumerate(rows, start=1)
    ]


def test_a_run_is_said_from_its_first_steps_to_its_last():
    noise = np.tile([0.01, -0.01], 10)
    falling = np.linspace(0.5, 0.2, 20) + noise
    (sentence,) = training_sentence(lines(entropy=falling, reward=0.5 + noise))
    assert "the first to the last 5 of 20 steps entropy fell from 0.47" in sentence.text
    assert "reward went from" in sentence.text
    assert "which may be chance" in sentence.text


def test_a_reading_that_never_changes_is_said_once():
    (sentence,) = training_sentence(lines(reward=[0.0] * 8))
    assert sentence.text.startswith("The reward of all 8 steps is 0.")


def test_the_interval_of_the_change_covers_whatever_the_trend_and_the_noise():
    rng = np.random.default_rng(0)
    trend = 3 * np.exp(-np.arange(40) / 8)
    truth = trend[-5:].mean() - trend[:5].mean()
    covered = 0
    for _ in range(300):
        entropy = 10 + trend + np.linspace(1.5, 0.5, 40) * rng.normal(size=40)
        (sentence,) = training_sentence(lines(entropy=entropy))
        text = sentence.text.replace("−", "-").replace("\u00a0", " ")
        change = text.partition("], a change of ")[2]
        low, high = map(float, re.findall(r"\[(\S+), (\S+)\]", change)[0])
        covered += low - 0.005 <= truth <= high + 0.005  # digits that are printed
    assert 0.91 < covered / 300 < 0.98


@pytest.mark.parametrize("count", [2, 5])
def test_a_log_too_short_for_an_interval_has_no_number(count):
    (sentence,) = training_sentence(lines(entropy=[0.5 - k / 10 for k in range(count)]))
    assert f"the log has {count} steps" in sentence.text
    assert "0." not in sentence.text


@pytest.mark.parametrize(
    "steps",
    [[], [{"step": 1, "entropy": 0.5}], [{"step": 1, "loss": 1}, {"step": 2, "loss": 1}]],
)
def test_nothing_is_said_of_a_log_without_two_steps_or_without_the_numbers(steps):
    assert list(training_sentence(steps)) == []
