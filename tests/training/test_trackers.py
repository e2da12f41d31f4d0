"""What trackers are given: names that all of them take, and numbers.

MLflow refuses a name with other characters than letters, digits and _-./: or space, and one that is
no plain path; W&B sorts by letters, digits and _; trackio keeps some names for itself.
"""

import re

import pytest
from transformers import TrainerCallback

from isentrope import Estimate
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.estimators.spent import Price, Spent
from isentrope.training.run_files import RunFiles
from isentrope.verbs import prepare_training
from tests.training import runs

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z0-9_]+)*")
KEPT_BY_TRACKIO = {"project", "run", "timestamp", "step", "time", "metrics"}


class Tracker(TrainerCallback):
    def __init__(self):
        self.seen = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name, value in logs.items():
            self.seen.setdefault(name, []).append(value)


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """What a run logs with a probe, a pattern, a noise scale, an alarm and a budget."""
    folder = tmp_path_factory.mktemp("trackers")
    probe = {"every": 1, "log_every": 1, "size": 8, "second_order": True, "fresh": True}
    sections = {
        "training": {"steps": 3, "save_every": 3, "micro_batch": 16},
        "entropy_probe": {**probe, "position_pattern": r"[0-9]</think>\s$"},
        "control": {"name": "budget", "target": {"kind": "hold"}, "options": {"size": 16}},
    }
    config = load_config(runs.settings(folder, **sections), root=TrainConfig)
    trainer = prepare_training.prepare_training(config, RunFiles(folder))
    tracker = Tracker()
    trainer.add_callback(tracker)
    trainer.train()
    return tracker.seen


def test_every_part_logs(logged):
    for part in ("probe/", "price/", "noise_scale/", "control/", "alarm/"):
        assert any(name.startswith(part) for name in logged), part


def test_every_name_is_one_that_all_trackers_take(logged):
    assert not [name for name in logged if not NAME.fullmatch(name)]
    assert not KEPT_BY_TRACKIO & logged.keys()


def test_every_value_is_a_number(logged):
    values = [(name, x) for name, found in logged.items() for x in found]
    assert not [(name, x) for name, x in values if type(x) not in (float, int)]
    assert not [(name, x) for name, x in values if abs(x) == float("inf")]


@pytest.mark.parametrize("pattern", [r"\.$", "</think>\n", "=", "é", "a//b"])
def test_a_class_after_any_pattern_has_a_name_for_trackers(pattern):
    one = Estimate(1.0, 0.5, 0.0, 2.0, 8, "", "")
    spent = Spent(0.5, one, one, one)
    keys = Price(spent, {f"after /{pattern}/": spent}).to_dict()
    assert any(key.startswith("price/at_after") for key in keys)
    assert all(NAME.fullmatch(key) for key in keys)
