"""The figures of results and of their parts: asked for here, and drawn by the reports above.

`isentrope/__init__.py` says who draws them, so that no lower module imports a higher one.
"""

from collections.abc import Callable
from typing import Any

_DRAWERS: list[Callable[[Any], Any]] = []


def draw_figures_with(drawer: Callable[[Any], Any]) -> None:
    """Let a function draw the figures of objects."""
    _DRAWERS[:] = [drawer]


def figure_of(instance: Any) -> Any:
    """The report's figure of an object, a matplotlib figure.

    Args:
        instance: A result of a verb, or a part of one.

    Returns:
        The figure.

    Raises:
        LookupError: If the report has none of it.
    """
    (drawer,) = _DRAWERS
    return drawer(instance)
