"""The tokens of the most influential sequences, coloured by what they did to entropy and reward.

Colour is relative to the largest |δH_ik| (or |δJ_ik|) that is shown, on a square-root scale, so
that small ones are seen too. Of a long response only the surroundings of its most influential
tokens are shown, with a count of what is left out.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.rows import Row, records
from isentrope.reports.sentences import number
from isentrope.results.results import InfluenceResult
from isentrope.system.formatting import known, percent

SEQUENCES = 10
"""Shown; the most influential."""

WHOLE = 320
"""Tokens up to which a response is shown whole."""

PEAKS, AROUND = 8, 14
"""Of a longer one: its most influential tokens, and how many are shown on either side of each."""

_KEPT = ("\u200c", "\u200d", "\ufe0e", "\ufe0f")
"""Characters without a shape that join letters or choose the form of an emoji."""


def token_panels(influence: Measurement[InfluenceResult]) -> list[Panel]:
    """The heat map; nothing where tokens were not attributed."""
    tokens, sequences = influence.table("tokens"), influence.table("sequences")
    if tokens is None or sequences is None or not len(tokens):
        return []
    top = sequences.reindex(sequences["delta_h"].abs().sort_values(ascending=False).index)
    top = top.head(SEQUENCES)
    shown = tokens[tokens["sequence"].isin(top["sequence"])]
    by_sequence = dict(list(shown.groupby("sequence", sort=False)))
    largest = {k: _largest(shown, k) for k in ("delta_h", "delta_j") if k in shown}
    body = Markup("").join(
        _sequence(row, by_sequence[row["sequence"]].sort_values("position"), largest)
        for row in records(top)
    )
    unit = influence.result.entropy.unit
    return [
        Panel(
            "tokens",
            "Tokens of the most influential sequences",
            _caption(sequences, top, tokens, unit, influence.result.listed_share),
            influence.source("tokens.parquet", "sequences.parquet"),
            shown,
            body=_frame(body, "delta_j" in shown, unit),
            wide=True,
        )
    ]


def _largest(tokens: pd.DataFrame, column: str) -> float:
    return float(tokens[column].abs().max()) or 1.0


def _caption(
    sequences: pd.DataFrame,
    top: pd.DataFrame,
    tokens: pd.DataFrame,
    unit: str,
    listed: dict[str, float],
) -> str:
    share = top["delta_h"].abs().sum() / (sequences["delta_h"].abs().sum() or 1.0)
    token = tokens.iloc[tokens["delta_h"].abs().argmax()]
    sign = "lowers" if token["delta_h"] < 0 else "raises"
    share, note = (
        known(listed.get("tokens")),
        " The largest sizes are inflated: the map has them as measured.",
    )
    if share is not None:
        note = f" Sizes in the map are as measured; the largest keep about {percent(share)} of it."
    share = 1.0 if share is None else share
    size, se = share * abs(token["delta_h"]), share**0.5 * token["delta_h_se"]
    return (
        f"The {len(top)} most influential of {len(sequences)} sequences carry {percent(share)} of "
        f"Σ|δH_i|; the most influential token, {_named(token['text'], token['token_id'])}, {sign} "
        f"entropy by {number(size)} ± {number(se, 2)} {unit}.{note}"
    )


def _named(text: str | None, token_id: int) -> str:
    """A token in a sentence."""
    return f"“{text}”" if text and text.isprintable() and text.strip() else f"number {token_id}"


def _frame(body: Markup, with_reward: bool, unit: str) -> Markup:
    choice = Markup(
        '<fieldset class="choice"><legend class="sr">Colour tokens by</legend>'
        '<label><input type="radio" name="token-map" value="h" checked> entropy δH</label>'
        '<label><input type="radio" name="token-map" value="j"> reward δJ</label></fieldset>'
    )
    key = Markup(
        '<p class="key"><span class="by-h"><b class="t" style="--h:-1">lowers</b> '
        '<b class="t" style="--h:1">raises</b> entropy</span><span class="by-j">'
        '<b class="t" style="--j:1">earns</b> <b class="t" style="--j:-1">costs</b> reward</span> '
        "<span>full colour is the largest shown; hover, tap or use the arrow keys for numbers, "
        "in {}</span></p>"
    ).format(unit)
    return Markup('<form class="token-map">{}{}{}</form>').format(
        choice if with_reward else Markup(""), key, body
    )


def _sequence(row: Row, tokens: pd.DataFrame, largest: dict[str, float]) -> Markup:
    head = [f"sequence {row['sequence']}"]
    head += [str(row["key"])] if row.get("key") else []
    head += [f"{name} {number(row[name])}" for name in ("reward", "advantage") if _known(row[name])]
    head.append(f"δH {number(row['delta_h'])} ± {number(row['delta_h_se'], 2)}")
    if "delta_j" in row:
        head.append(f"δJ {number(row['delta_j'])} ± {number(row['delta_j_se'], 2)}")
    parts, last = Markup(""), -1
    keep = _kept(tokens["delta_h"].abs().to_numpy())
    rows = records(tokens)
    for k in keep:
        if k > last + 1:
            parts += _gap(k - last - 1)
        parts += _token(rows[k], largest)
        last = int(k)
    if last + 1 < len(rows):
        parts += _gap(len(rows) - last - 1)
    return Markup(
        '<section class="sequence"><h4>{}</h4><p class="tokens" dir="auto" tabindex="0">{}</p>'
        "</section>"
    ).format(Markup(" · ").join(Markup("<bdi>{}</bdi>").format(part) for part in head), parts)


def _known(value: Any) -> bool:
    return value is not None and value == value


def _kept(size: np.ndarray) -> np.ndarray:
    """Positions shown: all of a short response, windows around the peaks of a long one."""
    if len(size) <= WHOLE:
        return np.arange(len(size))
    peaks = np.argsort(size)[-PEAKS:]
    near = (peaks[:, None] + np.arange(-AROUND, AROUND + 1)).ravel()
    return np.unique(near[(near >= 0) & (near < len(size))])


def _gap(count: int) -> Markup:
    words = f"… {count:,} token{'s' if count > 1 else ''} left out …".replace(",", "\u202f")
    return Markup(' <span class="gap" dir="ltr">{}</span> ').format(words)


def _token(row: Row, largest: dict[str, float]) -> Markup:
    names = {"delta_h": ("h", "δH"), "delta_j": ("j", "δJ")}
    parts = [f"position {row['position']}, id {row['token_id']}"]
    style = []
    for column, top in largest.items():
        letter, symbol = names[column]
        relative = np.sign(row[column]) * np.sqrt(abs(row[column]) / top)
        style.append(f"--{letter}:{relative:.2f}")
        parts.append(f"{symbol} {number(row[column])} ± {number(row[f'{column}_se'], 2)}")
    parts += [f"log π {number(row['s'])}", f"H {number(row['H'])}"]
    return Markup('<b class="t" style="{}" data-n="{}">{}</b>').format(
        ";".join(style), " · ".join(parts), visible(row["text"], row["token_id"])
    )


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
    return Markup("").join(_character(character) for character in text)


def _character(character: str) -> Markup:
    if character == "\n":
        return Markup('<i class="sign">↵</i><br>')
    if character == "\t":
        return Markup('<i class="sign">→</i>&#9;')
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn")
    if hidden and character not in _KEPT:
        return Markup('<i class="box" dir="ltr">U+{}</i>').format(f"{ord(character):04X}")
    return Markup("{}").format(character)
