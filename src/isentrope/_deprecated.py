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

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> R:
            for old, new in names.items():
                if old not in options:
                    continue
                if new in options:
                    raise TypeError(f"{old!r} is the old name of {new!r}: give {new!r} alone.")
                value = options.pop(old)
                options[new] = VALUES.get(value, value) if isinstance(value, str) else value
                warnings.warn(
                    f"The argument {old!r} is now {new!r}: write {new}={options[new]!r}.",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return function(*args, **options)

        return call

    return decorate
