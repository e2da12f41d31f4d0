"""A contract whose manifest is gone is read if a run could have written it, or refused by key."""

import json
import shutil

import pytest

from isentrope.checkpoint.record.contract import read_contract
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.system.errors import FileError
from isentrope.verbs.train import train
from tests.tiny_checkpoint import as_made_elsewhere
from tests.training import runs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    sections = {"training": {"steps": 1}, "entropy_probe": {"enabled": False}}
    run = train(load_config(runs.settings(folder, **sections), (), TrainConfig))
    return as_made_elsewhere(run / "training_state" / "step_1")


@pytest.fixture
def edited(checkpoint, tmp_path):
    """A copy with keys of the contract changed, or removed where their value is `...`."""
    folder = shutil.copytree(checkpoint, tmp_path / "step_1")

    def edit(**changes):
        content = json.loads((checkpoint / "contract.json").read_text()) | changes
        kept = {key: value for key, value in content.items() if value is not ...}
        (folder / "contract.json").write_text(json.dumps(kept))
        return read_contract(folder)

    return edit


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
def test_values_that_no_run_writes_are_refused_by_key(edited, key):
    assert edited()["schema"] == 1
    for value in VALUES[key]:
        with pytest.raises(FileError, match=rf"(?s)step_1.*({key}|world_size|parts make)"):
            edited(**{key: value})


@pytest.mark.parametrize("key", KEYS.split())
def test_a_key_that_every_version_wrote_must_be_there(edited, key):
    with pytest.raises(FileError, match=f"has no '{key}'"):
        edited(**{key: ...})


def test_contracts_of_earlier_versions_and_of_other_tools_are_read(edited, tmp_path):
    later = ("plain_objective", "advantages", "control", "eos_token_ids", "config", "made_from")
    assert edited(**dict.fromkeys(later, ...))
    (tmp_path / "contract.json").write_text('{"temperature": 0.7}')
    assert read_contract(tmp_path) == {"temperature": 0.7}
