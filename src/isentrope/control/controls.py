"""The controls by name.

`TOKEN_CONTROLS` rewrite the weights of an update batch, `FIELD_CONTROLS` set fields of TRL's
configuration, and `STEP_CONTROLS` add to the optimizer's step itself. A token control of the user's
own is a class in a Python file, named FILE.py:NAME, as those of examples/controls are.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_args

from pydantic import ValidationError

from isentrope.control.base import TokenRule
from isentrope.control.bonus import Bonus
from isentrope.control.budget_options import BudgetOptions
from isentrope.control.covariance import ClipCov, KlCov
from isentrope.control.names import (
    FIELD_NAMES,
    STEP_NAMES,
    TOKEN_NAMES,
    not_a_control,
    require_control,
)
from isentrope.control.repo_r import RepoR
from isentrope.control.trainer_fields import (
    AdaptiveBonus,
    Cispo,
    ClipHigher,
    Gspo,
    TrainerFields,
)
from isentrope.nouns.choices import PER_OF, Functional, PerOption
from isentrope.system.python_file import load_file_name

TOKEN_CONTROLS: dict[str, type[TokenRule]] = dict(
    zip(TOKEN_NAMES, (ClipCov, RepoR, Bonus), strict=True)
)
"""Token controls."""

FIELD_CONTROLS: dict[str, type[TrainerFields]] = dict(
    zip(FIELD_NAMES, (KlCov, ClipHigher, Cispo, Gspo, AdaptiveBonus), strict=True)
)
"""Controls that set fields of TRL; none of them can be tried in one step on an on-policy batch."""

STEP_CONTROLS: dict[str, type[BudgetOptions]] = dict(zip(STEP_NAMES, (BudgetOptions,), strict=True))
"""Controls that add to the step itself."""

NAMED_CONTROLS: dict[str, type] = {**TOKEN_CONTROLS, **FIELD_CONTROLS, **STEP_CONTROLS}
"""Every control that has a name of its own."""

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
    require_control(name)
    control = load_file_name(name, "control")
    if not (isinstance(control, type) and issubclass(control, TokenRule) and is_dataclass(control)):
        raise ValueError(not_a_control(name))
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
        value = f", got {refusal['input']!r}" if place else ""
        raise ValueError(f"The control {name!r}: {place}{message}{value}.") from error


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
