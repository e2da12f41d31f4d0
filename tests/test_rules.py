"""Rules of the code that no linter has. Every list of exceptions may only become shorter."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.sources import dotted, texts, trees

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "isentrope"

LONG_FILES: set[str] = set()
"""Files of more than `MAX_LINES` lines."""

MAX_LINES = 300
MAX_FUNCTION = 60

OF_NO_PACKAGE = {
    "docs": "commands, snippets and language of the pages",
    "golden": "what every verb writes on a frozen checkpoint",
    "gpu": "the same numbers on a device",
    "second_device": "a device on host memory, on which every verb runs",
}
"""Folders of tests/ that mirror no package, and what they hold."""

NOT_MIRRORED: set[str] = set()
"""Folders that only one of tests/ and src/ has."""

NUMBERS = {"nouns", "models", "policy", "sampling", "update", "oracle", "estimators", "attribution"}
"""Packages that compute the numbers: pyright checks them in strict mode."""

NOT_STRICT = {"nouns", "attribution"}

SWITCHED_OFF = 36
"""Files of these packages in which rules of pyright about unknown types are off."""


@cache
def modules(root):
    """Dotted name below `root` → what the module says."""
    if root == SOURCES:
        return {dotted(path): tree for path, tree in trees().items()}
    return {
        dotted(path.relative_to(root).as_posix()): ast.parse(path.read_text())
        for path in sorted(root.rglob("*.py"))
    }


def bound_twice(tree):
    """Names that a module binds more than once, outside of branches: the last value is in force."""
    bound = Counter()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound[node.name] += not node.decorator_list  # variants of an overload are decorated
        elif isinstance(node, ast.Assign):
            bound.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            bound[node.target.id] += 1
    return {name for name, times in bound.items() if times > 1}


def test_a_module_binds_a_name_once():
    rooms = [SOURCES, *(ROOT / name for name in MAY_IMPORT)]
    found = {
        f"{name}.{x}"
        for root in rooms
        for name, tree in modules(root).items()
        for x in bound_twice(tree)
    }
    assert found == set()


def test_a_name_that_is_bound_twice_is_found():
    module = ast.parse("A: int\nA = 1\nB = 2\ndef f(): ...\ndef g(): A = 3\nA = B = 4\nf = g")
    assert bound_twice(module) == {"A", "B", "f"}


def test_files_are_short():
    found = {path for path, text in texts().items() if len(text.splitlines()) > MAX_LINES}
    assert found == LONG_FILES


def test_functions_are_short():
    long = [
        f"{name}.{node.name}"
        for name, tree in modules(SOURCES).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and lines_of_code(node) > MAX_FUNCTION
    ]
    assert long == []


def lines_of_code(function):
    """Lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return 1 + function.end_lineno - body[0].lineno if body else 0


def folders(root):
    """Names of the folders in `root` that hold Python."""
    return {path.name for path in root.iterdir() if path.is_dir() and any(path.glob("**/*.py"))}


def test_folders_of_the_tests_are_those_of_the_library():
    assert (folders(ROOT / "tests") - set(OF_NO_PACKAGE)) ^ folders(SOURCES) == NOT_MIRRORED


MAY_IMPORT = {
    "tests": set[str](),
    "benchmarks": {"examples", "validation"},
    "examples": {"tests"},
    "validation": {"tests"},
    "studies": {"tests", "examples", "validation"},
}
"""Folders beside src/, and which of each other they import: the cases of the tests are shared."""


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_what_proves_measures_and_studies_stays_apart(folder):
    found = {}
    for name, tree in modules(ROOT / folder).items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        bases = {getattr(n, "module", None) or n.names[0].name for n in nodes}
        rooms = {base.partition(".")[0] for base in bases} & set(MAY_IMPORT)
        if more := rooms - {folder} - MAY_IMPORT[folder]:
            found[name] = more
    assert found == {}


def test_the_numbers_are_checked_in_strict_mode():
    strict = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["strict"]
    assert NUMBERS - {Path(path).name for path in strict} == NOT_STRICT


def test_few_files_switch_rules_of_types_off():
    off = [
        path
        for package in NUMBERS
        for path in (SOURCES / package).rglob("*.py")
        if re.search(r"^# pyright: .*=false", path.read_text(), re.M)
    ]
    assert len(off) <= SWITCHED_OFF


def wide_handlers_without_a_reason(text):
    """Lines that catch every error, and do not say why all of them."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            wide = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            if wide and "#" not in lines[node.lineno - 1]:
                yield node.lineno


def test_who_catches_every_error_says_why():
    assert [*wide_handlers_without_a_reason("try:\n    f()\nexcept Exception:\n    g()\n")] == [3]
    silent = {path: [*wide_handlers_without_a_reason(text)] for path, text in texts().items()}
    assert {path: lines for path, lines in silent.items() if lines} == {}
