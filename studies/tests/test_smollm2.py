"""The claims of the study of SmolLM2, on numbers that are known."""

import math

import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from studies.smollm2 import CLAIMS, Claim, interval, of_log, of_tokens, shown_tokens


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 1.2], "holds"),
        ([0.3, 0.31, 0.32], "**does not hold**"),
        ([1.0, 1.1, 0.2], "not resolved"),
        ([1.0], "not resolved"),
    ],
)
def test_a_verdict_is_where_the_interval_is(values, verdict):
    assert Claim("", "", "", low=0.8, high=1.5).verdict(values) == verdict


def test_the_interval_is_that_of_students_t():
    expected = ttest_1samp([1.0, 4.0, 2.5], 0).confidence_interval(0.95)
    assert interval([1.0, 4.0, 2.5]) == pytest.approx(tuple(expected))
    assert interval([1.0]) == interval([2.0, 2.0, 2.0]) == (-math.inf, math.inf)


def test_of_a_log_readings_are_summed_and_other_steps_predicted():
    nan = math.nan
    log = pd.DataFrame(
        {
            "step": [1, 2, 3, 4],
            "reward": [0.0, 0.2, 0.4, 0.6],
            "probe/first_order": [-0.4, nan, -0.2, nan],
            "probe/change": [-0.3, nan, -0.1, nan],
            "probe/momentum": [0.0, nan, -0.15, nan],
            "probe/kept_first_order": [nan, -0.1, 0.1, -0.1],
            "price/entropy": [2.0, nan, 1.5, nan],
            "price/reward": [0.2, nan, 0.1, nan],
            "price/reward_change": [0.1, nan, 0.05, nan],
            "price/at_first_token/entropy": [0.5, nan, 0.2, nan],
            "price/at_first_token/first_order": [-0.1, nan, -0.05, nan],
            "price/at_first_token/reward": [0.06, nan, 0.0, nan],
        }
    ).set_index("step")
    numbers = of_log(log)
    expected = {
        "change of h between the two": -0.5,
        "the same, predicted step by step": -0.5,  # steps 1 and 2
        "Σ ηδH₁ over Σ ΔH": 1.5,
        "momentum's share of Σ ηδH₁": 0.75,
        "share of right signs": 0.0,
        "Σ ηδJ₁ − Σ ΔJ": 0.15,
        "reward for a nat, Σ ηδJ₁ / −Σ ηδH₁": 0.5,
        "first token: share of h": 0.2,
        "first token: share of Σ ηδH₁": 0.25,
        "first token: share of Σ ηδJ₁": 0.2,
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    assert {c.number for c in CLAIMS[2:6]} <= set(numbers)


def tokens():
    """A hundred tokens of two responses, of which one has half of the fall."""
    frame = pd.DataFrame({"sequence": [0] * 50 + [1] * 50, "position": [*range(50)] * 2})
    frame["text"] = "a"
    frame["coefficient"] = frame["advantage"] = [0.5] * 50 + [-0.5] * 50
    frame["delta_h"] = -0.01
    frame["s"], frame["H"] = -1.0, frame.index / 100
    frame.loc[99, ["delta_h", "s", "text"]] = -0.99, -5.0, "\n"
    return frame


def test_of_tokens_the_most_negative_are_described():
    value = {"value": -2.0}
    result = {
        "classes": {
            "tokens": {
                "parts": {
                    "likely, rewarded, high entropy": {"delta_h": {"value": 1.0}},
                    "likely, rewarded, low entropy": {"delta_h": {"value": 2.0}},
                    "unlikely, punished, low entropy": {"delta_h": {"value": -4.0}},
                },
                "gradient": value,
                "criterion": {"0.02": {"selected": {"fall": {"value": 0.3}}}},
            }
        },
        "entropy": {"total": value, "momentum": value},
        "reliability": {"tokens": {"value": 0.9}},
    }
    numbers = of_tokens(tokens(), result)
    assert numbers["fall, share of the 2 % most negative"] == pytest.approx(1.0 / 1.98)
    assert numbers["overlap with the covariance"] >= 0.5
    assert numbers["their δH₁ per η"] == 3.0
    of_steps = {c.number.partition(": ")[2] for c in CLAIMS if c.number.startswith("step")}
    assert of_steps <= set(numbers)


def test_tokens_are_shown_with_their_share_where_it_is_large():
    first, second = shown_tokens(tokens()).splitlines()
    assert first == "A = -0.50, Σ δH₁ = -1.48: " + "a" * 49 + "⏎[-0.99]"
    assert second == "A = +0.50, Σ δH₁ = -0.50: " + "a" * 50
