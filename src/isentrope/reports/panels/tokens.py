"""The tokens of the most influential sequences, coloured by what they did to entropy and reward.

Colour is relative to the largest |δH_ik| (or |δJ_ik|) that is shown, on a square-root scale, so
that small ones are seen too. Of a long response only the surroundings of its most influential
tokens are shown, with a count of what is left out.

A second panel has classes of tokens: what the likely and the unlikely, the rewarded and the
punished cost. Bars are δH of a class per unit η with their intervals; numbers beside the names are
shares of the tokens that act. Whether the published criterion is the whole story is a sentence of
the verdict.
"""

import unicodedata
from collections.abc import Iterator

import numpy as np
import pandas as pd
from markupsafe import Markup

from isentrope.attribution.influence.classes import BY_GROUP
from isentrope.reports.drawing import bars
from isentrope.reports.panel import Panel, Row, markup, number, records, with_interval
from isentrope.reports.read_run import Measurement, Reading
from isentrope.results.results import AuditResult, InfluenceResult
from isentrope.system.formatting import known, percent


def classified(
    reading: Reading,
) -> Measurement[InfluenceResult] | Measurement[AuditResult] | None:
    """The influence, or else the audit, that has classes of tokens."""
    for found in (reading.shown(InfluenceResult), reading.shown(AuditResult)):
        if found is not None and "tokens" in found.result.classes:
            return found
    return None


def class_panel(reading: Reading) -> Iterator[Panel]:
    """δH of every class of tokens, and of every group of prompts, and its shares."""
    found = classified(reading)
    if found is None:
        return
    for of in ("tokens", BY_GROUP):
        if of in found.result.classes:
            yield _classes(found, of)


def _classes(found: Measurement[InfluenceResult] | Measurement[AuditResult], of: str) -> Panel:
    classes, (members, _, by_group) = found.result.classes[of], of.partition("_")
    parts, total = classes.parts, sum(part.members for part in classes.parts.values())
    rows = []
    for name, part in parts.items():
        row = {"class": name, members: part.members, f"share_of_{members}": part.members / total}
        row |= {"weight": part.weight, **part.delta_h.columns()}
        more = {"share": part.share_h, "fall": part.fall, "delta_j": part.delta_j}
        row |= {f"{of}_{key}": x for of, e in more.items() if e for key, x in e.columns().items()}
        rows.append(row)
    names = [f"{name} ({percent(part.members / total)})" for name, part in parts.items()]
    changes = [part.delta_h for part in parts.values()]
    ends = {name: number(value) for name, value in classes.thresholds.items()}
    words = (
        "Classes are the groups of the batch's prompts."
        if by_group
        else f"Unlikely is log π ≤ {ends['s of unlikely']}, high entropy H ≥ "
        f"{ends['H of high entropy']} nats; rewarded and punished are signs of the token's weight."
    )
    name, most = min(parts.items(), key=lambda pair: pair[1].delta_h.value)
    return Panel(
        "groups" if by_group else "classes",
        f"Which classes of {of.replace('_', ' ')} cost entropy",
        f"Of the classes, “{name}” moves entropy lowest, by {with_interval(most.delta_h)} "
        f"{most.delta_h.unit}, {with_interval(most.fall)} of the fall. {words}",
        found.source(),
        pd.DataFrame(rows),
        bars(names, changes, f"δH ({classes.gradient.unit})"),
        {f"share of the fall, {name}": part.fall for name, part in parts.items()},
    )


SEQUENCES = 10
"""Shown; the most influential."""

WHOLE = 320
"""Tokens up to which a response is shown whole."""

PEAKS, AROUND = 8, 14
"""Of a longer one: its most influential tokens, and how many are shown on either side of each."""

QUANTITIES = {"delta_h": ("h", "δH"), "delta_j": ("j", "δJ")}
"""The letter of each in the style sheet, and its symbol."""

_KEPT = ("\u200c", "\u200d", "\ufe0e", "\ufe0f")
"""Characters without a shape that join letters or choose the form of an emoji."""


