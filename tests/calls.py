"""Calls of isentrope that the signature they name refuses, and names that its modules lack."""

import ast
import importlib
import inspect
import types
from importlib.util import find_spec

import isentrope


def refused(code: str) -> list[str]:
    """Calls that signatures of isentrope refuse, and names that its modules lack."""
    tree, found = ast.parse(code), {"ise": isentrope}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isentrope"):
            found |= {a.asname or a.name: _imported(str(node.module), a.name) for a in node.names}
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = found.get(node.value.id)
            if inspect.ismodule(module) and not _has(module, node.attr):
                calls.append(f"line {node.lineno}, {ast.unparse(node)} does not exist")
        if isinstance(node, ast.Call) and callable(target := _named(node.func, found)):
            try:
                signature = inspect.signature(target)
            except ValueError:  # of a built-in class, such as an exception without __init__
                continue
            try:
                _bind(signature, node)
            except TypeError as error:
                calls.append(f"line {node.lineno}, {ast.unparse(node)}: {error}")
    return calls


def _imported(module: str, name: str) -> object:
    """What `from module import name` gives."""
    parent = importlib.import_module(module)
    if hasattr(parent, name):
        return getattr(parent, name)
    return importlib.import_module(f"{module}.{name}")


def _has(module: types.ModuleType, name: str) -> bool:
    """Whether a module has a name, or a module of that name in it."""
    inner = hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}") is not None
    return hasattr(module, name) or inner


def _named(called: ast.expr, found: dict[str, object]) -> object:
    """What `name` or `module.name` is; None for anything else."""
    if isinstance(called, ast.Name):
        return found.get(called.id)
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        module = found.get(called.value.id)
        return getattr(module, called.attr, None) if inspect.ismodule(module) else None
    return None


def _bind(signature: inspect.Signature, call: ast.Call) -> None:
    """Raise TypeError where the arguments do not fit; `*a` and `**b` may bring what is missing."""
    whole = all(k.arg for k in call.keywords)
    plain = [a for a in call.args if not isinstance(a, ast.Starred)]
    bind = signature.bind if whole and plain == call.args else signature.bind_partial
    bind(*plain, **{k.arg: None for k in call.keywords if k.arg})
