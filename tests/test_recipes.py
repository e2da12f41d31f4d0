from pathlib import Path

import pytest

from isentrope.experiments.config_io import read_yaml
from isentrope.experiments.kinds import load_any
from isentrope.experiments.sft import sft_options
from isentrope.experiments.train_config import SftConfig, TrainConfig
from isentrope.experiments.train_options import grpo_options

CONFIGS = Path(__file__).parent.parent / "configs"
RECIPES = sorted(
    p.name for p in CONFIGS.glob("*.yaml") if p.name.startswith(("measure", "sft", "smol", "train"))
)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_in_order_down_to_the_fields_of_trl(name, tmp_path):
    config = load_any(CONFIGS / name)
    if isinstance(config, TrainConfig):
        assert grpo_options(config, tmp_path).max_steps == config.training.steps
    if isinstance(config, SftConfig):
        assert sft_options(config, tmp_path)["max_steps"] == config.fine_tuning.steps


def test_the_other_files_are_yaml():
    others = {p.name for p in CONFIGS.glob("*.yaml")} - set(RECIPES)
    assert others == {"accelerate_fsdp.yaml", "skypilot.yaml"}
    for name in others:
        assert read_yaml(CONFIGS / name)
