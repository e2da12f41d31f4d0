import math

import pytest

from isentrope.system.formatting import PAGE, TERMINAL, listed, percent, power_of_ten


@pytest.mark.parametrize(
    ("value", "terminal", "page"),
    [
        (-1.78e-3, "-0.00178", "−0.00178"),
        (1e-7, "1e-07", "1·10⁻⁷"),
        (-2.5e-6, "-2.5e-06", "−2.5·10⁻⁶"),
        (123456.0, "1.23e+05", "1.23·10⁵"),
        (12345.0, "1.23e+04", "12300"),
        (99999.0, "1e+05", "100000"),
        (0.0, "0", "0"),
        (7, "7", "7"),
        (None, "–", "–"),
        (math.nan, "–", "–"),
        (math.inf, "inf", "∞"),
        (-math.inf, "-inf", "−∞"),
    ],
)
def test_numbers_are_short(value, terminal, page):
    assert TERMINAL.number(value) == terminal
    assert PAGE.number(value) == page


def test_an_error_has_fewer_digits_than_its_value():
    assert TERMINAL.with_error(-1.234, 0.567) == "-1.23 ± 0.6"
    assert PAGE.with_error(-1.234, 0.567) == "−1.23 ± 0.57"


def test_what_is_missing_is_a_dash():
    for style in (TERMINAL, PAGE):
        assert style.with_error(None, 0.1) == "–"
        assert style.with_error(2.0, None) == "2 ± –"
        assert style.interval(None, None) == "–"


def test_an_end_that_is_missing_beside_one_that_is_not_is_infinite():
    assert TERMINAL.interval(1.0, None) == "[1, ∞)"
    assert TERMINAL.interval(None, -1.0) == "(-∞, -1]"
    assert PAGE.interval(1.0, None) == "[1,\u00a0∞)"
    assert PAGE.interval(None, -1.0) == "(−∞,\u00a0−1]"


def test_an_interval_on_a_page_is_not_broken_between_lines():
    assert " " not in PAGE.interval(-0.5, 1e-6)
    assert TERMINAL.interval(-0.5, 1e-6) == "[-0.5, 1e-06]"


def test_ticks_are_powers_of_ten_and_nothing_between():
    ticks = {1e-3: "10⁻³", -1e-4: "−10⁻⁴", 1.0: "1", 100.0: "100", 0.0: "0", 0.2: ""}
    assert {value: power_of_ten(value) for value in ticks} == ticks


def test_shares_and_lists():
    assert [percent(x) for x in (0.6, 0.014, -0.5)] == ["60\u00a0%", "1.4\u00a0%", "−50\u00a0%"]
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
