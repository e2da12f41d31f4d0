"""No function takes more than eight parameters: what belongs together is one options object."""

import ast

from tests.sources import trees

MOST = 8

ALLOWED = {
    "Policy.__init__": 9,  # the public constructor: what a user says of a model
    "optimizer_step": 14,  # the public function: each is a setting of training that may be unknown
}
"""Functions that take more, and how many; remove the line of a function that is cured."""


def parameters(node, owner=""):
    """Name and number of parameters of every function below a node; self and cls do not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from parameters(child, f"{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            args = child.args
            names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
            yield owner + child.name, len(names) - (names[:1] in (["self"], ["cls"]))
            yield from parameters(child)
        else:
            yield from parameters(child, owner)


def test_no_function_takes_more_than_eight_parameters():
    found = {
        name: count for tree in trees().values() for name, count in parameters(tree) if count > MOST
    }
    assert found == ALLOWED
