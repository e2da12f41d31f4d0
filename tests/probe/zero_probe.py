"""The probe on TRL under DeepSpeed, or without it, on however many processes run this.

torchrun --nproc_per_node 2 -m tests.probe.zero_probe CASE FOLDER      (pip install deepspeed)

FOLDER/base holds the model; the readings go to FOLDER/CASE.json, what was trained to CASE.pt.
"""

import json
import sys
from pathlib import Path

import torch

from isentrope import EntropyProbe, ProbeOptions
from isentrope.system.processes import leave, rank
from tests.probe import following

CASES = {
    "plain": {},
    "stage_1": {"stage": 1},
    "stage_2": {"stage": 2},
    "in_turn": {"stage": 2, "round_robin_gradients": True},
    "short": {"stage": 2},
}
"""`zero_optimization`, by name; "short" keeps the weights in bfloat16."""


def main(case, folder, probed=True):
    options = {"max_grad_norm": 0.05}
    if CASES[case]:
        options["deepspeed"] = {
            **dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_clipping"), "auto"),
            "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": CASES[case],
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        if case == "short":  # and the first rate of its warmup is 0
            options |= {"bf16": True, "warmup_steps": 1, "lr_scheduler_type": "linear"}
    made = following.grpo(folder, steps=3, **options)
    options = ProbeOptions(second_order=True, log_every=1)
    probe = EntropyProbe(["1+2=", "5+4="], every=1, size=8, options=options)
    if probed:
        probe.attach(made)
    following.run(made)
    if rank() == 0:
        name = case if probed else f"{case}_alone"
        torch.save(following.trained(made), folder / f"{name}.pt")
        readings = [reading.to_dict() for reading in probe.history]
        (folder / f"{name}.json").write_text(json.dumps(readings))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "alone" not in sys.argv)
    leave()
