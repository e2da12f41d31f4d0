"""What `isentrope try` answers: whether a control is worth more than a lower learning rate."""

from collections.abc import Iterator
from typing import Any

from isentrope.nouns.columns import Column, ends, text
from isentrope.results.answers.blocks import Printed, Sentence, Table, interval_title, named
from isentrope.results.answers.frontier import (
    Placed,
    places_sentence,
    places_table,
    room_lines,
    room_sentences,
)
from isentrope.results.attributions import SHRUNK
from isentrope.results.results import TrialResult
from isentrope.system.formatting import MISSING

WORTH_IT = "Is it worth it?"
TITLES = {
    "step": "the whole step, momentum included",
    "gradient": "the gradient part alone: what the step becomes once momentum has followed",
}
_BETTER = "Better than a lower learning rate, by the reward that a nat of entropy costs"
_WORSE = "Worse than a lower learning rate, by the reward that a nat of entropy costs"
_OPEN = "Not distinguishable from a lower learning rate by price"
_NO_PRICE = (
    "Not comparable with a lower learning rate, because the entropy gained, or what the step "
    "changes without a control, may be zero"
)
PRICES = (_BETTER, _WORSE, _OPEN, _NO_PRICE)
"""What the interval of a price says, the best first."""


def trial_sentences(result: TrialResult) -> Iterator[Sentence]:
    """Which controls are better than a lower rate in the whole step, which worse, which neither.

    The intervals of prices hold for all at once, so none is better because many were tried.

    Yields:
        One sentence per answer that has controls.
    """
    if "delta_j" not in result.vanilla["step"]:
        text = "Whether a control is worth it is not known: the responses have no rewards."
        yield Sentence(text, "doubt", WORTH_IT)
        return
    for words, controls in by_price(result, "step").items():
        tone = "fact" if words in (_BETTER, _WORSE) else "doubt"
        yield Sentence(f"{words}: {'; '.join(controls)}.", tone, WORTH_IT)
    yield from room_sentences(result.frontier, result.eta)
    controls = [row for row in _placed(result) if row.name != SHRUNK]
    yield from places_sentence(controls, result.estimator.confidence)


def by_price(result: TrialResult, part: str) -> dict[str, list[str]]:
    """Names of controls, with their strengths, by what their price in a part of the step says."""
    strengths: dict[str, dict[str, list[str]]] = {words: {} for words in PRICES}
    prices = [(entry, entry.part(part).get("price")) for entry in result.tried.values()]
    shrunk = [price.value for entry, price in prices if price and entry.control == SHRUNK]
    ones = [1.0, *shrunk]  # beyond first order
    for entry, price in prices:
        if entry.control == SHRUNK:
            continue
        verdict = _NO_PRICE
        if price is not None:
            verdict = _OPEN
            if price.ci_low > max(ones):
                verdict = _WORSE
            elif price.ci_high < min(ones):
                verdict = _BETTER
        strengths[verdict].setdefault(entry.label, []).append(f"{entry.strength:.3g}")
    return {
        words: [f"{control} {', '.join(at)}" for control, at in controls.items()]
        for words, controls in strengths.items()
        if controls
    }


def trial_tables(result: TrialResult) -> Printed:
    """What each control gains over vanilla."""
    for part, words in TITLES.items():
        rows = _rows(result, part)
        columns = [
            Column("control", "control", left=True),
            Column("strength", "strength"),
            Column("touched", _touched, 3),
            Column("ΔH gained", "gained_delta_h"),
            Column(
                interval_title(result.estimator.confidence),
                lambda row: ends(row["gained_delta_h"]),
                2,
            ),
        ]
        if "delta_j" in result.vanilla[part]:
            columns += [Column("ΔJ gained", "gained_delta_j"), Column("price", _price)]
        columns.append(Column("over random", "over_random_delta_h", 1))
        title = f"{result.name}: gained over vanilla in one step, {words}"
        yield Table(title, rows, columns)
    rows = _placed(result)
    if rows:
        title = f"{result.name}: at the length of the plain step, with its momentum and decay"
        yield places_table(rows, title, result.eta, result.estimator.confidence)
    yield from room_lines(result.frontier, result.eta)
    for part, plain in result.vanilla.items():
        changes = named({"ΔH": plain["delta_h"], "ΔJ": plain.get("delta_j")})
        yield f"  vanilla      {changes} (ΔH in {plain['delta_h'].unit}), {part}"
        prices = by_price(result, part) if part != "step" and "delta_j" in plain else {}
        for words, controls in prices.items():
            yield f"  price        {words}: {'; '.join(controls)} ({part})"
    yield f"  at           η = {result.eta:.3g}"
    for entry in result.tried.values():
        if entry.predicted is not None:
            yield (
                f"  strength     {entry.label} {entry.strength:.4g}: ΔH of the step "
                f"{text(entry.step['delta_h'])}, predicted {entry.predicted:.3g}"
            )


def _placed(result: TrialResult) -> list[Placed]:
    """The rows that have a place on the frontier."""
    return [
        Placed(entry.label, entry.strength, entry.place)
        for entry in result.tried.values()
        if entry.place is not None
    ]


def _rows(result: TrialResult, part: str) -> list[dict[str, Any]]:
    """A row per control and strength; strengths that do the same are one row."""
    rows: list[dict[str, Any]] = []
    for entry in result.tried.values():
        content = {"control": entry.label, "did": entry.did} | entry.part(part)
        strength = text(entry.strength)
        if rows and {k: v for k, v in rows[-1].items() if k != "strength"} == content:
            rows[-1]["strength"] += f", {strength}"
        else:
            rows.append(content | {"strength": strength})
    return rows


def _touched(row: dict[str, Any]) -> str:
    share = row["did"].get("touched")
    return MISSING if share is None else f"{100 * share:.3g} %"


def _price(row: dict[str, Any]) -> str:
    price = row.get("price")
    return MISSING if price is None else f"{price.value:.3g} {ends(price)}"
