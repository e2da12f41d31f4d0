"""What the first order says of a step: its parts, how near the change it is, and how far it holds.

The parts are momentum, decay, and the gradient of this batch.
"""

import math
from collections.abc import Iterator, Mapping

from isentrope.estimators.sweep import SweepRow
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Sentence, has_interval, short, with_interval
from isentrope.results.results import MeasureResult
from isentrope.system.formatting import listed, percent

WHO = "Who did it?"
LEAST_PART = 0.01
"""Of the sum of sizes, below which a part is not spoken of."""
_WORDS = {
    "momentum": "momentum, decided by earlier batches,",
    "decay": "weight decay",
    "gradient": "this batch's gradient",
    "control": "the control's correction",
    "rounding": "rounding to the type of the weights",
}
FIRST_ORDER = "First order"
AGREES = 0.02
"""Part of a change by which the first order may differ and agree with it."""


def parts_sentence(budget: Mapping[str, Estimate]) -> Iterator[Sentence]:
    """Shares of δH₁ where each part is known to act as the whole does, and else amounts.

    Args:
        budget: δH₁ per unit η of each part of the step, and "total"; nothing is said without it.

    Yields:
        The sentence.
    """
    parts = {name: part for name, part in budget.items() if name in _WORDS}
    total = budget["total"].value if "total" in budget else 0.0
    gross = sum(abs(part.value) for part in parts.values())
    acting = {name: part for name, part in parts.items() if abs(part.value) > LEAST_PART * gross}
    if not acting or not total:
        return
    certain = [part for part in acting.values() if has_interval(part) and not part.covers(0.0)]
    signs = {math.copysign(1.0, part.value) for part in certain}
    alike = len(certain) == len(acting) and signs == {math.copysign(1.0, total)}
    relation = "are not all of known sign"
    if alike:
        relation = "have the same sign"
    elif len(signs) > 1:
        relation = "have opposite signs"
    sizes = {
        name: percent(part.value / total) if alike else with_interval(part)
        for name, part in acting.items()
    }
    terms = listed([f"{_WORDS[name]} {size}" for name, size in sizes.items()])
    largest = max(acting, key=lambda name: abs(acting[name].value))
    text = f"The parts of the first order {relation}: {terms}"
    if alike:
        text += f"; the largest, {largest}, is {with_interval(acting[largest])} per unit η"
    else:
        text += " per unit η"
    yield Sentence(f"{text}.", question=WHO)


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
