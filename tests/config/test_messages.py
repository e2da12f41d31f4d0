"""Keys that messages name are keys that may be set."""

import ast
import re
from pathlib import Path

import isentrope
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import all_keys
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig

SOURCE = Path(isentrope.__file__).parent
KEYS = {
    key
    for root in (MeasureConfig, EvaluateConfig, TrainConfig, SftConfig)
    for key in all_keys(root)
}
SECTIONS = {key.split(".")[0] for key in KEYS} - {"trainer"}
PYTHON = {
    "control": {"safetensors"},
    "data": {"pkl"},
    "evaluation": {"md"},
    "fine_tuning": {"json"},
    "model": {"layers", "embed_tokens", "generation_config"},
    "precision": {"py"},
    "trial": {"png"},
}
"""What else is written with a dot after a section's name."""


def messages(tree):
    """Texts of a module that are no docstrings; pieces of f-strings one by one."""
    docs = {
        id(body[0].value)
        for node in ast.walk(tree)
        if (body := getattr(node, "body", None)) and isinstance(body, list)
        if isinstance(body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def named_in(text):
    for section, key, after in re.findall(r"\b([a-z_]+)\.([A-Za-z_0-9]+)(\(|\*|\.\w)?", text):
        if section in SECTIONS and after != "(" and key not in PYTHON.get(section, ()):
            yield section, key


def test_every_key_that_a_message_names_exists():
    wrong, seen = [], 0
    for file in sorted(SOURCE.rglob("*.py")):
        for text in messages(ast.parse(file.read_text(encoding="utf-8"))):
            for section, key in named_in(text):
                seen += 1
                name = f"{section}.{key}"
                beginning = name.endswith("_") and any(k.startswith(name) for k in KEYS)
                if name not in KEYS and not beginning:
                    wrong.append((file.name, name))
    assert not wrong, wrong
    assert seen > 30
