"""What a step's change of entropy is made of: momentum, decay, and this batch's gradient."""

import math
from collections.abc import Iterator, Mapping

from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Sentence
from isentrope.results.answers.words import has_interval, with_interval
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
    how = "are not all of known sign"
    if alike:
        how = "have the same sign"
    elif len(signs) > 1:
        how = "have opposite signs"
    sizes = {
        name: percent(part.value / total) if alike else with_interval(part)
        for name, part in acting.items()
    }
    terms = listed([f"{_WORDS[name]} {size}" for name, size in sizes.items()])
    most = max(acting, key=lambda name: abs(acting[name].value))
    text = f"The parts of the first order {how}: {terms}"
    if alike:
        text += f"; the largest, {most}, is {with_interval(acting[most])} per unit η"
    else:
        text += " per unit η"
    yield Sentence(f"{text}.", question=WHO)
