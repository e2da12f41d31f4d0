"""The tokens of the most influential sequences, coloured by what they did to entropy and reward.

Colour is relative to the largest |δH_ik| (or |δJ_ik|) that is shown, on a square-root scale, so
that small ones are seen too. Of a long response only the surroundings of its most influential
tokens are shown, with a count of what is left out.
"""

import unicodedata
from collections.abc import Iterator

import numpy as np
import pandas as pd
from markupsafe import Markup

from isentrope.reports.panel import Panel, markup
from isentrope.reports.read_run import Reading
from isentrope.reports.words import Row, number, records
from isentrope.results.results import InfluenceResult
from isentrope.system.formatting import known, percent

SEQUENCES = 10
"""Shown; the most influential."""

WHOLE = 320
"""Tokens up to which a response is shown whole."""

PEAKS, AROUND = 8, 14
"""Of a longer one: its most influential tokens, and how many are shown on either side of each."""

SYMBOLS = {"delta_h": "δH", "delta_j": "δJ"}

_KEPT = ("\u200c", "\u200d", "\ufe0e", "\ufe0f")
"""Characters without a shape that join letters or choose the form of an emoji."""

_SIGNS = {
    "\n": Markup('<i class="sign">↵</i><br>'),
    "\t": Markup('<i class="sign">→</i>&#9;'),
}


def token_map(reading: Reading) -> Iterator[Panel]:
    """The heat map; nothing where tokens were not attributed."""
    influence = reading.shown(InfluenceResult)
    tables, unit = influence.result.tables, influence.result.entropy.unit
    if not {"tokens", "sequences"} <= set(tables) or not len(tables["tokens"]):
        return
    tokens, sequences = tables["tokens"], tables["sequences"]
    top = sequences.loc[sequences["delta_h"].abs().nlargest(SEQUENCES).index]
    shown = tokens[tokens["sequence"].isin(top["sequence"])]
    largest = {name: float(shown[name].abs().max()) or 1.0 for name in SYMBOLS if name in shown}
    pieces = {i: list(_pieces(rows, largest)) for i, rows in shown.groupby("sequence")}
    maps = [(_head(row), pieces[row["sequence"]]) for row in records(top)]
    share = top["delta_h"].abs().sum() / (sequences["delta_h"].abs().sum() or 1.0)
    real = known(influence.result.listed_share.get("tokens"))
    kept = "are inflated" if real is None else f"keep about {percent(real)} of it"
    yield Panel(
        influence.source,
        "tokens",
        "Tokens of the most influential sequences",
        f"The {len(top)} most influential of {len(sequences)} sequences carry {percent(share)} of "
        f"Σ|δH_i|. Sizes in the map are as measured; the largest {kept}.",
        table=shown,
        body=markup("token_map", maps, unit, "delta_j" in shown),
    )


def _head(row: Row) -> list[str]:
    """What stands above a sequence."""
    head = [f"sequence {row['sequence']}", *([str(row["key"])] if row.get("key") else [])]
    numbers = [
        f"{name} {number(row[name])}" for name in ("reward", "advantage") if pd.notna(row[name])
    ]
    return head + numbers + _influences(row)


def _influences(row: Row) -> list[str]:
    return [
        f"{symbol} {number(row[name])} ± {number(row[f'{name}_se'], 2)}"
        for name, symbol in SYMBOLS.items()
        if name in row
    ]


def _pieces(tokens: pd.DataFrame, largest: dict[str, float]) -> Iterator[tuple[str, str, str]]:
    """Style, numbers and text of each token shown; of a gap, no style and no numbers."""
    rows, last = records(tokens.sort_values("position")), -1
    for k in [*_kept(np.array([abs(row["delta_h"]) for row in rows])), len(rows)]:
        if k > last + 1:
            count = k - last - 1
            words = f"… {count:,} token{'s' if count > 1 else ''} left out …"
            yield "", "", words.replace(",", "\u202f")
        last = k
        if k < len(rows):
            row = rows[k]
            style = [
                f"--{name[-1]}:{np.sign(row[name]) * np.sqrt(abs(row[name]) / top):.2f}"
                for name, top in largest.items()
            ]
            place = f"position {row['position']}, id {row['token_id']}"
            numbers = [
                place,
                *_influences(row),
                f"log π {number(row['s'])}",
                f"H {number(row['H'])}",
            ]
            text = visible(row["text"], row["token_id"])
            yield ";".join(style), " · ".join(numbers), text


def _kept(size: np.ndarray) -> np.ndarray:
    """Positions shown: all of a short response, windows around the peaks of a long one."""
    if len(size) <= WHOLE:
        return np.arange(len(size))
    peaks = np.argsort(size)[-PEAKS:]
    near = (peaks[:, None] + np.arange(-AROUND, AROUND + 1)).ravel()
    return np.unique(near[(near >= 0) & (near < len(size))])


def visible(text: str | None, token_id: int) -> Markup:
    """The text of a token with nothing hidden in it.

    Line ends and tabs get a sign; a token that is no text by itself (a piece of a character, an
    end of a response) becomes a box with its number; characters that would turn or hide what
    follows are named instead of obeyed.

    Args:
        text: As decoded; None where there was no tokenizer.
        token_id: Its number.

    Returns:
        Escaped markup.
    """
    if not text or "\ufffd" in text:
        return Markup('<i class="box" title="token {0}" dir="ltr">{0}</i>').format(token_id)
    shown = Markup()
    for character in text:
        hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn")
        if character in _SIGNS:
            shown += _SIGNS[character]
        elif hidden and character not in _KEPT:
            shown += Markup('<i class="box" dir="ltr">U+{}</i>').format(f"{ord(character):04X}")
        else:
            shown += character
    return shown
