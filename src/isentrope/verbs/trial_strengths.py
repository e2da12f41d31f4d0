"""How hard a control is tried, and what `isentrope try` prints.

What `isentrope try` prints: gains of every control over vanilla, and their prices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isentrope.nouns.estimate import Estimate
from isentrope.results.results import TrialResult
from isentrope.system.formatting import MISSING
from isentrope.verbs.printed import Column, Printed, Table, ends, named, text
from isentrope.verbs.trial_steps import SHRUNK

TITLES = {
    "step": "the whole step, momentum included",
    "gradient": "the gradient part alone: what the step becomes once momentum has followed",
}
PRICES = (
    "above that of a lower rate, so worse",
    "below that of a lower rate, so better",
    "not distinguishable from that of a lower rate",
    "none, because ΔH gained, or vanilla's ΔH or ΔJ, is not clearly of its sign",
)
"""What the interval of a price says."""
WORDS = {"delta_h": "ΔH", "delta_j": "ΔJ"}


def printed_trial(result: TrialResult, folder: Path) -> Printed:
    """What each control gains over vanilla."""
    for part in TITLES:
        yield _gained(result, part)
    for part, plain in result.vanilla.items():
        changes = named({WORDS[name]: change for name, change in plain.items()})
        yield f"  vanilla      {changes} (ΔH in {plain['delta_h'].unit}), {part}"
        if "delta_j" in plain:
            for sentence in price_sentences(result, part):
                yield f"  price        {sentence} ({part})"
    yield f"  at           η = {result.eta:.3g}; figure in {folder / 'trial.png'}"
    for entry in result.tried.values():
        if entry.predicted is not None:
            yield (
                f"  strength     {entry.control} {entry.strength:.4g}: ΔH of the step "
                f"{text(entry.step['delta_h'])}, predicted {entry.predicted:.3g}"
            )


def price_sentences(result: TrialResult, part: str) -> list[str]:
    """Which controls are worse than a lower rate, which better, and which are neither clearly."""
    found: dict[str, dict[str, list[str]]] = {words: {} for words in PRICES}
    lower_rate = [e.part(part).get("price") for e in result.tried.values() if e.control == SHRUNK]
    ones = [1.0, *(price.value for price in lower_rate if price is not None)]  # beyond first order
    for entry in result.tried.values():
        if entry.control != SHRUNK:
            same = found[_verdict(entry.part(part).get("price"), min(ones), max(ones))]
            same.setdefault(entry.control, []).append(f"{entry.strength:.3g}")
    each = {words: [f"{c} {', '.join(at)}" for c, at in of.items()] for words, of in found.items()}
    return [f"{words}: {'; '.join(of)}" for words, of in each.items() if of]


def _verdict(price: Estimate | None, low: float, high: float) -> str:
    if price is None:
        return PRICES[3]
    return PRICES[0 if price.ci_low > high else 1 if price.ci_high < low else 2]


def _gained(result: TrialResult, part: str) -> Table:
    rows = [
        {"control": entry.control, "strength": entry.strength, "did": entry.did} | entry.part(part)
        for entry in result.tried.values()
    ]
    columns = [
        Column("control", "control", left=True),
        Column("strength", "strength"),
        Column("touched", _touched, 3),
        Column("ΔH gained", "gained_delta_h"),
        Column("95 % interval", lambda row: ends(row["gained_delta_h"]), 2),
    ]
    if "delta_j" in result.vanilla[part]:
        columns += [Column("ΔJ gained", "gained_delta_j"), Column("price", _price)]
    columns.append(Column("over random", "over_random_delta_h", 1))
    title = f"{result.policy.name}: gained over vanilla in one step, {TITLES[part]}"
    return Table(title, rows, columns)


def _touched(row: dict[str, Any]) -> str:
    share = row["did"].get("touched")
    return MISSING if share is None else f"{100 * share:.3g} %"


def _price(row: dict[str, Any]) -> str:
    price = row.get("price")
    return MISSING if price is None else f"{price.value:.3g} {ends(price)}"
