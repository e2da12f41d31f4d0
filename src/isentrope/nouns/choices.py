"""Names that settings choose from: entropies, estimators, objectives, and what is evaluated.

Configurations are read before any library of tensors is imported, so nothing is imported here.
"""

from typing import Any, Literal, get_args

Functional = Literal["per_sequence", "per_token"]
"""The entropy that is estimated, in formulas and files: ℋ of a response, or h of a token (T1)."""

Per = Literal["token", "sequence"]
"""The same in Python: `per="token"` is `functional: per_token` of a file."""
FUNCTIONAL_OF: dict[Per, Functional] = {"token": "per_token", "sequence": "per_sequence"}
PER_OF: dict[Functional, Per] = {functional: per for per, functional in FUNCTIONAL_OF.items()}

Method = Literal["sequence", "prefix", "doubly-robust", "surprisal"]
"""Estimators of entropy under other weights than the sampler's (T2)."""
METHODS: tuple[Method, ...] = get_args(Method)

Objective = Literal[
    "dr_grpo",
    "dr_grpo_longest",
    "grpo",
    "rloo",
    "dapo",
    "bnpo",
    "cispo",
    "sapo",
    "luspo",
    "vespo",
]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""Objectives of advantages."""
SFT = "sft"
RECORDED = "recorded"
AnyObjective = Literal[Objective, "sft", "recorded"]
"""Those of advantages, the cross-entropy of given responses, and what training recorded."""

CLIPPED: tuple[Objective, ...] = (
    "dr_grpo",
    "dr_grpo_longest",
    "grpo",
    "rloo",
    "dapo",
    "bnpo",
    "cispo",
)
"""Objectives whose stale weights are known, by token-level ratios."""

ADVANTAGES_OF = (
    dict.fromkeys(OBJECTIVES, "grpo")
    | dict.fromkeys(("dr_grpo", "dr_grpo_longest", SFT, RECORDED), "dr_grpo")
    | {"rloo": "rloo"}
)
"""The advantages that go with an objective."""

Preconditioning = Literal["this_step", "previous_step"]
"""Which second moments P has: those that the step itself updates, or those known before it."""

Metric = Literal[
    "pass_at_k",
    "reward",
    "format",
    "unread",
    "response_length",
    "truncated",
    "entropy",
    "surprisal",
    "forking_entropy",
]
ALL_METRICS: tuple[Metric, ...] = get_args(Metric)
"""All metrics of an evaluation."""

Decoding = Literal["sampled", "greedy"]
"""Responses drawn from the policy, or the likeliest token at every position."""


class PerOption:
    """What has an option `per`, which formulas and files call `functional`."""

    per: Per

    def __post_init__(self) -> None:
        require_per(self.per)

    @property
    def functional(self) -> Functional:
        """The entropy by its name in formulas and files."""
        return FUNCTIONAL_OF[self.per]


def require_per(per: Any) -> Per:
    """The value itself, if it is one of `per`.

    Args:
        per: What was given for it.

    Returns:
        "token" or "sequence".

    Raises:
        ValueError: If it is neither.
    """
    if per not in get_args(Per):
        meant = str(per).removeprefix("per_")
        choices = [meant] if meant in get_args(Per) else get_args(Per)
        written = " or ".join(f'per="{choice}"' for choice in choices)
        raise ValueError(f'per={per!r} is neither "token" nor "sequence": write {written}.')
    return per
