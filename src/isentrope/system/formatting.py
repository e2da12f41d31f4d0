"""Numbers as text: values, errors, intervals and shares, for a terminal and for a page.

    TERMINAL    -0.0018 ± 0.0002     (-1.8 ± 0.2)e-07       [-0.0024, 2.1e-07]    1.4 %
    PAGE        −0.00183 ± 0.00021   (−1.83 ± 0.21)·10⁻⁷    [−0.0024, 2.1·10⁻⁷]   1.4 %

A value and its error end at one decimal, which the error decides. A number that is missing is a
dash. Where one end of an interval is missing it is infinite, because JSON has no infinity.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "–"
SMALLEST_DECIMAL = 1e-4
LARGEST_DECIMAL = 1e5
"""Between these a value and its error are written without a power of ten."""
MOST_DECIMALS = 6
"""Decimals beyond which a number below 0.1 has a power of ten."""
LARGEST_RATIO = 6
"""Powers of ten between a value and its error beyond which the value keeps its own digits."""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Format:
    """One way of writing numbers.

    Attributes:
        typeset: Whether minus signs, infinities and powers of ten are typeset; otherwise they are
            as Python prints them.
        error_digits: Digits of an error; one that begins with a 1 has two.
    """

    typeset: bool
    error_digits: int

    def number(self, value: float | None, digits: int = 3) -> str:
        """A number in few characters.

        Args:
            value: The number, or None where there is none.
            digits: Significant ones.

        Returns:
            For example "-0.0018" or "2.1e-07"; on a page "−0.0018" or "2.1·10⁻⁷".
        """
        if value is None or math.isnan(value):
            return MISSING
        return _typeset(value, digits) if self.typeset else f"{value:.{digits}g}"

    def with_error(self, value: float | None, se: float | None) -> str:
        """A value and its standard error, in the same number of decimals.

        Args:
            value: The value, or None where there is none.
            se: Its standard error, or None where there is none.

        Returns:
            For example "-2.2 ± 0.3", "54 ± 11" or "(-1.8 ± 0.2)e-07"; a dash without a value.
        """
        if value is None or math.isnan(value):
            return MISSING
        size = max(abs(value), se or 0.0)
        if not se or not math.isfinite(se) or not math.isfinite(size):
            return f"{self.number(value)} ± {self.number(se)}"
        leading = f"{se:.0e}"[0]
        digits = 2 if leading == "1" else self.error_digits
        power = int(f"{se:.{digits - 1}e}".split("e")[1])  # of ten, of the error's first digit
        if math.log10(size) - power > LARGEST_RATIO:
            return f"{self.number(value)} ± {self.number(se, digits)}"
        few_decimals = digits - 1 - power <= MOST_DECIMALS or size >= 0.1
        short = few_decimals and SMALLEST_DECIMAL <= size < LARGEST_DECIMAL
        exponent = 0 if short else int(f"{size:e}".split("e")[1])
        scale = 10.0**exponent
        decimals = max(digits - 1 - power + exponent, 0)
        rounded = round(value / scale, decimals) + 0.0  # no "-0"
        text = f"{rounded:.{decimals}f} ± {se / scale:.{decimals}f}"
        if self.typeset:
            text = text.replace("-", "−")
        if short:
            return text
        return f"({text})" + (f"·{power_of_ten(scale)}" if self.typeset else f"e{exponent:+03d}")

    def interval(self, low: float | None, high: float | None) -> str:
        """An interval.

        Args:
            low: Lower end; None or not finite if it is infinite, or if there is no interval.
            high: Upper end.

        Returns:
            For example "[0.0017, ∞)"; a dash if there are no ends.
        """
        low = known(low)
        high = known(high)
        if low is None and high is None:
            return MISSING
        minus, gap = ("−", "\u00a0") if self.typeset else ("-", " ")
        left = f"({minus}∞" if low is None else f"[{self.number(low)}"
        right = "∞)" if high is None else f"{self.number(high)}]"
        return f"{left},{gap}{right}"


def known(value: float | None) -> float | None:
    """None in place of a number that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def finite(content: Any) -> Any:
    """A copy of plain values with None for every number that is not finite, as JSON needs it."""
    return json.JSONDecoder(parse_constant=lambda _: None).decode(json.dumps(content))


TERMINAL = Format(typeset=False, error_digits=1)
PAGE = Format(typeset=True, error_digits=2)


def _typeset(value: float, digits: int) -> str:
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
    """A tick of a logarithmic axis: "10⁻³", "0", or nothing where it is not a power of ten."""
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


def percent(share: float) -> str:
    """A share of 1, on a page: "60 %", or "1.4 %" where it is small."""
    size = abs(share) * 100
    digits = 0 if size >= 9.95 else 1
    return f"{share * 100:.{digits}f}\u00a0%".replace("-", "−")


def listed(words: Sequence[str]) -> str:
    """At least one word as a list in a sentence: "one, two and three"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def gigabytes(size: float) -> str:
    """A size in bytes, in words."""
    if size < 1e5:
        return f"{size / 1e3:.1f} kB"
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def sizes_in_words(terms: Mapping[str, int]) -> str:
    """Sizes by what they are."""
    return ", ".join(f"{name} {gigabytes(size)}" for name, size in terms.items())
