"""Old names of the public API, which keep working for one release with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

VALUES = {"one_by_one": "loop"}
"""Old values of renamed arguments, and their new ones."""


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept the old keyword of an argument, with a DeprecationWarning.

    Args:
        **names: The new name of each old keyword.

    Returns:
        A decorator. The decorated function raises a TypeError if it gets both names.
    """

    def convert(old: dict[str, Any]) -> dict[str, Any]:
        return {names[key]: _new(value) for key, value in old.items()}

    return _accepting(tuple(names), convert)


def gathered_arguments(
    name: str, kind: Callable[..., Any], **fields: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old keywords that are fields of one argument now, with a DeprecationWarning.

    Args:
        name: The argument.
        kind: Its type, a dataclass.
        **fields: The field of each old keyword.

    Returns:
        A decorator. The decorated function raises a TypeError if it gets the new argument too.
    """

    def convert(old: dict[str, Any]) -> dict[str, Any]:
        given = {fields[key]: _new(value) for key, value in old.items() if value is not None}
        return {name: kind(**given)}

    return _accepting(tuple(fields), convert)


def _new(value: Any) -> Any:
    return VALUES.get(value, value) if isinstance(value, str) else value


def _accepting(
    names: tuple[str, ...], convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that converts old keywords; one that is given with its new form is refused."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> R:
            old = {key: options.pop(key) for key in names if key in options}
            for key, value in convert(old).items() if old else ():
                given = ", ".join(map(repr, old))
                if key in options:
                    raise TypeError(f"{given} is the old form of {key!r}: give {key!r} alone.")
                options[key] = value
                warnings.warn(
                    f"{given} is now {key!r}: write {key}={value!r}.",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return function(*args, **options)

        return call

    return decorate
