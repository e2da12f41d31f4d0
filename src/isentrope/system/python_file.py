"""Names of a user's own Python file, written FILE.py:NAME."""

import ast
import re
import runpy
import symtable
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, Signature
from pathlib import Path
from traceback import walk_tb
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


def is_plain(text: str, kind: str) -> bool:
    """Whether the source of FILE.py:NAME shows a function, or a class of no other; nothing is run.

    Args:
        text: FILE.py:NAME.
        kind: What the object is, for errors.

    Returns:
        False where running the file may give something else: the name is bound otherwise, or
        twice, or under a decorator.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    file, name = _split(text, kind)
    try:
        definition = _only_definition(_parse(file), name)
    except (SyntaxError, ValueError):
        return False  # who runs the file says what is wrong
    if not isinstance(definition, ast.ClassDef):
        return definition is not None
    return not (definition.bases or definition.keywords)


@dataclass(frozen=True)
class SourceDefinition:
    """A function or a class as its source has it.

    Attributes:
        is_class: Whether it is a class, which is called with the arguments of `__init__`.
        signature: Its parameters without self; defaults and annotations are source text.
    """

    is_class: bool
    signature: Signature


def read_definition(text: str, kind: str) -> SourceDefinition | None:
    """The function or class FILE.py:NAME as far as its source alone tells; nothing is run.

    Args:
        text: FILE.py:NAME.
        kind: What the object is, for errors.

    Returns:
        None where running the file may give another object: the name is bound otherwise, or twice,
        or under a decorator; or a class has no `__init__` of its own.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    file, name = _split(text, kind)
    try:
        tree = _parse(file)
    except (SyntaxError, ValueError):
        return None  # who runs the file says what is wrong
    definition = _only_definition(tree, name)
    if not isinstance(definition, ast.ClassDef):
        return definition and SourceDefinition(False, _signature_of(definition))
    call = _only_definition(definition, "__init__")
    if definition.keywords or call is None or isinstance(call, ast.ClassDef):
        return None
    _, *parameters = _signature_of(call).parameters.values()
    return SourceDefinition(True, Signature(parameters))


def _only_definition(
    scope: ast.Module | ast.ClassDef, name: str
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    """What binds a name in a scope, if it is one definition without a decorator."""
    bound = [
        node
        for node in _nodes_of(scope)
        if name in (getattr(node, field, None) for field in _BINDING)
        and not isinstance(getattr(node, "ctx", None), ast.Load)
    ]
    elsewhere = (x for x in ast.walk(scope) if isinstance(x, (ast.Global, ast.Nonlocal)))
    if len(bound) != 1 or bound[0] not in scope.body or any(name in x.names for x in elsewhere):
        return None
    definition = bound[0]
    if not isinstance(definition, _DEFINITIONS) or definition.decorator_list:
        return None
    return definition


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of the scopes inside it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _DEFINITIONS):
            yield from _nodes_of(node)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDING = ("name", "asname", "id")
"""Fields of a node with the name that it binds: a definition, an import, a pattern or a target."""


class _SourceText(str):
    """A default or an annotation, which is printed as it is written."""

    __repr__ = str.__str__


def _signature_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    """The signature in the source of a function."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    kinds = [Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs)
    kinds += [Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    rows = [*zip(positional, kinds, defaults, strict=True)]
    if arguments.vararg is not None:
        rows.append((arguments.vararg, Parameter.VAR_POSITIONAL, None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        rows.append((argument, Parameter.KEYWORD_ONLY, default))
    if arguments.kwarg is not None:
        rows.append((arguments.kwarg, Parameter.VAR_KEYWORD, None))
    parameters = [
        Parameter(argument.arg, kind, default=_text_of(default), annotation=_text_of(note))
        for argument, kind, default in rows
        for note in (argument.annotation,)
    ]
    return Signature(parameters, return_annotation=_text_of(function.returns))


def _text_of(node: ast.expr | None) -> Any:
    return Parameter.empty if node is None else _SourceText(ast.unparse(node))


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
    return runpy.run_path(str(file), run_name=f"{_RUN_NAME}{kind}_{file.stem}")


_RUN_NAME = "isentrope_file_"
"""How the names of the modules begin that files of the user's are run as."""


def find_line_of_file(error: BaseException) -> str | None:
    """The last line of a file of the user's in the traceback of an exception.

    Args:
        error: Any exception.

    Returns:
        For example "reward.py, line 12"; None where it went through no such file.
    """
    lines = [
        f"{frame.f_code.co_filename}, line {number}"
        for frame, number in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(_RUN_NAME)
    ]
    return lines[-1] if lines else None


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
