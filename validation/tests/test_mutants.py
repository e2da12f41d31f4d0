"""Mutants are small mistakes in code alone, and their outcomes are counted by room and kind."""

import ast

import pytest

from validation.mutants_page import Outcome, Sample, page
from validation.mutations import mutants

SOURCE = b'''"""Docs 1."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from x import y

SIZE: int = 3


class Mean:
    def of(self, x: "list[1]", dim=0) -> float:
        """Docs 2."""
        log.info("done %d", 5)
        if not x or len(x) < 2 and dim != 1:
            raise ValueError(f"{4 + 1} is too few")
        total = sum(x)
        total += max(x, dim)
        values.append(-total ** 2)
        return total / len(x) if dim else divide(total, x)
'''


def found(kind):
    return [m for m in mutants(SOURCE) if m.kind == kind]


def test_every_mutant_compiles_is_another_program_and_has_a_name_of_its_own():
    every = mutants(SOURCE)
    trees = [ast.dump(ast.parse(m.apply(SOURCE))) for m in every]
    assert ast.dump(ast.parse(SOURCE)) not in trees
    assert len({m.name for m in every}) == len(every) == len(set(trees))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("compare", ["(len(x) <= 2)", "(len(x) > 2)", "(dim == 1)"]),
        ("arithmetic", ["total -= max(x, dim)", "(total * 2)", "(total * len(x))"]),
        ("constant", ["(4)", "(2)", "(1)", "(-1)", "(3)", "(1)", "(2)", "(0)", "(3)", "(1)"]),
        ("return", ["return None"]),
        ("function", ["mean(x)", "min(x, dim)"]),
        ("arguments", ["divide(x, total)"]),
        ("statement", ["pass"] * 4),
    ],
)
def test_each_kind_of_mistake_is_made_where_it_can_be(kind, changes):
    assert sorted(m.after for m in found(kind)) == sorted(changes)


def test_names_do_not_depend_on_lines():
    lower = [m.name for m in mutants(b"\n\n" + SOURCE)]
    assert lower == [m.name for m in mutants(SOURCE)]


def test_the_page_counts_by_room_and_kind_and_lists_survivors():
    def outcome(path, kind, result):
        return Outcome(path, f"f | {kind} | a + b → (a - b) | 0", 3, result, "", 2, 30.0)

    rows = {
        "update": [
            outcome("update/step.py", "arithmetic", "killed"),
            outcome("update/step.py", "compare", "survived"),
        ],
        "estimators": [outcome("estimators/ratio.py", "compare", "killed")],
    }
    text = page([Sample(0, 0.04, rows), Sample(1, 0.01, {"update": rows["update"][:1]})])
    assert "| update | 2 | 1 | 1 | 0 | 50.0 |" in text
    assert "| **all** | 3 | 2 | 1 | 0 | 66.7 |" in text
    assert "| compare | 2 | 1 | 1 | 0 | 50.0 |" in text
    assert "| arithmetic | 2 | 2 | 0 | 0 | 100.0 |" in text
    assert "## Survivors of sample 1\n\nNone." in text
    assert "- update/step.py, f, compare: `a + b → (a - b)`. Not explained yet." in text
    assert max(map(len, text.splitlines())) <= 100
