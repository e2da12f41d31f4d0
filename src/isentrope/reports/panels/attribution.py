"""Who moved the entropy: by prompts, by tokens and their classes, and by the published proxies.

Bars are δH per unit η with their intervals; numbers beside the names of classes are shares of the
tokens that act. Whether the published criterion is the whole story is a sentence of the verdict. A
proxy without a sign (an entropy mask) is compared with the size of the influence, |δH_ik|.

The tokens of the most influential sequences are coloured by what they did to entropy and reward.
Colour is relative to the largest |δH_ik| (or |δJ_ik|) that is shown, on a square-root scale, so
that small ones are seen too. Of a long response only the surroundings of its most influential
tokens are shown, with a count of what is left out.
"""

import math
import unicodedata
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from markupsafe import Markup

from isentrope.attribution.influence.classes import BY_GROUP, Classes
from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import Bars
from isentrope.reports.panel import Panel, markup
from isentrope.reports.read_run import Reading
from isentrope.reports.saved_result import SavedResult
from isentrope.reports.words import TableRow, records
from isentrope.results.answers.blocks import short
from isentrope.results.answers.influence import shares_sentence
from isentrope.results.attributions import ProxyRecord
from isentrope.results.results import AuditResult, InfluenceResult
from isentrope.system.formatting import known, percent

RELATIONS = {
    "same prompt": "shares.same_prompt",
    "other prompts": "shares.other_prompt",
    "together": "shares.gradient",
}


def shares(reading: Reading) -> Iterator[Panel]:
    """The gradient's part by how two responses are related, on fresh responses to U's prompts."""
    influence = reading.shown(InfluenceResult)
    relations, _ = influence.at(RELATIONS)
    for sentence in shares_sentence(influence.result):
        title = "Whose responses moved whose, on U's prompts"
        label = f"part of δH₁ ({relations['together'].unit})"
        yield Panel(influence.source, "shares", title, sentence.text, Bars(label, relations))


def classified(reading: Reading) -> SavedResult[InfluenceResult] | SavedResult[AuditResult]:
    """The influence, or else the audit, that has classes of tokens."""
    influence = reading.in_focus(InfluenceResult)
    if influence is not None and "tokens" in influence.result.classes:
        return influence
    return reading.shown(AuditResult)


def class_panels(reading: Reading) -> Iterator[Panel]:
    """δH of every class of tokens, and of every group of prompts."""
    measured = classified(reading)
    for members in ("tokens", BY_GROUP):
        if members not in measured.result.classes:
            continue
        classes = measured.result.classes[members]
        words = "Classes are the groups of the batch's prompts."
        if members == "tokens":
            ends = {name: short(value) for name, value in classes.thresholds.items()}
            words = (
                f"Unlikely is log π ≤ {ends['s of unlikely']}, high entropy H ≥ "
                f"{ends['H of high entropy']} nats; rewarded and punished are signs of the token's "
                "weight."
            )
        yield Panel(
            measured.source,
            "classes" if members == "tokens" else "groups",
            f"Which classes of {members.replace('_', ' ')} cost entropy",
            f"{words} The percentage beside a class is its share of them all.",
            class_bars(classes),
        )


def class_bars(classes: Classes) -> Bars:
    """δH of every class, with its share of the members beside its name."""
    parts = classes.parts
    total = sum(part.members for part in parts.values())
    changes = {name: part.delta_h for name, part in parts.items()}
    written = {name: f"{name} ({percent(part.members / total)})" for name, part in parts.items()}
    return Bars(f"δH ({classes.gradient.unit})", changes, written=written)


SEQUENCES = 10
"""Shown; the most influential."""

WHOLE_PROMPT = 160
"""Characters up to which a prompt is shown whole."""

WHOLE = 320
"""Tokens up to which a response is shown whole."""

PEAKS = 8
"""Of a longer one: its most influential tokens, which are shown."""

AROUND = 14
"""Tokens that are shown on either side of each."""

_KEPT = ("\u200c", "\u200d", "\ufe0e", "\ufe0f")
"""Characters without a shape that join letters or choose the form of an emoji."""

_SIGNS = {
    "\n": Markup('<i class="sign">↵</i><br>'),
    "\t": Markup('<i class="sign">→</i>&#9;'),
}


