"""The controls by name.

`TOKEN_CONTROLS` rewrite the weights of an update batch, `FIELD_CONTROLS` set fields of TRL's
configuration, and `STEP_CONTROLS` add to the optimizer's step itself. A token control of the user's
own is a class in a Python file, named FILE.py:NAME, as those of examples/controls are.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError

from isentrope.control.base import TokenRule
from isentrope.control.bonus import Bonus
from isentrope.control.budget_options import BudgetOptions
from isentrope.control.covariance import ClipCov, KlCov
from isentrope.control.repo_r import RepoR
from isentrope.control.trainer_fields import (
    AdaptiveBonus,
    Cispo,
    ClipHigher,
    Gspo,
    TrainerFields,
)
from isentrope.nouns.choices import PER_OF, Functional, PerOption
from isentrope.system.python_file import FILE_NAME, load_file_name

TOKEN_CONTROLS: dict[str, type[TokenRule]] = {"clip_cov": ClipCov, "repo_r": RepoR, "bonus": Bonus}
"""Token controls."""

FIELD_CONTROLS: dict[str, type[TrainerFields]] = {
    "kl_cov": KlCov,
    "clip_higher": ClipHigher,
    "cispo": Cispo,
    "gspo": Gspo,
    "adaptive": AdaptiveBonus,
}
"""Controls that set fields of TRL; none of them can be tried in one step on an on-policy batch."""

STEP_CONTROLS: dict[str, type[BudgetOptions]] = {"budget": BudgetOptions}
"""Controls that add to the step itself."""

NAMED_CONTROLS: dict[str, type] = {**TOKEN_CONTROLS, **FIELD_CONTROLS, **STEP_CONTROLS}
"""Every control that has a name of its own."""

EXAMPLES = {
    "clip_b": "clip_b.py:ClipB",
    "stare": "stare.py:Stare",
    "steer": "steer.py:Steer",
    "entropic": "entropic.py:EntroPIC",
    "w_reinforce": "w_reinforce.py:WReinforce",
    "entrocraft": "entrocraft.py:Entrocraft",
    "pass_at_k": "pass_at_k.py:PassAtK",
    "qae": "qae.py:QuantileAdvantage",
    "entropy_mask": "masks.py:EntropyMask",
    "random_mask": "masks.py:RandomMask",
    "negative_scale": "masks.py:NegativeScale",
    "lp_reg": "lp_reg.py:LpReg",
    "influence": "influence.py:InfluenceClip",
}
"""Names of examples, most from earlier versions, and where in examples/controls they are."""

COLUMN_OPTIONS = {"kept_mass": "min_p", "influence": "size"}
"""The option of a token control that its optional column needs."""


def control_class(name: str) -> type:
    """The class of a control.

    Args:
        name: One of `NAMED_CONTROLS`, or FILE.py:NAME.

    Returns:
        A subclass of `TokenRule` or `TrainerFields`, or `BudgetOptions`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the name is unknown, or the file's object is no token control.
    """
    if name in NAMED_CONTROLS:
        return NAMED_CONTROLS[name]
    if name in EXAMPLES:
        raise ValueError(
            f"The control {name!r} is an example now: name it "
            f"examples/controls/{EXAMPLES[name]}, a file of the repository."
        )
    if not FILE_NAME.fullmatch(name):
        nearest = get_close_matches(str(name).lower(), NAMED_CONTROLS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown control {name!r}: the nearest is {nearest!r}; choose one of none, "
            f"{', '.join(NAMED_CONTROLS)}, or FILE.py:NAME."
        )
    control = load_file_name(name, "control")
    if not (isinstance(control, type) and issubclass(control, TokenRule) and is_dataclass(control)):
        raise ValueError(
            f"{name} is not a token control: write a subclass of isentrope.control.base.TokenRule "
            "under the decorator `options`, as examples/controls do."
        )
    option = COLUMN_OPTIONS.get(control.needs or "")
    if control.needs and option not in {field.name for field in fields(control)}:
        columns = ", ".join(f"{column!r} (option {o!r})" for column, o in COLUMN_OPTIONS.items())
        raise ValueError(
            f"The control {name} needs {control.needs!r}: a control may need one of {columns}, and "
            "has the option for it."
        )
    return control


def build(
    name: str, strength: float | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """A control by its name.

    Args:
        name: One of `NAMED_CONTROLS`, or FILE.py:NAME.
        strength: Its strength; None for its default.
        options: Its other options.

    Returns:
        A `TokenRule`, a `TrainerFields` or `BudgetOptions`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the name or an option is unknown, or a value does not fit.
    """
    control = control_class(name)
    arguments = dict(options or {})
    allowed = {_name_in_files(control, field.name) for field in fields(control)} - {"strength"}
    if unknown := sorted(arguments.keys() - allowed):
        words = ", ".join(sorted(allowed)) or "none"
        raise ValueError(f"The control {name!r} has no option {unknown[0]!r}: it has {words}.")
    if "functional" in arguments and issubclass(control, PerOption):
        functional = arguments.pop("functional")
        if functional not in get_args(Functional):
            raise ValueError(
                f"The control {name!r}: functional: Input should be 'per_sequence' or 'per_token', "
                f"got {functional!r}."
            )
        arguments["per"] = PER_OF[functional]
    if strength is not None:
        arguments["strength"] = strength
    try:
        return control(**arguments)
    except ValidationError as error:
        refusal = error.errors()[0]
        place = "".join(f"{part}: " for part in refusal["loc"])
        message = refusal["msg"].removeprefix("Value error, ")
        got = f", got {refusal['input']!r}" if place else ""
        raise ValueError(f"The control {name!r}: {place}{message}{got}.") from error


def options_in_files(control: Any) -> dict[str, Any]:
    """All options of a control, its strength among them, as files name them.

    Args:
        control: What `build` made.

    Returns:
        The values by name.
    """
    options = {_name_in_files(type(control), k): value for k, value in asdict(control).items()}
    if isinstance(control, PerOption):
        options["functional"] = control.functional
    return options


def _name_in_files(control: type, field: str) -> str:
    """What files call a field of a control."""
    return "functional" if field == "per" and issubclass(control, PerOption) else field
