"""Fields of TRL by its sources are those of its classes."""

import dataclasses
import typing

import pytest

from isentrope.config import trl_fields
from isentrope.nouns.choices import OBJECTIVES

trl = pytest.importorskip("trl")
CLASSES = {
    "trl.trainer.grpo_config:GRPOConfig": trl.GRPOConfig,
    "trl.trainer.sft_config:SFTConfig": trl.SFTConfig,
}


@pytest.mark.parametrize("name", CLASSES)
def test_fields_in_the_source_are_those_of_the_class(name):
    types = trl_fields.types_in_source(name)
    real = {field.name for field in dataclasses.fields(CLASSES[name]) if field.init}
    assert set(types) == real
    hints = typing.get_type_hints(CLASSES[name])
    plain = [n for n, kind in types.items() if getattr(kind, "__module__", "") == "builtins"]
    assert len(plain) > 50
    assert {n: types[n] for n in plain} == {n: hints[n] for n in plain}


def test_a_class_that_the_source_does_not_show_is_left_to_its_import(monkeypatch):
    assert trl_fields.types_in_source("trl.trainer.grpo_config:Nothing") is None
    assert trl_fields.types_in_source("nothing.at_all:Nothing") is None
    monkeypatch.setattr(trl_fields, "_HOMES", {})  # where its base is defined is not known
    assert trl_fields.types_in_source("trl.trainer.grpo_config:GRPOConfig") is None


def test_choices_and_trackers_are_those_that_the_libraries_know():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert trl_fields.trackers_in_source() == [*INTEGRATION_TO_CALLBACK]
    ours = {"dr_grpo_longest", "rloo"}  # which TRL has by other fields
    assert set(OBJECTIVES) - ours <= trl_fields.choices_in_source("loss_type")
    assert trl_fields.choices_in_source("nothing") == set()
