from collections import Counter

import pytest

from examples.tasks.shortcut import Shortcut, style_of


@pytest.mark.parametrize(
    ("response", "style", "reward"),
    [
        ("7+5=12 4+8+1=13 #132", "long", 1.0),
        ("7+5=12 4+8+1=13 #131", "long", 0.0),
        ("12 13 #132", "sums", 0.6),
        ("2c1 3c1 #132", "digits", 0.6),
        ("2c1 3c1 #32", "digits", 0.0),
        ("7+5=12 #132", None, 0.6),
        ("7+5=12 4+8+1=13 #132 ", None, 0.6),
        ("2c1 3c1 132", None, 0.6),
        ("", None, 0.0),
    ],
)
def test_a_correct_result_is_worth_more_in_the_long_style(response, style, reward):
    assert style_of(response) == style
    assert Shortcut(plain=0.6).reward(response, "132") == reward


def test_demonstrations_have_the_stated_styles_and_slip_equally_in_all():
    task = Shortcut(rare=0.1, slip=0.2)
    shown = [
        (style_of(text), task.reward(text, p.reference)) for p, text in task.demonstrations(9000, 0)
    ]
    styles = Counter(style for style, _ in shown)
    rates = {"long": 0.1, "digits": 0.9 * 0.9 / 0.97, "sums": 0.9 * 0.07 / 0.97}
    assert set(styles) == set(rates)
    for style, rate in rates.items():
        rewards = [r for s, r in shown if s == style]
        assert styles[style] / 9000 == pytest.approx(rate, abs=0.015)
        assert sum(r > 0 for r in rewards) / len(rewards) == pytest.approx(0.8**2, abs=0.06)
        assert set(rewards) == {0.0, 1.0 if style == "long" else 0.6}
