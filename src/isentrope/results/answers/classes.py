"""Classes of tokens, of sequences and of groups of prompts: their tables.

One sentence says whether the published criterion is the whole story.
"""

import math
from collections.abc import Iterator, Mapping

from isentrope.attribution.influence.classes import BY_GROUP, Classes
from isentrope.nouns.columns import Column
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import (
    Printed,
    Sentence,
    Table,
    named,
    value_and_interval,
    with_interval,
)
from isentrope.system.formatting import PAGE, known, percent

CLIP_COV = 0.02
"""The share of the tokens that is spoken of, the nearest of those that were selected."""
_CRITERION = "Clip-Cov's criterion (log-probability times advantage)"
WHICH_TOKENS = "Which tokens"


def is_it_all(classes: Classes) -> str:
    """One sentence: is the criterion of Cui et al. the whole story, and what else costs entropy?

    It is not where its share of the net δH is not 1, or a class of the other tokens lowers entropy.
    Where neither is shown, the batch does not decide it.

    Args:
        classes: Of tokens.

    Returns:
        The sentence; "" where the batch has no advantages, which the criterion needs.
    """
    if not classes.criterion:
        return ""
    q = min(classes.criterion, key=lambda share: abs(math.log(share / CLIP_COV)))
    part = classes.criterion[q]
    share = part.selected.share_h
    missed = part.missed is not None and part.missed.delta_h.ci_high < 0
    other_share = known(share.ci_low) is not None and not share.covers(1.0)
    if missed or other_share:
        verdict = f"{_CRITERION} is not the whole story"
    else:
        verdict = f"This batch does not decide whether {_CRITERION} is the whole story"
    chance = PAGE.with_error(100 * part.random_share, 100 * part.random_spread)
    text = (
        f"{verdict}: the {percent(q)} of tokens that it selects "
        f"carry {_share(part.selected.fall)} of the fall in entropy, a random choice of as many "
        f"{chance}\u00a0%; with what raises it "
        f"they carry {with_interval(part.selected.delta_h)} of the gradient's "
        f"{with_interval(classes.gradient)}"
    )
    if part.missed_class is not None and part.missed is not None:
        cost = with_interval(part.missed.delta_h)
        text += f"; of the rest, “{part.missed_class}” costs most, {cost}"
    if known(classes.earlier) is not None:
        text += (
            f"; momentum and decay, which no choice of tokens touches, are "
            f"{percent(classes.earlier)} of δH₁"
        )
    return f"{text}."


def _share(estimate: Estimate) -> str:
    if known(estimate.ci_low) is None:
        return "an unknown share (no interval)"
    return f"{percent(estimate.value)} [{percent(estimate.ci_low)}, {percent(estimate.ci_high)}]"


def criterion_sentence(classes: Mapping[str, Classes]) -> Iterator[Sentence]:
    """Whether the published criterion is the whole story; nothing without classes of tokens."""
    if "tokens" in classes and (text := is_it_all(classes["tokens"])):
        yield Sentence(text, question=WHICH_TOKENS)


def classes_table(name: str, classes: Mapping[str, Classes]) -> Printed:
    """The table of the tokens' classes, without one that of the sequences; and that of groups."""
    for members in ("tokens" if "tokens" in classes else "sequences", BY_GROUP):
        if members not in classes:
            continue
        rows = classes[members].parts
        columns = [
            Column("class", left=True),
            Column(members.partition("_")[0], lambda part: f"{part.members:.0f}", 2),
            Column("δH ± se", "delta_h"),
            Column("of the fall", lambda part: value_and_interval(part.fall), 1),
            Column("share of δH", lambda part: value_and_interval(part.share_h), 3),
        ]
        if all(part.delta_j is not None for part in rows.values()):
            columns.append(Column("δJ ± se", "delta_j", 4))
            columns.append(Column("share of δJ", lambda part: value_and_interval(part.share_j), 5))
        title = f"{name}: classes of {members.replace('_', ' ')}, per unit η"
        yield Table(title, rows, columns)


def thresholds_line(classes: Mapping[str, Classes]) -> Printed:
    """Where classes are split."""
    split = classes.get("tokens", classes.get("sequences"))
    if split is not None:
        yield f"  classes      split at {named(split.thresholds)}"


def reliability_line(estimates: Mapping[str, Estimate]) -> str:
    """How well ranks are known."""
    correlations = ", ".join(f"{kind} {with_interval(r)}" for kind, r in estimates.items())
    return f"  reliability  rank correlation with an infinite E, about: {correlations}"
