import re

import pytest

from isentrope.config import trl_fields
from isentrope.config.io import ConfigError

trl = pytest.importorskip("trl")
TAKEN = {"learning_rate": "training.learning_rate"}


def options(**given):
    return trl_fields.trainer_options(given, trl.GRPOConfig, TAKEN)


def test_any_other_field_passes_through():
    given = {"beta": 0.1, "bf16": True, "lr_scheduler_kwargs": {"a": 1}, "warmup_steps": 3}
    assert options(**given) == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lerning_rat": 1}, "Unknown key 'trainer.lerning_rat': the nearest"),
        (
            {"learning_rate": 1e-3},
            "trainer.learning_rate cannot be given there: it is set by training.",
        ),
        ({"bf16": "yes"}, "trainer.bf16: 'yes' does not fit GRPOConfig (Input should be a valid"),
        ({"num_iterations": 1.5}, "trainer.num_iterations: 1.5 does not fit"),
        ({"num_iterations": 0}, "trainer.num_iterations: should be from 1 to 2147483647, got 0."),
        ({"weight_decay": -1.0}, "trainer.weight_decay: should be from 0 to 1000"),
        ({"weight_decay": float("nan")}, "trainer.weight_decay: should be from 0 to 1000, got nan"),
        ({"epsilon": float("inf")}, "trainer.epsilon: should be from 0 to 1000000, got inf"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        options(**given)
