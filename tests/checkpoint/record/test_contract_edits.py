"""A contract is read if a run could have written it, and refused by the key that was edited."""

import json
import shutil
import typing

import pytest

from isentrope.checkpoint.record.contract import Contract, read_contract
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.system.errors import FileError
from isentrope.verbs.train import train
from tests.tiny_checkpoint import as_made_elsewhere
from tests.training import runs

STATED_ONCE = {
    "eos_token_ids": "compared with the policy's, by measure, check and --resume",
    "replayable": "follows from the model's routers",
    "base_model": "a path; its content has digests in made_from",
    "frozen_sha256": "compared with the weights by --resume",
    "dataset_sha256": "compared with the prompts by --resume",
    "environment": "versions of the machine",
    "config": "compared with config.yaml by --resume; its settings are what others repeat",
    "made_from": "digests, which are compared with the files",
    "parent": "the start of a branch, which is beside the run",
}
"""Keys of a contract that it repeats nowhere, and why."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Step 1 of runs by their settings."""

    def checkpoint(name, **sections):
        folder = tmp_path_factory.mktemp(name)
        training = {"steps": 1, **sections.pop("training", {})}
        usual = {"training": training, "entropy_probe": {"enabled": False}}
        run = train(load_config(runs.settings(folder, **usual, **sections), (), TrainConfig))
        return as_made_elsewhere(run / "training_state" / "step_1")

    return checkpoint


@pytest.fixture(scope="module")
def plain(made):
    return made("plain")


def edited(checkpoint, folder, change):
    copy = shutil.copytree(checkpoint, folder / "step_1", dirs_exist_ok=True)
    content = json.loads((checkpoint / "contract.json").read_text())
    change(content)
    (copy / "contract.json").write_text(json.dumps(content))
    return copy


def rewritten(checkpoint, folder, values):
    """A copy with other values of keys; a key whose value is `...` is removed."""

    def change(content):
        content.update(values)
        for key in [key for key, value in content.items() if value is ...]:
            del content[key]

    return edited(checkpoint, folder, change)


KEYS = (
    "objective loss_type normaliser max_new_tokens temperature max_grad_norm prompts_per_step "
    "group_size micro_batch gradient_accumulation_steps world_size seed sampler replayable "
    "base_model frozen_sha256 trainable dataset dataset_sha256 environment step "
    "learning_rate_next optimizer param_groups"
)

VALUES = {
    "schema": [2, 0, "1", None, True],
    "objective": ["nonsense", "", 1, None],
    "plain_objective": ["nonsense"],
    "advantages": ["nonsense", 1],
    "control": ["clip_cov", []],
    "loss_type": ["", "two words", 3],
    "normaliser": ["nonsense", 0],
    "max_new_tokens": [0, -1, 1.5, "1", 2**40, 2],
    "eos_token_ids": [[-1], ["1"], 1],
    "temperature": [0, -1.0, "1", True, 0.7],
    "max_grad_norm": [-1.0, "1", True],
    "prompts_per_step": [0, 8],
    "group_size": [0, 4],
    "micro_batch": [0, 3],
    "world_size": [0, 2],
    "seed": [-1, 1.5, 7],
    "sampler": ["nonsense", None],
    "replayable": [1, "true", None],
    "base_model": ["", 1],
    "frozen_sha256": ["0" * 64, "", "abc", False, None, "Z" * 64],
    "trainable": [[], {"a": [0]}, {"a": 1}],
    "dataset": ["", "another"],
    "dataset_sha256": ["0" * 64, 0],
    "environment": [{"torch": ""}, {"torch": None}, []],
    "made_from": [{"base weights": "0" * 64}, {"base weights": "x"}, {"data": None}],
    "config": [[], {"training": 3}],
    "step": [-1, "1", None],
    "learning_rate_next": [-1.0, 0.5],
    "optimizer": ["", 1],
    "param_groups": [[], [{}], [{"lr": -1.0}], [{"lr": 0.01, "betas": [2, 2]}]],
    "a_key_of_another_version": [1],
}


@pytest.mark.parametrize("key", VALUES)
def test_values_that_no_run_writes_are_refused_by_key(plain, tmp_path, key):
    for value in VALUES[key]:
        with pytest.raises(FileError, match=rf"(?s)step_1.*({key}|world_size|parts make)"):
            read_contract(rewritten(plain, tmp_path, {key: value}))


@pytest.mark.parametrize("key", KEYS.split())
def test_a_key_that_every_version_wrote_must_be_there(plain, tmp_path, key):
    with pytest.raises(FileError, match=f"has no '{key}'"):
        read_contract(rewritten(plain, tmp_path, {key: ...}))


def test_contracts_of_earlier_versions_and_of_other_tools_are_read(plain, tmp_path):
    assert read_contract(plain)["schema"] == 1
    later = ("plain_objective", "advantages", "control", "eos_token_ids", "config", "made_from")
    assert read_contract(rewritten(plain, tmp_path, dict.fromkeys(later, ...)))
    (tmp_path / "contract.json").write_text('{"temperature": 0.7}')
    assert read_contract(tmp_path) == {"temperature": 0.7}


