"""Names of a user's own Python file, written FILE.py:NAME."""

import ast
import re
import runpy
import symtable
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from isentrope.system.reading import reading

FILE_NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
"""A name of a file of the user's own."""


def load_file_name(text: str, kind: str) -> Any:
    """The object that a Python file defines under a name; the file is run, as any script.

    Args:
        text: FILE.py:NAME.
        kind: What the object is, for errors: "task" or "control".

    Returns:
        The object; the same one while the file does not change.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not run, or does not define the name.
    """
    file, name = _split(text, kind)
    try:
        with importing_from(file.parent):
            defined = _definitions(file.resolve(), file.stat().st_mtime_ns, kind)
    except Exception as error:  # any error of the user's file
        raise ValueError(f"{file} does not run: {type(error).__name__}: {error}") from error
    if name not in defined:
        raise ValueError(f"{file} defines no {name!r} ({kind} {text}).")
    return defined[name]


def require_defined(text: str, kind: str) -> None:
    """Refuse a name that its file does not define, as far as the source shows it; nothing is run.

    Args:
        text: FILE.py:NAME.
        kind: What the object is, for errors.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no Python, or does not define the name.
    """
    file, name = _split(text, kind)
    try:
        tree = _parse(file)
        table = symtable.symtable(ast.unparse(tree), str(file), "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{file} does not run: {type(error).__name__}: {error}") from error
    for node in ast.walk(tree):  # what these bind is known when the file is run
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            return
        if isinstance(node, ast.Name) and node.id in {"exec", "globals", "locals", "vars"}:
            return
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    if name not in bound:
        raise ValueError(f"{file} defines no {name!r} ({kind} {text}).")


def defines_function(text: str) -> bool:
    """Whether the source of FILE.py:NAME defines a function of that name; nothing is run."""
    file, name = _split(text, "task")
    try:
        tree = _parse(file)
    except (SyntaxError, ValueError):
        return False  # who runs the file says what is wrong
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, functions) and node.name == name for node in tree.body)


def _parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    with reading(file):
        source = file.read_bytes()
    return ast.parse(source)  # bytes, which may name their encoding


def _split(text: str, kind: str) -> tuple[Path, str]:
    """The file and the name in FILE.py:NAME; the file is there."""
    match = FILE_NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"The {kind} {text!r} is not of the form FILE.py:NAME.")
    file = Path(match["file"]).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} ({kind} {text}).")
    return file, match["name"]


@lru_cache(maxsize=32)
def _definitions(file: Path, modified: int, kind: str) -> dict[str, Any]:
    """What a file defines; `modified` is when it was written, in ns."""
    return runpy.run_path(str(file), run_name=f"isentrope_{kind}_{file.stem}")


@contextmanager
def importing_from(folder: Path | None) -> Generator[None]:
    """Run a block in which modules beside a file can be imported, as in a script.

    Args:
        folder: Of the file; None: no folder is added.

    Yields:
        Nothing.
    """
    if folder is None:
        yield
        return
    path = str(folder.resolve())
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)
