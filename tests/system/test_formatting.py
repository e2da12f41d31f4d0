import math
import re
from pathlib import Path

import pytest

from isentrope.system.formatting import PAGE, TERMINAL, listed, percent, power_of_ten

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("value", "se", "terminal", "page"),
    [
        (-1.234, 0.567, "-1.2 ± 0.6", "−1.23 ± 0.57"),
        (53.6, 11.2, "54 ± 11", "54 ± 11"),
        (0.0139, 0.099, "0.014 ± 0.099", "0.014 ± 0.099"),
        (1372.0, 412.0, "1372 ± 412", "1372 ± 412"),
        (-9.77e-6, 8.2e-7, "(-9.8 ± 0.8)e-06", "(−9.77 ± 0.82)·10⁻⁶"),
        (-3e-9, 2e-7, "(0 ± 2)e-07", "(0.0 ± 2.0)·10⁻⁷"),
        (2.5e7, 3e6, "(2.5 ± 0.3)e+07", "(2.50 ± 0.30)·10⁷"),
        (-0.004, 0.3, "0.0 ± 0.3", "0.00 ± 0.30"),
        (1.0, 0.0, "1 ± 0", "1 ± 0"),
        (1.0, 1e-15, "1 ± 1e-15", "1 ± 1·10⁻¹⁵"),
    ],
)
def test_a_value_and_its_error_end_at_one_decimal(value, se, terminal, page):
    assert TERMINAL.with_error(value, se) == terminal
    assert PAGE.with_error(value, se) == page


def test_no_error_is_a_power_of_ten_beside_a_value_that_is_none():
    for power in range(-12, 12):
        for leading in (1.0, 1.4, 9.6, 9.96):
            for ratio in (0.01, 1.0, 70.0):
                se = leading * 10.0**power
                left, right = TERMINAL.with_error(ratio * se, se).strip("()").split(" ± ")
                right = right.split(")")[0]
                assert "e" not in left + right
                assert len(left.partition(".")[2]) == len(right.partition(".")[2])


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


def test_no_other_place_writes_an_error_in_digits_of_its_own():
    """`{x:.3g} ± {se:.1g}` prints 53.6 ± 1e+01."""
    own_digits = re.compile(r"[eg]\}\s?±\s?\{")
    folders = ("src/isentrope", "studies", "validation", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 400
    assert not [str(path) for path in files if own_digits.search(path.read_text("utf-8"))]