def other(value, kind):
    """Another value that the type of a key allows."""
    choices = [
        choice
        for part in (typing.get_args(kind) or (kind,))
        for choice in (typing.get_args(part) if typing.get_origin(part) is typing.Literal else ())
    ]
    choices += typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else []
    if choices:
        return next(choice for choice in choices if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        names = {"dr_grpo": "grpo", "AdamW": "SGD", "prompts": "others"}
        return names.get(value, value[::-1])
    if isinstance(value, list):
        return [{**part, "lr": 0.5} if isinstance(part, dict) else part + 1 for part in value]
    if value is None:
        return {"name": "clip_cov", "options": {}, "target": None, "feedback": None}
    return {}


@pytest.mark.parametrize("key", [f.alias or name for name, f in Contract.model_fields.items()])
def test_every_key_that_a_contract_repeats_is_compared(plain, tmp_path, key):
    field = next(f for name, f in Contract.model_fields.items() if key in (name, f.alias))
    before = json.loads((plain / "contract.json").read_text())
    value = other(before.get(key), field.annotation)
    copy = rewritten(plain, tmp_path, {key: value})
    if key in STATED_ONCE:
        assert read_contract(copy)
    else:
        with pytest.raises(FileError, match=r"step_1"):
            read_contract(copy)


def leaves(content, path=()):
    for key, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def test_a_setting_of_the_configuration_that_has_the_name_of_a_key_is_compared(plain, tmp_path):
    before = json.loads((plain / "contract.json").read_text())
    shared = [path for path, _ in leaves(before["config"]) if path[-1] in before]
    assert len(shared) >= 8
    for number, path in enumerate(shared):
        section, key = path

        def change(content, section=section, key=key):
            value = content["config"][section][key]
            content["config"][section][key] = value + 1 if isinstance(value, (int, float)) else "x"

        with pytest.raises(FileError, match=f"{key} is"):
            read_contract(edited(plain, tmp_path / str(number), change))


EDITS = {
    "no clipping": (lambda c: c.update(max_grad_norm=None), "max_grad_norm is None, and 1.0"),
    "another objective": (lambda c: c.update(objective="grpo"), "objective is 'grpo'"),
    "both objectives": (
        lambda c: c.update(objective="grpo", plain_objective="grpo"),
        "plain_objective is 'grpo', and 'dr_grpo'",
    ),
    "all of the loss": (
        lambda c: c.update(objective="grpo", plain_objective="grpo", loss_type="grpo"),
        r"loss_type is 'grpo', and 'dr_grpo' in its config\.trainer",
    ),
    "advantages": (lambda c: c.update(advantages="grpo"), "advantages is 'grpo'"),
    "another optimizer": (lambda c: c.update(optimizer="SGD"), "optimizer is 'SGD', and 'AdamW'"),
    "coupled decay": (lambda c: c.update(optimizer="Adam"), "optimizer is 'Adam', and 'AdamW'"),
    "nothing trained": (lambda c: c.update(trainable={}), "trainable is False, and True in para"),
    "a shape": (
        lambda c: c["trainable"].update({key: [3, 16] for key in [*c["trainable"]][:1]}),
        r"trainable\.base_model.* is \[3, 16\], and \[2, 16\] in adapter_model",
    ),
    "a group more": (lambda c: c["param_groups"].append(c["param_groups"][0]), "param_groups is 3"),
    "one group": (lambda c: c["param_groups"].pop(), "number of param_groups is 1, and 2"),
    "a control": (
        lambda c: c.update(control={"name": "clip_cov"}),
        r"control\.name is 'clip_cov', and None",
    ),
    "another scale": (
        lambda c: c["config"]["model"].update(lora_alpha=8.0),
        r"lora_alpha is 8\.0, and 4(\.0)? in adapter_config",
    ),
    "another step": (lambda c: c.update(step=2), "of step 1 by its name, step_1, and of step 2"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_in_one_place_is_named_with_both_values(plain, tmp_path, name):
    change, words = EDITS[name]
    with pytest.raises(FileError, match=words):
        read_contract(edited(plain, tmp_path, change))


SOUND = {
    "no clipping": {"training": {"max_grad_norm": 0.0}},
    "one pass": {"training": {"micro_batch": None}},
    "longest": {"training": {"normaliser": "longest"}},
    "another loss": {"trainer": {"loss_type": "bnpo", "scale_rewards": "group"}},
    "a loss that is recorded": {"trainer": {"beta": 0.1}},
    "a control": {"control": {"name": "clip_cov"}},
    "a control of the loss": {"control": {"name": "gspo"}},
    "a target": {"control": {"name": "bonus", "strength": 0.01, "target": {"kind": "hold"}}},
    "every weight": {"model": {"lora_rank": 0}},
    "SGD": {"trainer": {"optim": "sgd"}},
    "a schedule": {
        "trainer": {"lr_scheduler_type": "cosine"},
        "training": {"steps": 2, "save_every": 1},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_what_a_run_writes_agrees(made, name):
    assert read_contract(made("sound", **SOUND[name]))["schema"] == 1
