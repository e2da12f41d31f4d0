"""What the frontier of a step says: the room that any change of it has, and how a step uses it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isentrope.attribution.frontier.frontier import Frontier
from isentrope.attribution.frontier.places import Place, widened
from isentrope.estimators.reward_change import REWARD
from isentrope.nouns.columns import Column, ends
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import confidence_of_each, t_quantile
from isentrope.results.answers.blocks import (
    Sentence,
    Table,
    has_interval,
    interval_title,
    with_interval,
)

ROOM = "What room is there?"


def room_sentences(frontier: Frontier | None, rate: float | None) -> Iterator[Sentence]:
    """What no change of the step of the same length could pass, and where the step stands.

    Args:
        frontier: That of the step; nothing is said without it, or where it is not known.
        rate: η of the step.

    Yields:
        The sentences.
    """
    if frontier is None or rate is None or not has_interval(frontier.reached):
        return
    if has_interval(frontier.best):
        best = with_interval(frontier.best.scaled(rate))
        words = f"could bring more reward than ΔJ = {best} while keeping entropy"
    else:
        is_known = frontier.none_keeps_entropy
        words = "could keep entropy" if is_known else "is known to keep entropy"
    brings = ""
    if has_interval(frontier.reward):
        brings = f"brings {with_interval(frontier.reward.scaled(rate))} and "
    text = (
        f"No change of this step of the same length {words}, to first order; the step {brings}"
        f"reaches {with_interval(frontier.reached)} of the way to the edge"
    )
    yield Sentence(f"{text}.", question=ROOM)


def room_lines(frontier: Frontier | None, rate: float | None) -> Iterator[str]:
    """The numbers of a frontier, or why there is none."""
    if frontier is None or rate is None:
        return
    for sentence in frontier.missing:
        yield f"  frontier     {sentence}"
    if has_interval(frontier.lost):
        line = f"ηδJ lost at the entropy of the step {with_interval(frontier.lost.scaled(rate))}"
        price = frontier.reward_for_a_nat
        if has_interval(price):
            line += f"; a nat less would earn {with_interval(price)} {price.unit}"
        yield f"  frontier     {line}"
    centre = {"ηδJ": frontier.centre_reward, "ηδH": frontier.centre_entropy}
    changes = [
        f"{name} {with_interval(change.scaled(rate))}"
        for name, change in centre.items()
        if has_interval(change)
    ]
    if changes:
        yield f"  decided      before the batch: {', '.join(changes)}"


@dataclass(frozen=True)
class Placed:
    """A row of the table of places.

    Attributes:
        name: The control.
        strength: How hard it acts.
        place: Where it stands.
    """

    name: str
    strength: float
    place: Place


def places_sentence(rows: list[Placed], confidence: float) -> Iterator[Sentence]:
    """Which rows stand nearer to the edge than the plain step, and which farther.

    Args:
        rows: All that are compared, without the plain step itself.
        confidence: Of the intervals together: each is as long as Bonferroni's correction makes it.

    Yields:
        A sentence; nothing without rows. Its intervals hold for all rows at once, because those
            that it names were chosen.
    """
    per_row = confidence_of_each(confidence, len(rows))
    nearer: dict[str, list[Placed]] = {}
    farther: dict[str, list[Placed]] = {}
    for row in rows:
        gap = row.place.reached_over_plain
        if gap.degrees_of_freedom is None or not has_interval(gap):
            continue
        if abs(gap.value) > t_quantile(gap.degrees_of_freedom, per_row) * gap.se:
            side = nearer if gap.value > 0 else farther
            side.setdefault(row.name, []).append(row)
    parts: list[str] = []
    if nearer:
        parts.append(f"nearer to the edge than the plain one: {_name(nearer, per_row)}")
    if farther:
        parts.append(f"farther from it: {_name(farther, per_row)}")
    if rows and not parts:
        parts.append("none is shown to be nearer to the edge than the plain one, or farther")
    if parts:
        words = "; ".join(parts)
        text = f"At equal length, of {len(rows)} steps (corrected for that number), {words}."
        yield Sentence(text, "fact" if nearer or farther else "doubt", ROOM)


def _name(rows: Mapping[str, list[Placed]], confidence: float) -> str:
    """Controls with their strengths, and where the farthest from the plain step stands."""
    words: list[str] = []
    for name, places in rows.items():
        strengths = ", ".join(f"{row.strength:.3g}" for row in places)
        farthest = max(places, key=lambda row: abs(row.place.reached_over_plain.value)).place
        reached = with_interval(widened(farthest.reached, confidence))
        gap = with_interval(widened(farthest.reached_over_plain, confidence))
        words.append(f"{name} {strengths} (reaches {reached}, {gap} over the plain one)")
    return "; ".join(words)


def places_table(rows: list[Placed], title: str, rate: float, confidence: float) -> Table:
    """Where each step stands at the length of the plain one."""

    def lost(row: Placed) -> Estimate | None:
        return _known(row.place.lost.scaled(rate, REWARD))

    def over_plain(row: Placed) -> float | None:
        gap = _known(row.place.reached_over_plain)
        return None if gap is None else gap.value

    columns = [
        Column("control", "name", left=True),
        Column("strength", "strength"),
        Column("length", lambda row: row.place.length, 3),
        Column("r", lambda row: _known(row.place.reached)),
        Column("r − vanilla's", over_plain, 1),
        Column(interval_title(confidence), lambda row: ends(row.place.reached_over_plain), 1),
        Column("ηδJ lost", lost, 2),
    ]
    return Table(title, rows, columns)


def _known(estimate: Estimate) -> Estimate | None:
    """The estimate; None where it has no interval, so that no value is printed without one."""
    return estimate if has_interval(estimate) else None
