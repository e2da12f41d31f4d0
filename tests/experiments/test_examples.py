from pathlib import Path

import pytest

from isentrope.experiments.config_io import load_config

EXAMPLES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_example_configurations_are_understood(path):
    assert load_config(path).checkpoint.checkpoint_path