def token_map(reading: Reading) -> Iterator[Panel]:
    """The heat map; nothing where tokens were not attributed."""
    influence = reading.shown(InfluenceResult)
    tables = influence.result.tables
    unit = influence.result.entropy.unit
    if not {"tokens", "sequences"} <= set(tables) or not len(tables["tokens"]):
        return
    tokens = tables["tokens"]
    sequences = tables["sequences"]
    top = sequences.loc[sequences["delta_h"].abs().nlargest(SEQUENCES).index]
    shown = tokens[tokens["sequence"].isin(top["sequence"])]
    sizes = {
        name[-1]: np.sign(influences) * np.sqrt(influences.abs() / (influences.abs().max() or 1.0))
        for name, influences in shown.items()
        if name in ("delta_h", "delta_j")
    }
    responses = shown.assign(**sizes).sort_values("position").groupby("sequence")
    maps = [
        (row, _prompt_of(row), *_pieces(responses.get_group(row["sequence"])))
        for row in records(top)
    ]
    share = top["delta_h"].abs().sum() / (sequences["delta_h"].abs().sum() or 1.0)
    listed_share = known(influence.result.listed_share.get("tokens"))
    noise = "are inflated by noise"
    if listed_share is not None:
        noise += f": about {percent(listed_share)} of their size would remain on an infinite E"
    yield Panel(
        influence.source,
        "tokens",
        "Tokens of the most influential sequences",
        f"The {len(top)} most influential of {len(sequences)} sequences carry {percent(share)} of "
        f"Σ|δH_i|. Sizes in the map are as measured; the largest {noise}.",
        table=shown,
        body=markup("token_map", maps, unit, "delta_j" in shown, visible),
    )


def _prompt_of(row: TableRow) -> str:
    """The prompt, both ends of a long one, without characters that hide; empty if not known."""
    text = row.get("prompt_text")
    if not isinstance(text, str):
        return ""
    if len(text) > WHOLE_PROMPT:
        text = f"{text[: WHOLE_PROMPT // 2]} … {text[-WHOLE_PROMPT // 2 :]}"
    return repr(text)[1:-1]


def _pieces(tokens: pd.DataFrame) -> tuple[list[TableRow], int]:
    """The tokens shown: all of a short response, windows around the peaks of a long one.

    Returns:
        Their rows, each with the `gap` of tokens that are left out before it, and the last gap.
    """
    size = tokens["delta_h"].abs().to_numpy()
    positions = np.arange(len(size))
    if len(size) > WHOLE:
        near = (np.argsort(size)[-PEAKS:, None] + np.arange(-AROUND, AROUND + 1)).ravel()
        positions = np.unique(near[(near >= 0) & (near < len(size))])
    *gaps, last = np.diff(positions, prepend=-1, append=len(size)) - 1
    return records(tokens.iloc[positions].assign(gap=gaps)), last


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


PROXIES = {
    "token_covariance": "token covariance",
    "sequence_covariance": "sequence covariance",
    "discriminator": "S* × advantage",
    "centred_discriminator": "S* centred",
    "local_change": "local change",
    "steer": "STEER",
    "stare": "STARE sets",
    "surprisal_advantage": "surprisal × A",
    "advantage": "advantage",
    "entropy": "entropy",
    "top_entropy": "top-entropy mask",
}

SHARE_SHOWN = 0.02
"""The share of the largest influences that is shown, or the nearest one that was audited."""

RANK_CORRELATIONS = {"spearman": "", "spearman_size": ", by size"}
"""The rank correlation with the influence, or else with its size, and what is said of it."""


def proxies_of(record: ProxyRecord, statistics: Mapping[str, str]) -> dict[str, Estimate]:
    """By proxy of tokens or of sequences, the first of these statistics that it has."""
    estimates = dict[str, Estimate]()
    for proxy, row in record.proxies.items():
        finite = [name for name in statistics if name in row and math.isfinite(row[name].value)]
        if proxy != "measured" and finite:
            name = f"{PROXIES.get(proxy, proxy)}{statistics[finite[0]]}"
            estimates[name] = row[finite[0]]
    return estimates


def audit_panels(reading: Reading) -> Iterator[Panel]:
    """Rank correlation and overlap of every proxy."""
    audit = reading.shown(AuditResult)
    names = {name for row in audit.result.tokens.proxies.values() for name in row}
    tops = [float(name.partition("@")[2]) for name in names if name.startswith("overlap@")]
    top = min(tops, key=lambda top: abs(math.log(top / SHARE_SHOWN)))
    share = f"{top * 100:g} %"
    for key, title, statistics, label, lead in (
        (
            AuditResult.verb,
            "Do proxies rank as the measurement does?",
            RANK_CORRELATIONS,
            "rank correlation with δH",
            "A proxy without sign is compared with the size of δH.",
        ),
        (
            "audit_overlap",
            "Do they find the tokens that matter?",
            {f"overlap@{top:g}": ""},
            f"overlap of the top {share} by size",
            f"The part of the {share} of tokens with the largest influence that a proxy finds.",
        ),
    ):
        tokens = proxies_of(audit.result.tokens, statistics)
        sequences = proxies_of(audit.result.sequences, statistics)
        correlations = tokens | {f"{name}, sequences": e for name, e in sequences.items()}
        yield Panel(audit.source, key, title, lead, Bars(label, correlations, changes=False))
