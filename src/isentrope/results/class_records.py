"""What results.json of `influence` and `audit` says of classes of tokens and sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from isentrope.attribution.influence.class_sums import ClassPart
from isentrope.attribution.influence.classes import Classes, CriterionPart
from isentrope.nouns.estimate import Estimate
from isentrope.results.result_coding import OPTIONAL, Number, Value
from isentrope.system.formatting import Format, known, percent

CLIP_COV = 0.02
"""The share of the tokens that is spoken of, the nearest of those that were selected."""


@dataclass(frozen=True, kw_only=True)
class ClassRecord:
    """What the members of a class do together.

    Attributes:
        members: Their number.
        weight: Their share of the sizes of the step's weights.
        delta_h: Per unit η.
        share_h: Of the gradient's part of δH₁.
        fall: Their share of the sum over all that lower entropy.
        delta_j: Per unit η.
        share_j: Of the gradient's part of δJ₁.
    """

    members: Number
    weight: Number
    delta_h: Value
    share_h: Value
    fall: Value
    delta_j: Annotated[Value | None, OPTIONAL] = None
    share_j: Annotated[Value | None, OPTIONAL] = None


@dataclass(frozen=True, kw_only=True)
class CriterionRecord:
    """The tokens that the published criterion selects, and what it leaves.

    Attributes:
        selected: Those tokens.
        random_share: Of the fall that as many tokens have on average, chosen at random.
        random_spread: Standard deviation of that over random choices.
        missed_class: The class that costs most entropy among the other tokens.
        missed: Its tokens among them.
    """

    selected: ClassRecord
    random_share: Number
    random_spread: Number
    missed_class: Annotated[str | None, OPTIONAL] = None
    missed: Annotated[ClassRecord | None, OPTIONAL] = None


@dataclass(frozen=True, kw_only=True)
class ClassesRecord:
    """A partition of the tokens, or the sequences, that act in a step.

    Attributes:
        parts: By class.
        thresholds: Where classes are split.
        gradient: δH of all of them.
        baseline: δH of momentum and decay.
        criterion: By the share of the tokens that is selected.
    """

    parts: dict[str, ClassRecord]
    thresholds: dict[str, Number]
    gradient: Value
    baseline: Value
    criterion: dict[str, CriterionRecord]

    @property
    def spoken_of(self) -> tuple[str, CriterionRecord] | None:
        """The criterion at the share nearest to CLIP_COV; None without one."""
        if not self.criterion:
            return None
        share = min(self.criterion, key=lambda q: abs(math.log(float(q) / CLIP_COV)))
        return share, self.criterion[share]

    @property
    def earlier(self) -> float:
        """The part of δH₁ that momentum and decay are; NaN where it has another sign."""
        a, b = self.baseline.value, self.gradient.value
        return a / (a + b) if a * b > 0 else math.nan


def classes_record(classes: Classes) -> ClassesRecord:
    """Classes as they are written."""
    return ClassesRecord(
        parts={name: _part(part) for name, part in classes.parts.items()},
        thresholds=classes.thresholds,
        gradient=classes.gradient,
        baseline=classes.baseline,
        criterion={f"{q:g}": _criterion(part) for q, part in classes.criterion.items()},
    )


def _part(part: ClassPart) -> ClassRecord:
    return ClassRecord(**vars(part))


def _criterion(part: CriterionPart) -> CriterionRecord:
    missed = None if part.missed is None else _part(part.missed)
    return CriterionRecord(**vars(part) | {"selected": _part(part.selected), "missed": missed})


def is_it_all(classes: ClassesRecord, form: Format) -> str:
    """One sentence: is the criterion of Cui et al. the whole story, and what else costs entropy?

    It is not where its share of the net δH is not 1, or a class of the other tokens lowers entropy.

    Args:
        classes: Of tokens.
        form: How numbers are written.

    Returns:
        The sentence; "" where the batch has no advantages, which the criterion needs.
    """
    if classes.spoken_of is None:
        return ""
    q, found = classes.spoken_of
    chosen, share = found.selected, found.selected.share_h
    missed = found.missed is not None and found.missed.delta_h.ci_high < 0
    verdict = "is not the whole story" if missed else "may be the whole story"
    if known(share.ci_low) is not None and not share.covers(1.0):
        verdict = "is not the whole story"
    part, whole = (form.with_error(x.value, x.se) for x in (chosen.delta_h, classes.gradient))
    text = (
        f"The published criterion {verdict}: the {percent(float(q))} of tokens that it selects "
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
