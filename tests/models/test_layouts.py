"""Folders of other trainers: what to do is said."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from isentrope.checkpoint.find import find_with_optimizers
from isentrope.config.io import load_config
from isentrope.update.optimizer_state import load_optimizer_state
from tests import cases

FOREIGN = {
    "verl": ["actor/model_world_size_2_rank_0.pt"],
    "OpenRLHF": ["_actor/latest", "_actor/global_step40/x"],
    "DeepSpeed of transformers": ["config.json", "zero_to_fp32.py", "model.safetensors"],
    "FSDP": ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata"],
    "accelerate": ["config.json", "model.safetensors", "optimizer.bin"],
}


@pytest.mark.parametrize("layout", FOREIGN)
def test_a_folder_of_another_trainer_is_refused_with_the_way_out(tmp_path, layout):
    for file in FOREIGN[layout]:
        path = tmp_path / "run" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    config = load_config({"checkpoint": {"checkpoint_path": str(tmp_path / "run")}})
    with pytest.raises(FileNotFoundError, match=r"isentrope convert \S+ --out OUT"):
        find_with_optimizers(config.checkpoint)


def test_a_folder_of_adapters_is_refused_with_the_name_of_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "adapter_config.json").write_text("{}")
    config = load_config({"checkpoint": {"checkpoint_path": str(tmp_path)}})
    with pytest.raises(FileNotFoundError, match=f"such as {tmp_path / 'model'}"):
        find_with_optimizers(config.checkpoint)


def test_a_file_of_another_trainer_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "optim_world_size_8_rank_3.pt").write_bytes(b"not a state")
    with pytest.raises(ValueError, match=r"optimizer.state_dict.*isentrope convert"):
        load_optimizer_state(cases.policy("qwen2"), tmp_path / "optim_world_size_8_rank_3.pt")


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_the_conversion_that_is_advised_gives_a_state_that_is_read(tmp_path):
    policy = cases.policy("qwen2")
    parameters = dict(policy.model.named_parameters())
    optimizer = torch.optim.AdamW([parameters[n] for n in policy.names[::-1]], lr=1e-3)
    for i, parameter in enumerate(parameters.values()):
        parameter.grad = torch.full_like(parameter, 1.0 + i)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    keys = dict(enumerate(policy.names[::-1]))
    group = saved["param_groups"][0] | {"params": list(keys.values())}
    named = {"state": {keys[i]: s for i, s in saved["state"].items()}, "param_groups": [group]}
    dcp.save({"optimizer": named}, checkpoint_id=tmp_path / "optimizer_0", no_dist=True)
    dcp_to_torch_save(tmp_path / "optimizer_0", tmp_path / "optimizer.pt")
    found = load_optimizer_state(policy, tmp_path)
    expected = load_optimizer_state(policy, optimizer)
    assert found.matched_by == "names"
    for name in policy.names:
        assert torch.equal(found.moments[name]["exp_avg"], expected.moments[name]["exp_avg"])
