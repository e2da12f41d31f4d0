"""A training run of two processes that saves its shards as another trainer does.

torchrun --nproc_per_node 2 -m tests.checkpoint.convert.sharded_run LAYOUT FOLDER

FOLDER/base holds the model and FOLDER/U.parquet the batch of the last step. The checkpoint goes to
FOLDER/checkpoint, and the whole weights before and after the step after it to FOLDER/whole.pt.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
)
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from isentrope import Rollouts

RATE = 1e-2
EPSILON = 1e-4
"""Large enough that gradients which are rounding noise do not move their parameters."""


def parameters(model):
    """Two param groups, as trainers make them: decay for matrices, none for vectors."""
    named = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in named if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in named if p.dim() < 2], "weight_decay": 0.0},
    ]


def loss_of(model, rollouts):
    """Minus the weighted sum of token log-probabilities."""
    total = torch.zeros(())
    for row, (ids, weights) in enumerate(
        zip(rollouts.response_ids, rollouts.token_weights, strict=True)
    ):
        prompt = rollouts.prompt_ids[row]
        whole = torch.cat([prompt, ids])[None]
        logits = model(input_ids=whole).logits[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
        total = total - (torch.as_tensor(weights, dtype=chosen.dtype) * chosen).sum()
    return total


def step(model, optimizer, rollouts):
    """One optimizer step on a batch, the same in all processes."""
    optimizer.zero_grad()
    loss_of(model, rollouts).backward()
    optimizer.step()


def leave_whole(folder, before, after):
    """Write what all processes hold, and end the group."""
    if dist.get_rank() == 0:
        torch.save({"before": before, "after": after}, folder / "whole.pt")
    dist.barrier()
    dist.destroy_process_group()


def shard(model):
    """FSDP2: every layer, then the rest."""
    for module in list(model.modules()):
        if type(module).__name__ == "Qwen2DecoderLayer":
            fully_shard(module)
    return fully_shard(model)


def save_dcp(model, optimizer, folder):
    """torch.distributed.checkpoint, as its documentation has it."""
    import torch.distributed.checkpoint as dcp

    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=folder)


def save_verl(model, optimizer, folder):
    """One file per process, as verl's FSDPCheckpointManager writes them under FSDP2."""
    folder.mkdir(exist_ok=True)
    of = f"world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"
    torch.save(model.state_dict(), folder / f"model_{of}")
    torch.save(optimizer.state_dict(), folder / f"optim_{of}")


def save_accelerate(model, optimizer, folder, kind="SHARDED_STATE_DICT"):
    """What accelerate's save_state writes under FSDP, by its own functions."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind)
    accelerator = Accelerator(cpu=True)
    save_fsdp_model(plugin, accelerator, model, folder)
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)


def save_whole(model, optimizer, folder):
    """The same with the states gathered."""
    folder.mkdir(exist_ok=True)
    save_accelerate(model, optimizer, folder, "FULL_STATE_DICT")


SAVE = {
    "dcp": save_dcp,
    "verl": save_verl,
    "accelerate": save_accelerate,
    "accelerate_whole": save_whole,
}


def main(layout, folder):
    """Two steps, the checkpoint, and one step more."""
    dist.init_process_group("gloo")
    rollouts = Rollouts.load(folder / "U.parquet")
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    if layout == "adapter":
        model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules="all-linear"))
        model.save_pretrained(folder / "adapter")
    model = shard(model)
    # verl gives its optimizer all parameters in one group
    groups = model.parameters() if layout == "verl" else parameters(model)
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPSILON)
    for _ in range(2):
        step(model, optimizer, rollouts)
    SAVE.get(layout, save_dcp)(model, optimizer, folder / "checkpoint")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    before = {n: x.clone() for n, x in get_model_state_dict(model, options=options).items()}
    step(model, optimizer, rollouts)
    after = get_model_state_dict(model, options=options)
    leave_whole(folder, before, after)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
