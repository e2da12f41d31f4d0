"""Names that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose names live elsewhere.

    Args:
        package: The module's own name.
        homes: Name → the module that it is imported from, or that it is.

    Returns:
        Both functions. A name is kept in the module once it has been asked for.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        own = homes[name] == f"{package}.{name}"
        value = module if own else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names


def load(dotted: str) -> Any:
    """Import an object by its dotted name.

    Args:
        dotted: "package.module:name".

    Returns:
        The object.
    """
    module, _, name = dotted.partition(":")
    return getattr(import_module(module), name)
