"""Every setting that a branch accepts acts in it, and every other one is refused by name."""

import logging
from pathlib import Path

import pytest
from safetensors.torch import load_file

from isentrope.checkpoint.infer.passed import managed_fields
from isentrope.config.keys import all_keys
from isentrope.config.train import TrainConfig
from isentrope.run.resuming import FIXED
from isentrope.verbs.train import branch
from tests.training import runs
from tests.verbs.branch_effects import FILES, PARTS, REFUSED, STEPS

TASK = f"{Path(__file__).parents[1] / 'training' / 'digit_first.py'}:digit_first"
SECTIONS = {
    "data": {"dataset_name": TASK},
    "sampling": {"max_new_tokens": 3},
    "training": {"steps": 4, "save_every": 2, "prompt_weighting": "uniform"},
    "trainer": {"lr_scheduler_type": "linear", "weight_decay": 0.1},
    "noise_scale": {"enabled": False},
    "entropy_probe": {"enabled": False},
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of four steps with checkpoints at 2 and 4."""
    return runs.trained(tmp_path_factory.mktemp("p"), **SECTIONS)


@pytest.fixture(scope="module")
def references():
    """Branches to compare with, by their settings."""
    return {}


@pytest.fixture
def pair(parent, tmp_path, references):
    """What a branch does without a value of a key, and with it."""

    def observed(given, change):
        if given not in references:
            references[given] = observe(parent, tmp_path / "before", given)
        return references[given], observe(parent, tmp_path / "after", [*given, change])

    return observed


def begin(parent, folder, changes):
    start = parent / "training_state" / "step_2"
    return branch(start, [f"output.directory={folder}", *changes])


def observe(parent, folder, changes):
    new = begin(parent, folder, changes)
    lines = (new / "logs" / "metrics.jsonl").read_text().splitlines()[2:]
    end = sorted((new / "training_state").glob("step_*"))[-1]
    weights = load_file(end / "adapter_model.safetensors")
    return lines, weights, {str(path.relative_to(new)) for path in new.rglob("*")}


def test_the_lists_are_complete():
    accepted = {
        key for key in all_keys(TrainConfig) if "." in key and not key.startswith(FIXED)
    } - {"control.target", "control.feedback"}
    names = "lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay "
    names += "adam_beta1 adam_beta2 adam_epsilon epsilon epsilon_high beta loss_type "
    fields = {f"trainer.{x}" for x in (names + "scale_rewards num_iterations").split()}
    assert not {name.removeprefix("trainer.") for name in fields} & managed_fields("train").keys()
    accepted |= {field for field in fields if not field.startswith(FIXED)}
    cure = "say in tests/verbs/branch_effects.py what the key changes in a branch"
    assert accepted - {*STEPS, *FILES, *PARTS, *REFUSED} == set(), cure


def test_checkpoints_are_saved_as_often_as_the_branch_says(pair, caplog):
    foreign = logging.getLogger("transformers")
    foreign.addHandler(caplog.handler)
    before, after = pair((), "training.save_every=1")
    foreign.removeHandler(caplog.handler)
    assert "save_steps" not in caplog.text  # what the branch was told is no warning
    assert {n for n in after[2] - before[2] if n.count("/") == 1} == {"training_state/step_3"}


@pytest.mark.slow
@pytest.mark.parametrize("key", STEPS)
def test_the_setting_changes_the_steps(key, pair):
    given, value = STEPS[key]
    before, after = pair(given, f"{key}={value}")
    same = all(before[1][name].equal(after[1][name]) for name in before[1])
    assert before[0] != after[0] or not same


@pytest.mark.slow
@pytest.mark.parametrize("key", FILES)
def test_the_setting_changes_the_files(key, pair):
    given, value = FILES[key]
    before, after = pair(given, f"{key}={value}")
    assert before[2] != after[2]


@pytest.mark.parametrize("key", PARTS)
def test_the_setting_reaches_the_trainer(key, parent, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("isentrope.verbs.train._run", lambda trainer, *_: made.append(trainer))
    given, value = PARTS[key]
    seen = []
    for number, changes in enumerate((given, [*given, f"{key}={value}"])):
        begin(parent, tmp_path / str(number), changes)
        alarm = vars(made[-1].stateful["alarm"]) if given else {}
        plain = {name: x for name, x in alarm.items() if isinstance(x, (bool, int, float))}
        seen.append((made[-1].options.sampling_batch, logging.getLogger("isentrope").level, plain))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_that_cannot_act_is_refused(key, parent, tmp_path):
    given, value, words = REFUSED[key]
    value = parent if key == "output.directory" else value
    with pytest.raises((ValueError, FileExistsError), match=words):
        begin(parent, tmp_path / "new", [*given, f"{key}={value}"])
