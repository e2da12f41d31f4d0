"""Is the published criterion of tokens the whole story? One sentence on classes of tokens."""

from __future__ import annotations

import math

from isentrope.attribution.influence.classes import Classes
from isentrope.nouns.estimate import Estimate
from isentrope.system.formatting import Format, known, percent

CLIP_COV = 0.02
"""The share of the tokens that is spoken of, the nearest of those that were selected."""


def is_it_all(classes: Classes, form: Format) -> str:
    """One sentence: is the criterion of Cui et al. the whole story, and what else costs entropy?

    It is not where its share of the net δH is not 1, or a class of the other tokens lowers entropy.

    Args:
        classes: Of tokens.
        form: How numbers are written.

    Returns:
        The sentence; "" where the batch has no advantages, which the criterion needs.
    """
    if not classes.criterion:
        return ""
    q = min(classes.criterion, key=lambda share: abs(math.log(share / CLIP_COV)))
    found = classes.criterion[q]
    chosen, share = found.selected, found.selected.share_h
    missed = found.missed is not None and found.missed.delta_h.ci_high < 0
    verdict = "is not the whole story" if missed else "may be the whole story"
    if known(share.ci_low) is not None and not share.covers(1.0):
        verdict = "is not the whole story"
    part, whole = (form.with_error(x.value, x.se) for x in (chosen.delta_h, classes.gradient))
    text = (
        f"The published criterion {verdict}: the {percent(q)} of tokens that it selects "
        f"carry {_share(chosen.fall)} of the fall in entropy, a random choice of as many "
        f"{percent(found.random_share)} ± {percent(found.random_spread)}; with what raises it they "
        f"carry {part} of the gradient's {whole}"
    )
    if found.missed_class is not None and found.missed is not None:
        cost = form.with_error(found.missed.delta_h.value, found.missed.delta_h.se)
        text += f"; of the rest, “{found.missed_class}” costs most, {cost}"
    if known(classes.earlier) is not None:
        text += (
            f"; momentum and decay, which no choice of tokens touches, are "
            f"{percent(classes.earlier)} of δH₁"
        )
    return f"{text}."


def _share(estimate: Estimate) -> str:
    if known(estimate.ci_low) is None:
        return f"{percent(estimate.value)} (no interval)"
    return f"{percent(estimate.value)} [{percent(estimate.ci_low)}, {percent(estimate.ci_high)}]"
