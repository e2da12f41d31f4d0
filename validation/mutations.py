"""Mutants of a Python module: the same source with one small mistake.

    compare     < for <=, <= for >, == for !=, is, in and their negations
    arithmetic  + for -, * for /, ** for *, and so on, in expressions and in assignments
    constant    a number ± 1, True for False
    boolean     `and` for `or`, `not` and minus signs removed, conditions negated
    return      None in place of the value
    statement   an assignment, a call or a raise removed
    function    min for max, sum for mean, any for all, …
    arguments   the two arguments of a call swapped

Annotations, docstrings, decorators, texts of messages and logging are left alone: no number
depends on them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

BOUNDARY = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
REVERSED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_PAIRS = (
    "min max",
    "sum mean",
    "any all",
    "amin amax",
    "argmin argmax",
    "std var",
    "floor ceil",
    "minimum maximum",
)
FUNCTIONS = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])}
_SYMMETRIC = {*FUNCTIONS, "isinstance", "zip", "dot", "allclose", "equal", "gcd", "hypot"}
_SILENT = {"log", "logger", "warnings"}


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        function: Qualified name of the function or class; "" for the module.
        line: First line of what is replaced, from 1.
        kind: One of those above.
        before: What is replaced, on one line.
        after: What replaces it.
        number: From 0, which of the same replacements in this function.
        start: Its offset in bytes.
        end: Offset of its end.
    """

    function: str
    line: int
    kind: str
    before: str
    after: str
    number: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """The same while the function is unchanged, whatever its lines."""
        return f"{self.function} | {self.kind} | {self.before} → {self.after} | {self.number}"

    def apply(self, source: bytes) -> bytes:
        """The module with the mistake."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants(source: bytes) -> list[Mutant]:
    """All mutants of a module.

    Args:
        source: Its text, in UTF-8.

    Returns:
        In the order of the source; each can be compiled.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for function, node, kind, after in _walk(ast.parse(source), ""):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = " ".join(source[start:end].decode().split())
        key = (function, kind, before, after)
        found.append(Mutant(function, node.lineno, kind, before, after, seen[key], start, end))
        seen[key] += 1
    return found


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str, str]]:
    """Function, node, kind and replacement, for every mutant below a node."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}".lstrip(".")
    if isinstance(node, (ast.expr, ast.stmt)):
        for kind, after in _replacements(node):
            yield function, node, kind, after
    for child in _children(node):
        yield from _walk(child, function)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that a number can depend on."""
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)) or _is_silent(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _is_silent(node: ast.AST) -> bool:
    """Docstrings, logging, and what is for type checkers alone."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or (
        isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).split(".", maxsplit=1)[0] in _SILENT
    )


def _replacements(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """Kind and text of what can stand in place of a node."""
    match node:
        case ast.Compare(left, [operator], [right]):
            for table in (BOUNDARY, REVERSED):
                if other := table.get(type(operator)):
                    yield "compare", _text(ast.Compare(left, [other()], [right]))
        case ast.BinOp(left, operator, right) if other := ARITHMETIC.get(type(operator)):
            yield "arithmetic", _text(ast.BinOp(left, other(), right))
        case ast.AugAssign(target, operator, value):
            if other := ARITHMETIC.get(type(operator)):
                yield "arithmetic", ast.unparse(ast.AugAssign(target, other(), value))
            yield "statement", "pass"
        case ast.Constant(bool() as value):
            yield "constant", str(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", f"({value + 1!r})"
            yield "constant", f"({value - 1!r})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "boolean", _text(ast.BoolOp(other, values))
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield "boolean", _text(operand)
        case ast.IfExp(test, body, otherwise):
            yield "boolean", _text(ast.IfExp(ast.UnaryOp(ast.Not(), test), body, otherwise))
        case ast.Return(ast.expr()):
            yield "return", "return None"
        case ast.Assign() | ast.Raise():
            yield "statement", "pass"
        case ast.Expr(ast.Call()) if not _is_silent(node):
            yield "statement", "pass"
        case ast.Call(function, arguments, keywords):
            yield from _calls(function, arguments, keywords)


def _calls(
    function: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]
) -> Iterator[tuple[str, str]]:
    name = getattr(function, "attr", getattr(function, "id", ""))
    if other := FUNCTIONS.get(name):
        renamed: ast.expr = ast.Name(other)
        if isinstance(function, ast.Attribute):
            renamed = ast.Attribute(function.value, other)
        yield "function", _text(ast.Call(renamed, arguments, keywords))
    plain = len(arguments) == 2 and not any(isinstance(a, ast.Starred) for a in arguments)
    if plain and name not in _SYMMETRIC and len({*map(ast.unparse, arguments)}) == 2:
        yield "arguments", _text(ast.Call(function, arguments[::-1], keywords))


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, (ast.Name, ast.Call)) else f"({text})"
