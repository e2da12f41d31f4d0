"""The numbers of a page, passage by passage, and whether another page has them."""

import re

NUMBER = re.compile(r"(?<![\w.])(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?(?<!,)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:\s+\(\w{8}\))?")
_ORIGIN = re.compile(r"^Made on .*$", re.MULTILINE)


def passages(text):
    """Paragraphs, items and rows; under a heading of the third level all of it together."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    whole = re.search(r"^### .*\?$", text, re.M)
    return re.split(r"^### " if whole else r"\n\n|\n(?=[|#*-] ?)", text, flags=re.M)


def numbers(text):
    """Numbers as they are written, without dates and those of code and of targets of links."""
    text = (
        re.sub(r"`[^`]*`|\]\([^)]*\)", " ", _DATE.sub(" ", text))
        .replace("−", "-")
        .replace("–", " ")
    )
    return [x.rstrip(".") for x in NUMBER.findall(text.replace("\u202f", ""))]


def telling(text):
    """Numbers of two digits or more: those of one are counts, mostly."""
    return [x for x in numbers(text) if len(re.sub(r"e.*|\D", "", x).lstrip("0")) > 1]


def values(text):
    """Every number of a page, code included, without those of the lines that say its origin."""
    return [float(x.replace(",", "")) for x in NUMBER.findall(_ORIGIN.sub("", text))]


def is_among(number, values):
    """Whether it is one of the values as it is rounded, or that as a percentage."""
    mantissa, _, exponent = number.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    value = float(number.replace(",", ""))
    half = 0.5001 * 10.0 ** (int(exponent or 0) - decimals)
    return any(abs(value - scale * y) <= half for y in values for scale in (1, 100, 0.01))
