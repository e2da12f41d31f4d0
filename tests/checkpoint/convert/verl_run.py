"""A training run of two processes, sharded and saved by verl's own code.

torchrun --nproc_per_node 2 -m tests.checkpoint.convert.verl_run CASE FOLDER      (pip install verl)

FOLDER/base holds the model and FOLDER/U.parquet the batch of every step. The checkpoint goes to
FOLDER/checkpoint/actor, and the whole weights before and after one step more to FOLDER/whole.pt.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

from isentrope import Rollouts
from tests.checkpoint.convert.sharded_run import EPSILON, RATE, leave_whole, step

CASES = (
    *("whole", "tied", "adapter", "adapter_tied", "adapter_only", "replicas"),
    *("flat", "flat_tied", "flat_adapter"),
)
"""All weights; one embedding for both ends; LoRA, and saved alone; two replicas; "flat": FSDP 1."""


def sharded(model, case):
    """As verl wraps it."""
    from verl.utils.fsdp_utils import apply_fsdp2, get_fsdp_wrap_policy

    shape, names = ((2, 1), ("ddp", "fsdp")) if case == "replicas" else ((2,), ("fsdp",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if "flat" not in case:
        apply_fsdp2(model, {"mesh": mesh}, {})
        return model
    policy = get_fsdp_wrap_policy(model, {}, is_lora="adapter" in case)
    options = {"device_id": torch.device("cpu"), "use_orig_params": False}
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_mesh=mesh, **options)


def weights(model):
    """All of them, whole, by the names of the plain model."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            named = {n.replace("_fsdp_wrapped_module.", ""): p for n, p in model.named_parameters()}
            return {n: p.detach().clone() for n, p in named.items()}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {n: x.clone() for n, x in get_model_state_dict(model, options=options).items()}


def main(case, folder):
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    dist.init_process_group("gloo")
    rollouts = Rollouts.load(folder / "U.parquet")
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    if "adapter" in case:
        model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules="all-linear"))
        model.save_pretrained(folder / "adapter")
    model = sharded(model, case)
    more = {"override_optimizer_config": {"eps": EPSILON}}
    settings = FSDPOptimizerConfig(lr=RATE, weight_decay=0.1, **more)
    optimizer = build_optimizer(model.parameters(), settings)
    for _ in range(2):
        step(model, optimizer, rollouts)
    manager = FSDPCheckpointManager(
        model,
        optimizer,
        processing_class=AutoTokenizer.from_pretrained(folder / "base"),
        checkpoint_config={"save_lora_only": case == "adapter_only"},
    )
    manager.save_checkpoint(str(folder / "checkpoint" / "actor"), global_step=2)
    before = weights(model)
    step(model, optimizer, rollouts)
    after = weights(model)
    leave_whole(folder, before, after)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
