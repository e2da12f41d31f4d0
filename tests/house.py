"""What makes code hard to follow, counted: for `tests/test_house.py`."""

import ast
import inspect
import io
import re
import tokenize
import types
import typing
from collections import Counter, defaultdict

FILLERS = {
    *("of", "found", "here", "own", "one", "known", "asked", "given", "made", "wanted"),
    *("what", "then", "there", "both", "each", "another", "rest", "whole", "most", "few", "some"),
    *("kept", "read", "taken", "seen", "named", "moved", "tried", "got", "said", "who", "bad"),
    *("unlike", "only", "many", "up", "which", "again"),
}
"""Names that do not say what a value is."""
FIELDS = {"kept", "seen", "moved", "tried", "whole"}
"""Of these, fields of classes: keys of the files of a run, and attributes of commands."""


def sources(root):
    """Dotted name below `root` → syntax tree."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(root.rglob("*.py"))
    }


def docstring_lines(tree):
    """Numbers of the lines that hold a bare string."""
    lines = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def code_lines(text):
    """Number of lines that hold code, and not comments or docstrings alone."""
    silent = (
        *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENDMARKER, tokenize.COMMENT),
    )
    strings = docstring_lines(ast.parse(text))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent and token.start[0] not in strings:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def fields(tree):
    """Names that the bodies of classes bind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                targets = getattr(line, "targets", [getattr(line, "target", None)])
                yield from (target for target in targets if isinstance(target, ast.Name))


def filler_names(tree):
    """Parameters, variables and fields whose name is a filler, in the order of the sources."""
    of_files = {field for field in fields(tree) if field.id in FIELDS}
    for node in ast.walk(tree):
        if node in of_files:
            continue
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if name in FILLERS:
                yield name


def tuple_assignments(tree):
    """Assignments of several values at once that are not the parts of one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        if any(isinstance(target, ast.Tuple) for target in node.targets):
            yield node


def products_with_truth(tree):
    """Products with a comparison, which stand for a condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(isinstance(side, (ast.Compare, ast.BoolOp)) for side in sides):
                yield node


SENTENCE = {"a", "and", "are", "be", "in", "is", "it", "needs", "not", "or", "the", "to", "with"}
"""Words that a sentence has, and a list of names has not."""


def packed_names(tree):
    """Strings that are lists of four or more names."""
    strings = docstring_lines(tree)
    sentences = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if node in sentences:
            continue
        words = node.value.split()
        names = all(re.fullmatch(r"[a-z_][\w.?±:]*", word) for word in words)
        joined = any("_" in word or "±" in word or "?" in word for word in words)
        is_list = names and joined and SENTENCE.isdisjoint(words)
        if node.lineno not in strings and len(words) >= 4 and is_list:
            yield node


PROCESSES = {"ranks", "counted", "is_sharded", "Ranks", "ALONE"}
"""Names that say which process does what."""


def process_names(tree):
    """Names, attributes and arguments that say which process does what."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.keyword(arg=name)
                | ast.alias(name=name)
                | ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
            ) if name in PROCESSES:
                yield name


def module_level_names(tree):
    """Public and private names that a module binds, imports apart."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif hasattr(ast, "TypeAlias") and isinstance(node, ast.TypeAlias):
            yield node.name.id


def shared_names(trees):
    """Name → modules, of public names that several modules bind."""
    modules = defaultdict(set)
    for module, tree in trees.items():
        for name in module_level_names(tree):
            if not name.startswith("_"):
                modules[name].add(module)
    return {name: sorted(places) for name, places in modules.items() if len(places) > 1}


def dotted_texts(tree, packages):
    """Texts that name a module or an object of the library by its dotted place."""
    strings = docstring_lines(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        match = re.fullmatch(r"(?:isentrope\.)?([a-z_]+)\.[\w.]+:\w+", node.value)
        if match and match[1] in packages and node.lineno not in strings:
            yield match[1]


def parts_of_type(annotation):
    """Classes that an annotation is made of."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        yield annotation
    for part in typing.get_args(annotation):
        yield from parts_of_type(part)


def unexported_types(package):
    """Types of the library that a public function takes or returns, and the package lacks."""
    public = {name: getattr(package, name) for name in package.__all__}
    exported = {id(value) for value in public.values()}
    missing = defaultdict(set)
    for name, value in public.items():
        if not inspect.isfunction(value):
            continue
        for annotation in typing.get_type_hints(value).values():
            for kind in parts_of_type(annotation):
                if kind.__module__.startswith(package.__name__) and id(kind) not in exported:
                    missing[kind.__name__].add(name)
    return dict(missing)


def internal_imports(trees):
    """Names that test modules import from modules of the library, those of `ise` apart."""
    names = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isentrope."):
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def matches_of_prose(root):
    """How often tests match the words of an error."""
    return sum(path.read_text().count("match=") for path in root.rglob("test_*.py"))
