"""Keys that messages name are keys that may be set."""

import ast
import re

import pytest

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import KINDS, load_config
from isentrope.config.keys import FORMER, all_keys
from isentrope.config.measure import MeasureConfig
from isentrope.config.strict_yaml import ConfigError
from isentrope.config.train import SftConfig, TrainConfig
from tests.sources import trees

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
    for file, tree in trees().items():
        for text in messages(tree):
            for section, key in named_in(text):
                seen += 1
                name = f"{section}.{key}"
                beginning = name.endswith("_") and any(k.startswith(name) for k in KEYS)
                if name not in KEYS | set(FORMER) and not beginning:
                    wrong.append((file, name))
    assert not wrong, wrong
    assert seen > 30


@pytest.mark.parametrize("key", FORMER)
def test_a_key_of_an_earlier_version_says_where_its_work_is_done(key):
    section, name = key.split(".")
    content = {"checkpoint": {"checkpoint_path": "x"}, section: {name: FORMER[key].idle}}
    load_config(content)
    with pytest.raises(ConfigError, match=f"'{key}' is a key of earlier versions") as raised:
        load_config(content, [f"{key}=7"])
    assert FORMER[key].successor in str(raised.value)
    assert "nearest" not in str(raised.value)


SECTIONS_OF = {
    "measure": {"checkpoint": {"checkpoint_path": "x"}, "batch_config": {}, "estimator": {}},
    "evaluate": {"checkpoint": {"checkpoint_path": "x"}, "data": {}, "evaluation": {}},
    "sft": {"model": {"path": "x"}, "data": {}, "fine_tuning": {}},
    "train": {"model": {"path": "x"}, "data": {}, "training": {}},
}


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("written_for", KINDS)
def test_a_file_of_another_kind_is_answered_by_the_verb_it_is_for(written_for, reader):
    content = SECTIONS_OF[written_for]
    if written_for == reader:
        load_config(content, root=KINDS[reader])
        return
    with pytest.raises(ConfigError, match=f"is written for isentrope {written_for}") as raised:
        load_config(content, root=KINDS[reader])
    assert f"isentrope {reader}" in str(raised.value).partition(". ")[2]


def test_a_file_of_two_kinds_is_answered_by_both():
    with pytest.raises(ConfigError) as raised:
        load_config({"model": {"path": "x"}, "data": {}}, root=KINDS["measure"])
    assert "isentrope sft or isentrope train" in str(raised.value)


def test_no_former_key_is_a_key_of_today():
    assert not KEYS & set(FORMER)
