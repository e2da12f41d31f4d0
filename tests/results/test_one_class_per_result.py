"""A result is declared once: no two dataclasses of different packages say the same."""

import ast
from itertools import combinations

from tests.sources import trees

FIELDS, SHARE = 4, 2 / 3
"""Two classes say the same from so many common names on, this share of the smaller one's."""

ALLOWED = {
    ("BatchRecord", "UpdateBatchReport"): "the file has the report's keys among those of U",
    ("ProbeReading", "RateRow"): "a change on a batch, and that of a step of training",
}
"""Pairs of classes that may, and why. It may only become shorter."""


def dataclasses(modules):
    """(package, class) → names of its own fields; inherited ones are declared elsewhere."""
    found = {}
    for path, tree in modules.items():
        package = path.partition("/")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(
                "dataclass" in ast.unparse(mark) for mark in node.decorator_list
            ):
                fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
                kept = [part for part in fields if "ClassVar" not in ast.unparse(part.annotation)]
                found[package, node.name] = {ast.unparse(part.target) for part in kept}
    return found


def twins(modules):
    """Names of classes of different packages that share most of their fields."""
    for ((here, one), mine), ((there, two), theirs) in combinations(
        dataclasses(modules).items(), 2
    ):
        common = len(mine & theirs)
        if here != there and common >= max(FIELDS, SHARE * min(len(mine), len(theirs))):
            yield tuple(sorted((one, two)))


def test_no_two_packages_declare_the_same_fields():
    found = set(twins(trees()))
    assert found - set(ALLOWED) == set(), "save the one class, or let the other inherit from it"
    assert set(ALLOWED) - found == set(), "exceptions that are needed no more"


def test_two_classes_of_the_same_fields_are_found():
    modules = {}
    for package, name, fields in (
        ("a", "One", "abcde"),
        ("b", "Two", "abcdxy"),
        ("b", "Three", "abxyz"),
        ("a", "Four", "abcde"),
    ):
        body = "\n".join(f"    {field}: int" for field in fields)
        modules[f"{package}/{name}.py"] = ast.parse(f"@dataclass\nclass {name}:\n{body}\n")
    assert set(twins(modules)) == {("One", "Two"), ("Four", "Two")}
