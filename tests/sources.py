"""The sources of the library, read and parsed once for every test that looks at them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import isentrope

LIBRARY = Path(isentrope.__file__).parent


@cache
def texts() -> dict[str, str]:
    """Path of a module below the library → what it says."""
    return {
        path.relative_to(LIBRARY).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(LIBRARY.rglob("*.py"))
    }


@cache
def trees() -> dict[str, ast.Module]:
    """Path of a module below the library → its syntax tree, which nobody changes."""
    parsed = {path: ast.parse(text) for path, text in texts().items()}
    gc.collect()
    gc.freeze()  # collections of garbage, of which trainers ask for many, pass over the trees
    return parsed


def dotted(path: str) -> str:
    """The name of a module below the library, from its path."""
    return path.removesuffix(".py").replace("/", ".")
