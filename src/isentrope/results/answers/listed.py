"""The tokens (or responses) of a batch that move entropy most, each once and with its surroundings.

Sizes are λ x, where λ is the share of the largest sizes that is not noise
(`attribution.influence.reliability`): the largest of many are inflated. Equal responses to one
prompt draw have equal influences, and are one row.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import pandas as pd

from isentrope.attribution.influence.reliability import LISTED, shrunk_size
from isentrope.nouns.columns import Column
from isentrope.nouns.estimate import Estimate
from isentrope.results.results import InfluenceResult
from isentrope.system.formatting import known

SURROUNDINGS = 6
"""Characters that are shown on either side of a token."""
BEGINNING = 24
"""Characters that are shown of a response."""
SEVERAL = 3
"""Places of equal responses that are named."""


@dataclass(frozen=True, kw_only=True)
class ListedToken:
    """A token.

    Attributes:
        sequence: Its response's place in U, and those of equal responses to the same prompt draw.
        position: Its place in the response, from 0.
        text: The token between bars, with what stands around it.
        log_probability: s, nats.
        entropy: H of its distribution, nats.
        advantage: Of its response; NaN where it is not known.
        delta_h: Its part of δH₁.
        delta_j: Its part of δJ₁; None without rewards.
    """

    sequence: Annotated[str, Column("sequence", rank=3)]
    position: Annotated[int, Column("position", rank=4)]
    text: Annotated[str, Column("text", left=True)]
    log_probability: Annotated[float, Column("s", rank=5)]
    entropy: Annotated[float, Column("H", rank=2)]
    advantage: Annotated[float, Column("advantage", rank=1)]
    delta_h: Annotated[Estimate, Column("delta_h ± se")]
    delta_j: Annotated[Estimate | None, Column("delta_j ± se", rank=1)]


@dataclass(frozen=True, kw_only=True)
class ListedResponse:
    """A response.

    Attributes:
        sequence: Its place in U, and those of equal responses to the same prompt draw.
        key: The prompt's; None where it has none.
        text: Its beginning.
        length: Tokens.
        reward: Its reward; NaN where it is not known.
        advantage: Its advantage; NaN where it is not known.
        delta_h: Its part of δH₁.
        delta_j: Its part of δJ₁; None without rewards.
    """

    sequence: Annotated[str, Column("sequence")]
    key: Annotated[str | None, Column("key", rank=4)]
    text: Annotated[str, Column("text", rank=3, left=True)]
    length: Annotated[int, Column("length", rank=5)]
    reward: Annotated[float, Column("reward", rank=2)]
    advantage: Annotated[float, Column("advantage", rank=1)]
    delta_h: Annotated[Estimate, Column("delta_h ± se")]
    delta_j: Annotated[Estimate | None, Column("delta_j ± se", rank=1)]


def rows_of_kind(result: InfluenceResult) -> str:
    """What is listed: tokens, where they were attributed, and sequences elsewhere."""
    return "tokens" if "tokens" in result.tables else "sequences"


def listed_rows(result: InfluenceResult) -> list[ListedToken] | list[ListedResponse]:
    """Those that lower entropy most, and then those that raise it most; none without a table."""
    kind = rows_of_kind(result)
    if kind not in result.tables:
        return []
    table = result.tables[kind]
    equal = _equal_responses(result)
    firsts = {places[0] for places in equal.values()}
    order = table[table["sequence"].isin(firsts)].sort_values("delta_h")
    lowest = order.head(LISTED[0])
    highest = order.iloc[max(LISTED[0], len(order) - LISTED[1]) :]
    records = cast("list[dict[str, Any]]", pd.concat([lowest, highest]).to_dict("records"))
    if kind == "sequences":
        return [
            ListedResponse(
                key=record["key"],
                text=_shortened(_visible(record["text"])),
                length=record["length"],
                reward=record["reward"],
                **_common(result, kind, record, equal),
            )
            for record in records
        ]
    responses = {int(cast("int", key)): rows for key, rows in table.groupby("sequence")}
    return [
        ListedToken(
            position=record["position"],
            text=_around(responses[record["sequence"]], record["position"]),
            log_probability=record["s"],
            entropy=record["H"],
            **_common(result, kind, record, equal),
        )
        for record in records
    ]


def _equal_responses(result: InfluenceResult) -> Mapping[int, list[int]]:
    """By sequence, the places of those with its text to its prompt draw, in order."""
    sequences = result.tables.get("sequences")
    if sequences is None:
        return {int(place): [int(place)] for place in result.tables["tokens"]["sequence"].unique()}
    by_content: dict[tuple[Any, Any], list[int]] = {}
    for record in cast("list[dict[str, Any]]", sequences.to_dict("records")):
        content = record["text"] if isinstance(record["text"], str) else record["sequence"]
        by_content.setdefault((record["prompt"], content), []).append(record["sequence"])
    return {place: places for places in by_content.values() for place in places}


def _common(
    result: InfluenceResult,
    kind: str,
    record: Mapping[str, Any],
    equal: Mapping[int, list[int]],
) -> dict[str, Any]:
    """What tokens and responses have in common; sizes of reward are as measured."""
    places = equal[record["sequence"]]
    sequences = ", ".join(map(str, places[:SEVERAL]))
    if len(places) > SEVERAL:
        sequences += f" and {len(places) - SEVERAL} more"
    share = known(result.listed_share.get(kind))
    share = 1.0 if share is None else share
    delta_j = None
    if "delta_j" in record:
        delta_j = _size(result, record["delta_j"], record["delta_j_se"])
    return {
        "sequence": sequences,
        "advantage": record["advantage"],
        "delta_h": _size(result, *shrunk_size(record["delta_h"], record["delta_h_se"], share)),
        "delta_j": delta_j,
    }


def _size(result: InfluenceResult, value: float, se: float) -> Estimate:
    """A size with the interval of errors from groups of prompts."""
    if not math.isfinite(se):
        se = math.nan
    return Estimate.from_standard_error(
        value,
        se,
        result.groups,
        unit=result.entropy.unit,
        method="groups of prompts",
        confidence=result.estimator.confidence,
    )


def _visible(words: Any) -> str:
    """A text without line breaks and control characters; a dash where it is not known."""
    return repr(words)[1:-1] if isinstance(words, str) else "–"


def _shortened(words: str) -> str:
    return words if len(words) <= BEGINNING else f"{words[: BEGINNING - 1]}..."


def _around(response: pd.DataFrame, position: int) -> str:
    """A token between bars, with the text before and after it."""
    before = response.loc[response["position"] < position, "text"]
    after = response.loc[response["position"] > position, "text"]
    (token,) = response.loc[response["position"] == position, "text"]
    left = "".join(map(_visible, before.tail(SURROUNDINGS)))
    right = "".join(map(_visible, after.head(SURROUNDINGS)))
    if len(left) > SURROUNDINGS:
        left = f"...{left[-SURROUNDINGS:]}"
    if len(right) > SURROUNDINGS:
        right = f"{right[:SURROUNDINGS]}..."
    return f"{left}|{_visible(token)}|{right}"
