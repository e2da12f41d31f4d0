"""A training run of DeepSpeed on two processes, its checkpoint, and what DeepSpeed says is in it.

torchrun --nproc_per_node 2 -m tests.checkpoint.convert.zero_run CASE FOLDER (pip install deepspeed)

FOLDER/base holds the model and FOLDER/U.parquet the batch of every step. The checkpoint goes to
FOLDER/checkpoint; FOLDER/whole.pt gets weights and moments as DeepSpeed gathers them, and the
weights after one step more.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from isentrope import Rollouts
from tests.checkpoint.convert.sharded_run import EPSILON, RATE, leave_whole, loss_of, parameters

CASES = {
    "stage_1": {"stage": 1},
    "stage_2": {"stage": 2},
    "stage_3": {"stage": 3},
    "aligned": {"stage": 2, "parameter_alignment": True},
    "in_turn": {"stage": 2, "round_robin_gradients": True},
    "cut_groups": {"stage": 3, "sub_group_size": 900},
    "short_1": {"stage": 1},
    "short_2": {"stage": 2},
    "short_3": {"stage": 3},
    "adapter_2": {"stage": 2},
    "adapter_3": {"stage": 3},
}
"""`zero_optimization`, by name; "short" trains in bfloat16, "adapter" LoRA on a frozen base."""
CLIP = 0.5


def made(folder, case):
    """The model; an adapter's first content goes beside it."""
    dtype = torch.bfloat16 if "short" in case else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=dtype)
    if "adapter" in case:
        model = get_peft_model(model, LoraConfig(r=3, lora_alpha=4, target_modules="all-linear"))
        if dist.get_rank() == 0:
            model.save_pretrained(folder / "adapter")
    return model


def contents(engine, case):
    """Weights and moments of each trained parameter, put together by DeepSpeed's own addresses.

    Those addresses are wrong for groups that are dealt in turn (0.19.8): weights alone are compared
    there, and the next step.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    found = {}
    for name, p in engine.module.named_parameters():
        if case == "in_turn":
            found[name] = {"weight": p.detach().clone()}
        elif p.requires_grad:
            moments = {key: moment(engine, p, key) for key in ("exp_avg", "exp_avg_sq")}
            found[name] = {"weight": safe_get_full_fp32_param(p).clone()} | moments
    return found


def moment(engine, p, key):
    """One moment of a parameter, whole. (Stages 1 and 2 find none after `initialize`.)"""
    from deepspeed.utils import safe_get_full_optimizer_state

    if hasattr(p, "ds_id"):
        return safe_get_full_optimizer_state(p, key).clone()
    whole = torch.zeros(p.numel())
    fragment = p._hp_mapping
    if fragment is not None:
        here, there = fragment.lp_fragment_address, fragment.hp_fragment_address
        torch_optimizer = engine.optimizer.optimizer
        (flat,) = torch_optimizer.param_groups[fragment.param_group_index]["params"]
        part = torch_optimizer.state[flat][key][there.start : there.start + there.numel]
        whole[here.start : here.start + here.numel] = part
    dist.all_reduce(whole)
    return whole.view(p.shape)


def main(case, folder):
    import deepspeed

    deepspeed.init_distributed("gloo")
    rollouts = Rollouts.load(folder / "U.parquet")
    model = made(folder, case)
    optimizer = torch.optim.AdamW(parameters(model), lr=RATE, eps=EPSILON)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": CASES[case],
        "bf16": {"enabled": "short" in case},
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    def step():
        engine.backward(loss_of(engine, rollouts))
        engine.step()

    for _ in range(2):
        step()
    engine.save_checkpoint(str(folder / "checkpoint"), tag="global_step2")
    before = contents(engine, case)
    step()
    after = contents(engine, case)
    leave_whole(folder, before, after)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
