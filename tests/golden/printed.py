"""What a command printed, as lines that another CPU prints too.

Paths, times and numbers that are rounding noise are masked. The last digit of a number may differ
by one, and with it the width of a column, so runs of spaces and of rules count as one.
"""

import math
import re
from contextlib import contextmanager
from decimal import Decimal

from rich.console import Console

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")
GAP = re.compile(r"[─━]{2,}|\s+")
NOISE = (
    re.compile(r"(?<=sum to the total to )\S+"),
    re.compile(r"(?<=; rounding )\S+"),
    re.compile(r"(?<=ms/response  ).*"),
    re.compile(r"\d(?:\.\d+)?e-1[1-9]"),
)
"""Closure, the rounding floor, times, and whatever is as small as rounding."""


def lines_of(said, places):
    """The lines that were printed."""
    for path, name in places.items():
        said = said.replace(path, name)
    for pattern in NOISE:
        said = pattern.sub("<noise>", said)
    said = said.replace("± <noise>", "± 0")  # an error that is rounding is none
    return [line.rstrip() for line in said.splitlines()]


def changed_lines(before, after):
    """Lines that are not the same, as pairs."""
    if len(before) != len(after):
        return [(f"{len(before)} lines", f"{len(after)} lines")]
    return [pair for pair in zip(before, after, strict=True) if not _same(*pair)]


def _same(before, after):
    words = [GAP.sub(" ", text) for text in (before, after)]
    if NUMBER.split(words[0]) != NUMBER.split(words[1]):
        return False
    pairs = zip(*(NUMBER.findall(text) for text in words), strict=True)
    return all(_near(x, y) for x, y in pairs)


def _near(x, y):
    """Whether two printed numbers differ by a unit of their last digit at most."""
    units = (Decimal(text).as_tuple().exponent for text in (x, y))
    return math.isclose(float(x), float(y), rel_tol=0, abs_tol=1.01 * 10.0 ** max(units))


@contextmanager
def everything(console):
    """The texts that are printed in this block, on the first screen or not."""
    texts, shown = [], console.print

    def keep(*objects, **options):
        with console.capture() as captured:
            Console.print(console, *objects, **options)
        texts.append(captured.get())
        shown(*objects, **options)

    console.print = keep
    try:
        yield texts
    finally:
        del console.print
