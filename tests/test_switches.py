"""A message that names a key which switches a check off says what is believed from then on."""

import ast
import re

import pytest

from tests.sources import trees

SWITCHES = {
    r"estimator\.off_policy: true": "believed",
    r"estimator\.ignore_training_settings: \[": r"another step|NOT TRAINING'S|if training",
    r"--no-verify": r"believes|not detected",
    r"allow_overlap=true": "prompts that made it",
    r"allow_mixed=true": "unlike training",
    r"rounded_step=true to": "which training does not take",
    r"master_weights=true": "believed",
    r"without sampler_logprobs": "believed",
}
"""What a message says to set, and the words that it needs beside."""


def messages(tree):
    """Every string, and every formatted one as a whole; docstrings are none."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for value in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(x.value) if isinstance(x, ast.Constant) else "…" for x in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "" if id(node) in docs | parts else node.value


@pytest.fixture(scope="module")
def sentences():
    """(file, text) of every message of more than three words."""
    return [
        (path, text)
        for path, tree in trees().items()
        for text in messages(tree)
        if len(text.split()) > 3
    ]


@pytest.mark.parametrize("switch", SWITCHES)
def test_advice_to_switch_a_check_off_says_what_is_then_believed(sentences, switch):
    advice = [(path, text) for path, text in sentences if re.search(switch, text)]
    assert advice
    for path, text in advice:
        assert re.search(SWITCHES[switch], text), (path, text)
