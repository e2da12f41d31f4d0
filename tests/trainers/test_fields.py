"""Every field of the trainers is classified, and the page says what the code says."""

import dataclasses

import pytest
from transformers import TrainingArguments

from isentrope.trainers import rules
from isentrope.trainers.fields import FIELDS, KEYS, require_known_settings
from tests.trainers.settings_page import PAGE, settings_page

trl = pytest.importorskip("trl")


@pytest.mark.parametrize(
    "kind", [trl.GRPOConfig, trl.RLOOConfig, trl.SFTConfig, TrainingArguments], ids=str
)
def test_a_field_that_a_new_version_adds_is_not_passed_over(kind):
    names = {field.name for field in dataclasses.fields(kind)}
    assert names - set(FIELDS) == set(), "classify these in trainers/fields.py"


def test_every_refused_field_has_a_rule_and_every_rule_a_field():
    elsewhere = {"router_aux_loss_coef", "disable_dropout"}  # seen in the model
    ruled = {rule.name for rule in rules._RULES}
    refused = {name for name, field in FIELDS.items() if field.treatment == "refused"}
    assert refused - elsewhere <= ruled
    older = {"vllm_guided_decoding_regex"}
    assert ruled - older <= refused | {"loss_type", "scale_rewards"}
    require_known_settings([*ruled, *KEYS])


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == settings_page()
