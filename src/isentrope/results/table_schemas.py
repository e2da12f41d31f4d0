"""The tables of results: columns and types, as the verbs write them."""

from __future__ import annotations

from isentrope.system.table_schema import TableSchema


def _numbers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "double")


def _with_interval(name: str) -> tuple[str, ...]:
    return name, f"{name}_se", f"{name}_ci_low", f"{name}_ci_high"


_ESTIMATE = _numbers("value", "se", "ci_low", "ci_high")
_OF_PROMPTS = _ESTIMATE | {"prompts": "int64"}

_SWEEP = TableSchema(
    {
        "checkpoint": "string",
        **_numbers("eta", *_with_interval("delta_h")),
        **_numbers("first_order", "first_order_se", "second_order", "second_order_se"),
        **_numbers(*_with_interval("residual")),
        "residual_verdict": "string?",
        **_numbers("ess", "ess_whole", "ess_integrated", "carriers", "khat"),
        "verdict": "string",
        "method": "string",
        **_numbers(*_with_interval("delta_j")),
        "reward_verdict": "string",
    },
    frozenset({*_with_interval("delta_j"), "reward_verdict"})
    | {"residual_ci_low", "residual_ci_high", "residual_verdict", "ess_integrated", "carriers"},
)
"""The last five are absent in tables of earlier versions."""

_BY_REWARD = frozenset({"delta_j", "delta_j_se"})
_CHANGES = _numbers("delta_h", "delta_h_se", "delta_j", "delta_j_se")

_SEQUENCES = TableSchema(
    {
        "sequence": "int64",
        "prompt": "int64",
        "key": "string?",
        "length": "int64",
        **_numbers("reward", "advantage", "S", "H"),
        **_CHANGES,
        "text": "string?",
    },
    _BY_REWARD | {"S", "H"},
)

_MOMENTUM = TableSchema(
    dict.fromkeys(("step", "back"), "int64")
    | {name: kind for name, kind in _SEQUENCES.columns.items() if name not in ("S", "H")},
    _BY_REWARD,
)

_TOKENS = TableSchema(
    {
        **dict.fromkeys(("sequence", "prompt", "position", "length", "token_id"), "int64"),
        **_numbers("s", "H", "coefficient", "entropy_coefficient", "reward", "advantage"),
        **_CHANGES,
        "text": "string?",
    },
    _BY_REWARD | {"entropy_coefficient"},
)

_CONTROLS = (
    *("touched", "changed", "touched_negative", "touched_unlikely", "touched_entropy"),
    *("candidates", "influence", "influence_damped", "pulled", "entropy", "entropy_se"),
    *("predicted", "predicted_se", "asked", "gain", "gain_se", "lambda"),
    *("no_correction", "clamped", "step_share"),
)
"""Numbers that some controls have."""
_COMPARED = ("", "gained_", "over_random_")
_ENTROPY = tuple(x for prefix in _COMPARED for x in _with_interval(f"{prefix}delta_h"))
_REWARD = tuple(x for prefix in _COMPARED for x in _with_interval(f"{prefix}delta_j"))

_TRIAL = TableSchema(
    {
        "control": "string",
        **_numbers("strength", *_CONTROLS),
        "part": "string",
        "eta": "double",
        "verdict": "string",
        **_numbers(*_ENTROPY, *_REWARD, *_with_interval("price")),
        "frontier": "bool",
    },
    frozenset(
        {
            *_CONTROLS,
            *_REWARD,
            *_with_interval("price"),
            *(x for x in _ENTROPY if x.startswith("over_random")),
        }
    ),
)

SCHEMAS = {
    "sweep": _SWEEP,
    "influences": TableSchema(
        {"quantity": "string", "prompt": "int64", "key": "string?", "influence": "double"}
    ),
    "sequences": _SEQUENCES,
    "momentum": _MOMENTUM,
    "tokens": _TOKENS,
    "structure": TableSchema(
        {
            **dict.fromkeys(("relation", "quantity"), "string"),
            **{"entries": "int64", **_OF_PROMPTS, "block": "string"},
        }
    ),
    "block_model": TableSchema({"quantity": "string", **_OF_PROMPTS, "block": "string"}),
    "truncations": TableSchema({"truncation": "string", "quantity": "string", **_OF_PROMPTS}),
    "noise": TableSchema(
        {"of": "string", "quantity": "string", **_ESTIMATE, "n": "int64", "unit": "string?"}
    ),
    "variance": TableSchema(
        {
            **dict.fromkeys(("quantity", "method"), "string"),
            **dict.fromkeys(("prompts", "batches"), "int64"),
            **_numbers("se", "spread"),
        }
    ),
    "audit": TableSchema(
        {
            **dict.fromkeys(("proxy", "statistic"), "string"),
            **{"top": "double", "items": "int64", **_OF_PROMPTS},
            **dict.fromkeys(("warnings", "of"), "string"),
        }
    ),
    "trial": _TRIAL,
    "entropies": TableSchema(
        {
            **dict.fromkeys(("batch", "definition", "unit"), "string"),
            **_ESTIMATE,
            **_numbers(*_with_interval("difference")),
        }
    ),
}
"""By the name of the file, without suffix."""

RECORDS = TableSchema(
    {
        "decoding": "string",
        **dict.fromkeys(("prompt", "sample"), "int64"),
        **dict.fromkeys(("key", "reference", "prompt_text"), "string?"),
        "text": "string",
        "length": "int64",
        "truncated": "bool",
        "reward": "double",
        "right": "bool",
        "format": "double",
        "response_ids": "list<int64>",
        **_numbers("entropy", "surprisal"),
        **dict.fromkeys(("logprobs", "entropies"), "list<double>?"),
    },
    frozenset({"decoding", "response_ids", "entropy", "surprisal", "logprobs", "entropies"}),
)
"""The responses of an evaluation."""
