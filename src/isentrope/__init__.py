"""isentrope: how far, and why, one optimizer step moves the entropy of a language-model policy.

Every name is imported when it is first used, so `import isentrope` alone loads no torch. The public
names and their modules are in the stub `__init__.pyi`, which type checkers read too.
"""

import ast
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from isentrope.system.figures import draw_figures_with

_HOMES = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_bytes()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Each public name, and the module it is imported from."""

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    is_module = _HOMES[name] == __name__
    globals()[name] = value = resolve_name(f"{_HOMES[name]}{'.' if is_module else ':'}{name}")
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def _draw(instance: Any) -> Any:
    """The figure of an object; matplotlib loads when one is drawn."""
    from isentrope.reports.figures import draw_figure

    return draw_figure(instance)


draw_figures_with(_draw)
