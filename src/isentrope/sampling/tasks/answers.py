r"""Answers that are one number: where a response has them, and which number they are.

`read_number` reads references and answers alike, exactly, as a fraction:

    sign        -3  −3  –3  +3  -$3  $-3  minus 3
    currency    $18  \$18  18 €  USD 18
    thousands   70,000  70 000  70{,}000  70\,000  70_000  70k  7e4  7 \times 10^4  70 thousand
    parts       18.50  .5  1/2  \frac{1}{2}  ½  2½  2 1/2  18%  (a percent sign is a unit: 18)
    marks       **18**  `18`  <b>18</b>  $18$  \(18\)  \boxed{18}  \text{18}
    words       18 apples  18^\circ  x = 18  The answer is 18.  3 \times 6 = 18

Anything that is not one number is not read: lists and sets of guesses, bounds and estimates
("about 18", "18 or more"), an equation whose sides differ, powers, factorials, functions. The text
is bounded before it is read, and reading needs no clock: it takes less than milliseconds in any
thread.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

LONGEST = 300
"""Characters of an answer that are read; a longer text is not one number."""

MOST_DIGITS = 100
"""Digits of a number that is read."""

DEEPEST = 20
"""Brackets of a formula that is calculated."""

LARGEST_EXPONENT = 30
"""The largest power of ten in 7e4 and 7 × 10^4."""

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SPACES = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_CHARACTERS: dict[int, str] = (
    {ord(c): "-" for c in _DASHES}
    | {ord(c): " " for c in _SPACES}
    | {ord(c): "" for c in _INVISIBLE}
    | {c: chr(c - 0xFEE0) for c in range(0xFF10, 0xFF1A)}  # full-width digits
    | {0x00D7: "*", 0x22C5: "*", 0x00F7: "/", 0x2044: "/", 0x2215: "/", 0xFF04: "$"}
    | {0xFF0C: ",", 0xFF0E: ".", 0xFF05: "%", 0x2032: "'", 0x2019: "'"}
)

_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([\d.,\s]+)\}\s*\{([\d.,\s]+)\}|(\d)\s*(\d))")
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"</?(?:b|i|u|em|strong|code|span|p|big)>|<br ?/?>", " "),
        (r"\\[()\[\]]", " "),
        (r"(?<=\d)(?:\{,\}|\\,|\\!|\\ |\\;|\\:|\\thinspace|~|,\\!)\s?(?=\d{3}(?!\d))", ","),
        (r"\\(?:[,!;: ]|thinspace|quad|left|right|displaystyle)", " "),
        (r"\\(?:times|cdot)(?![A-Za-z])", "*"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\(?:pounds|euro|textdollar|texteuro|textsterling)(?![A-Za-z])", "$"),
        (r"\\([$%#&])", r"\1"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)", " degrees "),
        (r"\*\*|__|`+", " "),
    )
)
_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|mbox|mathrm|mathbf|mathit|bf)\s*\{([^{}]*)\}"
)

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+(?!\d)|\d{1,3}(?:'\d{3})+|\d+(?:_\d{3})*)"
_PLAIN = rf"(?:{_DIGITS}(?:\.\d+)?|\d+\.(?!\d)|\.\d+)"
_CURRENCY = r"(?:(?:US|A|C|NZ|HK)?[$€£¥₹]|(?:USD|EUR|GBP|INR|Rs\.?)(?![A-Za-z]))"
_SCALES = {"k": 3, "thousand": 3, "million": 6, "billion": 9}
_NUMBER = re.compile(
    rf"(?P<minus>(?:minus|negative)\s+)?(?P<sign>[-+]?)\s*(?:{_CURRENCY}\s*)?(?P<inner>[-+]?)"
    rf"(?:(?P<whole>\d+)\s+(?=\d+/\d))?(?P<number>{_PLAIN})"
    r"(?:\s?/\s?(?P<below>\d+))?"
    r"(?:[eE](?P<e>[-+]?\d{1,2})(?!\d)|\s*\*\s*10\s*\^\s*\{?(?P<ten>[-+]?\d{1,2})(?!\d)\}?)?"
    r"(?:(?P<k>[kK])(?![A-Za-z])|\s+(?P<scale>thousand|million|billion)\b)?"
)
_LEAD = re.compile(r"[A-Za-z'\s,():]*")
_UNIT = re.compile(
    r"(?![,-]|[xyzijne](?![A-Za-z]))(?:\s*[%€£¥₹¢$°])?"
    r"(?:[A-Za-z'²³/().,;:\s%-]*|[A-Za-z'/\s]*[A-Za-z]\^\{?[23]\}?[A-Za-z'/\s]*)"
)
_SPACED_SIGN = re.compile(r"\s*[-+]\s")
_ESTIMATE = re.compile(
    r"\b(?:or|not|no|nor|about|around|approx\w*|approximately|roughly|nearly|almost|maybe|perhaps|"
    r"possibly|probably|likely|estimated?|circa|ca|between|from|least|most|than|over|under|above|"
    r"below|more|less|fewer|up|ish|either|neither|minus|plus|times|half|twice|double|triple|"
    r"squared?|cubed?|root|sqrt|log|ln|exp|sin|cos|tan|factorial|unknown|unless|except|isn't|"
    r"wasn't|aren't|can't|cannot|don't|doesn't|if|guess|wrong|incorrect|false)\b",
    re.IGNORECASE,
)
_ARITHMETIC = re.compile(r"[\d.+\-*/() ]+")
_NO_FORMULA = re.compile(r"\*\*|//|\d\s+\d|\(\s*\)|\d-\d|\d/\d+/\d|[-+]\s*[-+]")
"""A power, a list, a range, a date or two signs."""


def read_number(text: str) -> Fraction | None:
    r"""Read a text that is one number, exactly.

    Args:
        text: For example " $1,080. ", "-3.50", "\\frac{36}{2}" or "18 apples".

    Returns:
        The number, or None if the text is anything else.
    """
    if len(text) > LONGEST:
        return None
    *sides, last = _normalised(text).split("=")
    value = _one_number(last) if sides else _one_number(last, alone=True)
    if value is None or not all(_agrees(side, value) for side in sides):
        return None
    return value


def _normalised(text: str) -> str:
    """The text without markup, in ASCII where that says the same."""
    text = "".join(_vulgar(c) for c in text).translate(_CHARACTERS)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    for _ in range(4):  # \boxed{\text{18}}
        text = _FRACTION.sub(_as_quotient, _WRAPPER.sub(r" \1 ", text))
    text = text.strip()
    for mark in ("$$", "$", "*", "_"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    return re.sub(r"\s+", " ", text).strip()


def _vulgar(character: str) -> str:
    """A fraction of one character, such as ½, written out."""
    if unicodedata.decomposition(character).startswith("<fraction>"):
        return " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
    return character


def _as_quotient(match: re.Match[str]) -> str:
    above, below = (part.strip() for part in match.groups() if part is not None)
    return f" {above}/{below}"


def _one_number(text: str, *, alone: bool = False) -> Fraction | None:
    """The number of a text that has one, between words; alone, it may be arithmetic."""
    text = text.strip()
    if alone and _ARITHMETIC.fullmatch(text) and (value := _calculated(text)) is not None:
        return value
    match = _NUMBER.search(text)
    if match is None:
        return None
    lead = text[: match.start()]
    unit = text[match.end() :].rstrip(". ")
    if _LEAD.fullmatch(lead) is None or _UNIT.fullmatch(unit) is None:
        return None
    attached = lead[-1:].isalpha() and not match[0][0].isspace()
    bullet = bool(lead.strip()) and _SPACED_SIGN.match(match[0]) is not None
    if attached or bullet or _ESTIMATE.search(f"{lead} ; {unit}"):
        return None
    return _value(match)


def _value(match: re.Match[str]) -> Fraction | None:
    """The number of a match of `_NUMBER`."""
    digits = re.sub(r"[, _']", "", match["number"])
    below = match["below"] or "1"
    exponent = int(match["e"] or match["ten"] or 0)
    exponent += _SCALES[(match["k"] or match["scale"] or "").lower()] if _scaled(match) else 0
    signs = [match["sign"], match["inner"], "-" if match["minus"] else ""]
    written = [sign for sign in signs if sign]
    within = abs(exponent) <= LARGEST_EXPONENT and len(digits) + len(below) <= MOST_DIGITS
    if not within or len(written) > 1 or not int(below):
        return None
    value = Fraction(digits.removesuffix(".")) / int(below) + int(match["whole"] or 0)
    return value * Fraction(10) ** exponent * (-1 if written == ["-"] else 1)


def _scaled(match: re.Match[str]) -> bool:
    return match["k"] is not None or match["scale"] is not None


def _agrees(side: str, value: Fraction) -> bool:
    """Whether one side of an equation has no number, or the value of the last one."""
    if not any(c.isdigit() for c in side):
        return _ESTIMATE.search(side) is None and not set(side) & set("<>≤≥≠≈~!")
    formula = re.sub(r"^[A-Za-z'\s,:]*(?=[\d.(\-$€£])", "", side)
    formula = re.sub(rf"{_CURRENCY}|(?<=\d),(?=\d{{3}}(?!\d))|%", "", formula)
    return _calculated(re.sub(r"[A-Za-z']+", "", formula).strip()) == value


def _calculated(text: str) -> Fraction | None:
    """The value of a formula of + - * / and brackets; None if it is none."""
    if not _ARITHMETIC.fullmatch(text) or _NO_FORMULA.search(text):
        return None
    tokens = re.findall(r"\d+(?:\.\d*)?|\.\d+|[-+*/()]", text)
    if text.count("(") > DEEPEST or max(map(len, tokens), default=0) > MOST_DIGITS:
        return None
    tokens.append("")  # the end
    try:
        value = _sum(tokens)
    except (ValueError, ZeroDivisionError):
        return None
    return value if tokens == [""] else None


def _sum(tokens: list[str]) -> Fraction:
    value = _product(tokens)
    while tokens[0] in ("+", "-"):
        minus = tokens.pop(0) == "-"
        term = _product(tokens)
        value = value - term if minus else value + term
    return value


def _product(tokens: list[str]) -> Fraction:
    value = _factor(tokens)
    while tokens[0] in ("*", "/"):
        below = tokens.pop(0) == "/"
        factor = _factor(tokens)
        value = value / factor if below else value * factor
    return value


def _factor(tokens: list[str]) -> Fraction:
    """A number or a bracket, with a sign; ValueError where there is none."""
    sign = -1 if tokens[0] == "-" else 1
    if tokens[0] in ("+", "-"):
        tokens.pop(0)
    token = tokens.pop(0) if len(tokens) > 1 else ""
    if token != "(":
        return sign * Fraction(token.removesuffix("."))
    value = _sum(tokens)
    if tokens[0] != ")":
        raise ValueError("a bracket is open")
    tokens.pop(0)
    return sign * value


# ---- where an answer stands

_SOME_NUMBER = re.compile(
    rf"(?:(?<![\w)])[-+{_DASHES}])?(?:\\?[$€£¥₹]\s?[-{_DASHES}]?)?"
    r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|,\\!)\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:/\d+)?"
)


def _boxed(text: str) -> str | None:
    r"""The content of the last \boxed{…}."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    body = text[start + len(r"\boxed") : start + len(r"\boxed") + LONGEST + 2]
    for end, character in enumerate(body):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return body[1:end]
    return None


def _tagged(text: str) -> str | None:
    """What the last <answer> … </answer> holds."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    return answer if closed and opened else None


def _after_hash(text: str) -> str | None:
    """The rest of the line after the last ####."""
    _, mark, answer = text.rpartition("####")
    return answer.partition("\n")[0] if mark else None


def _last_number(text: str) -> str | None:
    numbers = _SOME_NUMBER.findall(text[-10 * LONGEST :])
    return numbers[-1] if numbers else None


PLACES: dict[str, Callable[[str], str | None]] = {
    "tag": _tagged,
    "boxed": _boxed,
    "hash": _after_hash,
    "last_number": _last_number,
}
"""By the name of a place: the text of the last answer there, or None."""
