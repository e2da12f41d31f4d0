from pathlib import Path

import pytest

from isentrope.config.io import load_any, read_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLES = sorted(p for p in CONFIGS.glob("*.yaml") if {"checkpoint", "model"} & set(read_yaml(p)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_example_configurations_are_understood(path):
    load_any(path)
