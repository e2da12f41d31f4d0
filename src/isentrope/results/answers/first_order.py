"""How near the first order is to the change that was measured, and how far it reaches."""

import math
from collections.abc import Iterator

from isentrope.estimators.sweep import SweepRow
from isentrope.results.answers.blocks import Sentence
from isentrope.results.answers.words import has_interval, short, with_interval
from isentrope.results.results import MeasureResult

FIRST_ORDER = "First order"
AGREES = 0.02
"""Part of a change by which the first order may differ and agree with it."""


def first_order_sentence(result: MeasureResult) -> Iterator[Sentence]:
    """The prediction, beside what was measured on the same responses, and the linear range."""
    row = result.at_rate()
    slope = result.first_order
    if result.rate is None or row is None or math.isnan(row.change.value) or slope is None:
        return
    sentence = f"First order says {with_interval(slope.scaled(result.rate))}{_compare(row)}"
    reach = result.linear_range
    if reach is not None and reach.rate_over_range is not None:
        part = f"{short(reach.rate_over_range, 2)} of the linear range"
        sentence += f"; the {result.rate_name} is {part} η* = {with_interval(reach)}"
    yield Sentence(f"{sentence}.", question=FIRST_ORDER)


def _compare(row: SweepRow) -> str:
    """What ηδH₁/ΔH says, with its interval; nothing where it was not computed."""
    ratio = row.first_over_change
    if row.resampled is not None:
        return ", and the change was measured on other, fresh responses"
    if not has_interval(row.change):
        return " and the measured change has no interval to compare it with"
    if ratio is None:
        return ""
    if not has_interval(ratio):
        return "; how near that is to ΔH is not known, because ΔH is too near zero for a ratio"
    size = f"it is {with_interval(ratio)} times as large"
    if ratio.ci_low >= 1 - AGREES and ratio.ci_high <= 1 + AGREES:
        return f" and agrees to {100 * AGREES:g} %"
    if ratio.ci_high < 0:
        return f" and has the sign wrong: {size}"
    if ratio.covers(1.0):
        return f" and is not distinguishable from the change: {size}"
    return f" and {'over' if ratio.ci_low > 1 else 'under'}states the change: {size}"