def token_map(reading: Reading) -> Iterator[Panel]:
    """The heat map; nothing where tokens were not attributed."""
    influence = reading.shown(InfluenceResult)
    tables = {} if influence is None else influence.result.tables
    if influence is None or not {"tokens", "sequences"} <= set(tables) or not len(tables["tokens"]):
        return
    tokens, sequences = tables["tokens"], tables["sequences"]
    top = sequences.loc[sequences["delta_h"].abs().nlargest(SEQUENCES).index]
    shown = tokens[tokens["sequence"].isin(top["sequence"])]
    largest = {name: float(shown[name].abs().max()) or 1.0 for name in QUANTITIES if name in shown}
    pieces = {i: list(_pieces(rows, largest)) for i, rows in shown.groupby("sequence")}
    maps = [(_head(row), pieces[row["sequence"]]) for row in records(top)]
    unit = influence.result.entropy.unit
    share = top["delta_h"].abs().sum() / (sequences["delta_h"].abs().sum() or 1.0)
    most = _most(tokens, known(influence.result.listed_share.get("tokens")), unit)
    yield Panel(
        "tokens",
        "Tokens of the most influential sequences",
        f"The {len(top)} most influential of {len(sequences)} sequences carry {percent(share)} of "
        f"Σ|δH_i|; {most}",
        influence.source("tokens.parquet", "sequences.parquet"),
        shown,
        body=markup("token_map", maps, unit, "delta_j" in shown),
    )


def _most(tokens: pd.DataFrame, share: float | None, unit: str) -> str:
    """The most influential token, of whose measured size only a share is not noise."""
    token = tokens.iloc[tokens["delta_h"].abs().argmax()]
    text, token_id = token["text"], token["token_id"]
    name = f"“{text}”" if text and text.isprintable() and text.strip() else f"number {token_id}"
    note = "The largest sizes are inflated: the map has them as measured."
    if share is not None:
        note = f"Sizes in the map are as measured; the largest keep about {percent(share)} of it."
    share = 1.0 if share is None else share
    size, se = share * abs(token["delta_h"]), share**0.5 * token["delta_h_se"]
    return (
        f"the most influential token, {name}, {'lowers' if token['delta_h'] < 0 else 'raises'} "
        f"entropy by {number(size)} ± {number(se, 2)} {unit}. {note}"
    )


def _head(row: Row) -> list[str]:
    """What stands above a sequence."""
    head = [f"sequence {row['sequence']}"]
    head += [str(row["key"])] if row.get("key") else []
    for name in ("reward", "advantage"):
        head += [f"{name} {number(row[name])}"] if pd.notna(row[name]) else []
    return head + [_influence(row, name) for name in QUANTITIES if name in row]


def _influence(row: Row, name: str) -> str:
    return f"{QUANTITIES[name][1]} {number(row[name])} ± {number(row[f'{name}_se'], 2)}"


def _pieces(tokens: pd.DataFrame, largest: dict[str, float]) -> Iterator[tuple[str, str, str]]:
    """Style, numbers and text of each token shown; of a gap, no style and no numbers."""
    tokens, last = tokens.sort_values("position"), -1
    size, rows = tokens["delta_h"].abs().to_numpy(), records(tokens)
    for k in [*_kept(size), len(rows)]:
        if k > last + 1:
            count = k - last - 1
            words = f"… {count:,} token{'s' if count > 1 else ''} left out …"
            yield "", "", words.replace(",", "\u202f")
        last = k
        if k < len(rows):
            row, style = rows[k], []
            for name, top in largest.items():
                relative = np.sign(row[name]) * np.sqrt(abs(row[name]) / top)
                style.append(f"--{QUANTITIES[name][0]}:{relative:.2f}")
            numbers = [f"position {row['position']}, id {row['token_id']}"]
            numbers += [_influence(row, name) for name in largest]
            numbers += [f"log π {number(row['s'])}", f"H {number(row['H'])}"]
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
