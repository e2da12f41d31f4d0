"""The tables of results: their columns and types, as the verbs write them."""

from __future__ import annotations

from isentrope.system.table_schema import TableSchema

_TYPES = {
    name: kind
    for kind, names in {
        "string": "checkpoint verdict reward_verdict method quantity relation block truncation of "
        "proxy statistic warnings control part batch definition unit decoding",
        "string?": "residual_verdict key text reference prompt_text",
        "int64": "prompt sequence length step back position token_id entries prompts n batches "
        "items sample",
        "bool": "frontier truncated right",
        "list<int64>": "response_ids",
        "list<double>?": "logprobs entropies",
    }.items()
    for name in names.split()
}
"""Of the columns that are not "double"."""


def _columns(text: str) -> TableSchema:
    """A table with these columns.

    Args:
        text: Names; x± is x with x_se, x_ci_low and x_ci_high, one that ends in ? may be absent,
            and name:type has a type of its own.

    Returns:
        Their types.
    """
    columns: dict[str, str] = {}
    optional: set[str] = set()
    for word in text.split():
        name, _, kind = word.partition(":")
        stem = name.rstrip("±?")
        ends = ("", "_se", "_ci_low", "_ci_high") if "±" in name else ("",)
        names = [f"{stem}{end}" for end in ends]
        columns |= {name: kind or _TYPES.get(name, "double") for name in names}
        optional |= {*names} if name.endswith("?") else set()
    return TableSchema(columns, frozenset(optional))


_ESTIMATE = "value se ci_low ci_high"
_OF_SEQUENCE = "key length reward advantage {} delta_h delta_h_se delta_j? delta_j_se? text"
_DID = (  # numbers that some controls have
    "touched? changed? touched_negative? touched_unlikely? touched_entropy? candidates? "
    "influence? influence_damped? pulled? entropy? entropy_se? predicted? predicted_se? asked? "
    "gain? gain_se? lambda? no_correction? clamped? step_share?"
)

SCHEMAS = {
    name: _columns(text)
    for name, text in {
        "sweep": "checkpoint eta delta_h± first_order first_order_se second_order second_order_se "
        "residual residual_se residual_ci_low? residual_ci_high? residual_verdict? ess ess_whole "
        "ess_integrated? carriers? khat verdict method delta_j±? reward_verdict?",
        "influences": "quantity prompt key influence",
        "sequences": f"sequence prompt {_OF_SEQUENCE.format('S? H?')}",
        "momentum": f"step back sequence prompt {_OF_SEQUENCE.format('')}",
        "tokens": "sequence prompt position length token_id s H coefficient entropy_coefficient? "
        "reward advantage delta_h delta_h_se delta_j? delta_j_se? text",
        "structure": f"relation quantity entries {_ESTIMATE} prompts block",
        "block_model": f"quantity {_ESTIMATE} prompts block",
        "truncations": f"truncation quantity {_ESTIMATE} prompts",
        "noise": f"of quantity {_ESTIMATE} n unit:string?",
        "variance": "quantity method prompts batches se spread",
        "audit": f"proxy statistic top items {_ESTIMATE} prompts warnings of",
        "trial": f"control strength {_DID} part eta verdict delta_h± gained_delta_h± "
        "over_random_delta_h±? delta_j±? gained_delta_j±? over_random_delta_j±? price±? frontier",
        "entropies": f"batch definition unit {_ESTIMATE} difference±",
    }.items()
}
"""By the name of the file, without suffix. What may be absent is so in tables of former versions,
of batches without rewards, or of some controls."""

RECORDS = _columns(
    "decoding? prompt sample key reference prompt_text text:string length truncated reward right "
    "format response_ids? entropy? surprisal? logprobs? entropies?"
)
"""The responses of an evaluation."""
