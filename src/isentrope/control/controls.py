"""The controls by name.

`TOKEN` rewrite the weights of an update batch, `FIELDS` set fields of TRL's configuration, and
`STEP` add to the optimizer's step itself.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from isentrope.control.base import TokenRule
from isentrope.control.bonus import (
    AdaptiveBonus,
    Bonus,
    Cispo,
    ClipHigher,
    Gspo,
    TrainerFields,
)
from isentrope.control.clips import (
    ClipB,
    ClipCov,
    EntropyMask,
    InfluenceClip,
    KlCov,
    NegativeScale,
    RandomMask,
)
from isentrope.control.requirements import BudgetOptions
from isentrope.control.sequence_rules import Entrocraft, PassAtK, QuantileAdvantage, WReinforce
from isentrope.control.surprisal import EntroPIC, LpReg, RepoR, Stare

TOKEN: dict[str, type[TokenRule]] = {
    "clip_cov": ClipCov,
    "clip_b": ClipB,
    "repo_r": RepoR,
    "stare": Stare,
    "entropic": EntroPIC,
    "w_reinforce": WReinforce,
    "entrocraft": Entrocraft,
    "pass_at_k": PassAtK,
    "qae": QuantileAdvantage,
    "entropy_mask": EntropyMask,
    "random_mask": RandomMask,
    "negative_scale": NegativeScale,
    "lp_reg": LpReg,
    "bonus": Bonus,
    "influence": InfluenceClip,
}
"""Token controls."""

FIELDS: dict[str, type[TrainerFields]] = {
    "kl_cov": KlCov,
    "clip_higher": ClipHigher,
    "cispo": Cispo,
    "gspo": Gspo,
    "adaptive": AdaptiveBonus,
}
"""Controls that set fields of TRL; none of them can be tried in one step on an on-policy batch."""

STEP: dict[str, type[BudgetOptions]] = {"budget": BudgetOptions}
"""Controls that add to the step itself."""


ALL: dict[str, type] = {**TOKEN, **FIELDS, **STEP}
"""Every control that `build` makes."""


def build(
    name: str, strength: float | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """A control by its name.

    Args:
        name: One of `ALL`.
        strength: Its strength; None for its default.
        options: Its other options.

    Returns:
        A `TokenRule`, a `TrainerFields` or `BudgetOptions`.

    Raises:
        ValueError: If the name or an option is unknown, or a value does not fit.
    """
    if name not in ALL:
        near = get_close_matches(str(name).lower(), ALL, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown control {name!r}: the nearest is {near!r}; choose one of none, "
            f"{', '.join(ALL)}."
        )
    kind, arguments = ALL[name], dict(options or {})
    allowed = {field.name for field in fields(kind)} - {"strength"}
    if unknown := sorted(arguments.keys() - allowed):
        words = ", ".join(sorted(allowed)) or "none"
        raise ValueError(f"The control {name!r} has no option {unknown[0]!r}: it has {words}.")
    if strength is not None:
        arguments["strength"] = strength
    try:
        return kind(**arguments)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        got = f", got {first['input']!r}" if place else ""
        raise ValueError(f"The control {name!r}: {place}{message}{got}.") from error
