"""Numbers and estimates in words, short and with their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Number = Mapping[str, Any]
"""An Estimate as results.json has it: value, se, ci_low, ci_high, n, unit, ..."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """A number in few characters, with a minus sign that is one.

    Args:
        value: The number, or None where there is none.
        digits: Significant ones.

    Returns:
        For example "−0.0018" or "2.1·10⁻⁷".
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-4 <= abs(value) < 1e5:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa.replace('-', '−')}·{power_of_ten(10.0 ** int(power))}"
    text = f"{value:.{digits}g}"
    if "e" in text:
        text = f"{float(text):.0f}"
    return text.replace("-", "−")


def power_of_ten(value: float) -> str:
    """A tick of a logarithmic axis.

    Args:
        value: Where it is, of either sign.

    Returns:
        "10⁻³", "0", or nothing where it is no power of ten.
    """
    if value == 0:
        return "0"
    power = math.log10(abs(value))
    if abs(power - round(power)) > 1e-9:
        return ""
    sign = "−" if value < 0 else ""
    exponent = round(power)
    if 0 <= exponent <= 3:
        return f"{sign}{10**exponent}"
    return f"{sign}10{str(exponent).translate(_SUPERSCRIPTS)}"


def has_interval(estimate: Number) -> bool:
    """Whether an estimate has both ends of its interval.

    Args:
        estimate: The estimate.

    Returns:
        False where its error bar is not to be trusted.
    """
    return estimate.get("ci_low") is not None and estimate.get("ci_high") is not None


def with_interval(estimate: Number | None) -> str:
    """Value and interval, or value and standard error where there is no interval.

    An end that is missing beside one that is not is infinite, which JSON cannot hold.

    Args:
        estimate: The estimate, or None.

    Returns:
        For example "−0.0018 [−0.0024, −0.0011]".
    """
    if estimate is None or estimate.get("value") is None:
        return "–"
    low, high = estimate.get("ci_low"), estimate.get("ci_high")
    if low is not None or high is not None:
        left = "(−∞" if low is None else f"[{number(low)}"
        right = "∞)" if high is None else f"{number(high)}]"
        return f"{number(estimate['value'])} {left},\u00a0{right}"
    if estimate.get("se") is not None:
        return f"{number(estimate['value'])} ± {number(estimate['se'], 2)} (no interval)"
    return f"{number(estimate['value'])} (no interval)"


def without_error(estimate: Number | None) -> str:
    """Value and interval, and never a standard error: for a ratio, whose spread is not even.

    Args:
        estimate: The estimate, or None.

    Returns:
        For example "0.013 [0.0083, ∞)" or "0.013 (no interval)".
    """
    return with_interval(None if estimate is None else {**estimate, "se": None})


def with_error(estimate: Number | None) -> str:
    """Value and standard error.

    Args:
        estimate: The estimate, or None.

    Returns:
        For example "−1.78 ± 0.34".
    """
    if estimate is None or estimate.get("value") is None:
        return "–"
    return f"{number(estimate['value'])} ± {number(estimate.get('se'), 2)}"


def scaled(estimate: Number, factor: float, unit: str) -> dict[str, Any]:
    """The same estimate in another unit.

    Args:
        estimate: The estimate.
        factor: Positive.
        unit: What it is in then.

    Returns:
        A copy.
    """
    ends = ("value", "se", "ci_low", "ci_high")
    said = {key: None if estimate.get(key) is None else estimate[key] * factor for key in ends}
    return {**estimate, **said, "unit": unit}


def percent(share: float) -> str:
    """A share of something.

    Args:
        share: 1 is all of it.

    Returns:
        For example "60 %", or "1.4 %" where it is small.
    """
    size = abs(share) * 100
    digits = 0 if size >= 9.95 else 1
    return f"{share * 100:.{digits}f}\u00a0%".replace("-", "−")


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    Args:
        words: At least one.

    Returns:
        For example "one, two and three".
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
