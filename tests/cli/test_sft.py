import sys

import pytest
import yaml

from isentrope.config.io import default_config, kind_of, load_any
from tests.adapters import save_base_model
from tests.command_line import call
from tests.training.conftest import small_policy

pytest.importorskip("trl")


@pytest.fixture
def config(tmp_path):
    save_base_model(small_policy(), tmp_path / "base")
    sections = {
        "model": {"path": str(tmp_path / "base"), "lora_rank": 2},
        "data": {"dataset_name": "addition"},
        "fine_tuning": {"steps": 2, "batch_size": 4},
        "output": {"report_to": []},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(sections))
    return tmp_path / "config.yaml"


def test_sft_without_trl_says_what_to_install(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl.trainer.sft_config", None)
    result = call("sft", config, "--out", tmp_path / "run", status=1)
    assert "pip install 'isentrope[train]'" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["measure", "sft", "train"])
def test_the_defaults_of_every_verb_are_shown_and_can_be_used(kind, tmp_path):
    (tmp_path / "all.yaml").write_text(call("config", "show", "--for", kind).stdout)
    content = yaml.safe_load((tmp_path / "all.yaml").read_text())
    assert kind_of(content) == kind
    assert load_any(tmp_path / "all.yaml") == default_config(kind)
    changed = call("config", "show", tmp_path / "all.yaml", "--set", "output.directory=x").stdout
    assert yaml.safe_load(changed)["output"]["directory"] == "x"


def test_a_configuration_and_a_verb_are_not_shown_together(config):
    result = call("config", "show", config, "--for", "train", status=1)
    assert "omit --for" in result.stderr


def test_config_validate_says_what_would_be_trained_or_what_is_wrong(config):
    said = call("config", "validate", config).stdout
    assert "base on addition for 2 steps" in said
    for setting, complaint in {
        "fine_tuning.stps=3": "nearest valid key is 'fine_tuning.steps'",
        "trainer.weight_decy=0": "nearest field of SFTConfig is 'weight_decay'",
        "data.dataset_path=absent": "no file absent (data.dataset_path)",
        "model.path=absent/of/it": "no model folder absent/of/it (model.path)",
    }.items():
        result = call("config", "validate", config, "--set", setting, status=1)
        assert complaint in result.stderr


def test_config_validate_knows_a_training(config):
    content = yaml.safe_load(config.read_text())
    del content["fine_tuning"]
    content |= {"training": {"steps": 3, "prompts_per_step": 5}, "sampling": {"max_new_tokens": 8}}
    config.write_text(yaml.safe_dump(content))
    assert "it trains" in call("config", "validate", config).stdout
    result = call("config", "validate", config, "--set", "trainer.temperature=2.0")
    assert "sampling.temperature" in result.stderr
