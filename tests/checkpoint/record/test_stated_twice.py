"""A contract that was edited in one place contradicts itself in another, and is refused."""

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
    copy = shutil.copytree(checkpoint, folder / "step_1")
    content = json.loads((copy / "contract.json").read_text())
    change(content)
    (copy / "contract.json").write_text(json.dumps(content))
    return copy


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
    copy = edited(plain, tmp_path, lambda content: content.update({key: value}))
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
