"""Train a tiny model by two steps of plain TRL, save it, and measure what the next step would do.

    .venv/bin/python docs/own_checkpoint.py [FOLDER]

isentrope takes no part in the training. The script takes seconds on a CPU and downloads nothing;
replace the model, prompts and reward with your own.
"""

import inspect
import json
import sys
from pathlib import Path

import yaml
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

import isentrope as ise
from isentrope.training.models import build_toy_policy

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own")
toy = build_toy_policy(seed=0)  # a Qwen2 with random weights, and its tokenizer
toy.model.save_pretrained(folder / "base")
toy.tokenizer.save_pretrained(folder / "base")

# 1. Train with plain TRL.
prompts = [{"prompt": f"{a}+{b}=", "reference": str(a + b)} for a in range(9) for b in range(9)]
trained, held_out = prompts[::2], prompts[1::2]


def reward(completions, **_):
    """Short answers are good answers."""
    return [1.0 / (1 + len(text)) for text in completions]


trainer = GRPOTrainer(
    str(folder / "base"),
    reward,
    args=GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        save_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=12,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        bf16=False,
        use_cpu=True,
        report_to="none",
        seed=0,
    ),
    train_dataset=Dataset.from_list(trained),
    peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()

# 2. Measure: the checkpoint and its optimizer.pt are all that is needed.
checkpoint = folder / "checkpoint-2"
policy = ise.Policy.from_checkpoint(checkpoint, precision="float64", temperature=1.0)
E = ise.sample(policy, [p["prompt"] for p in held_out], n=64, max_new_tokens=12, seed=0)
U = ise.sample(policy, [p["prompt"] for p in trained], 8, 4, max_new_tokens=12, seed=1)
U = ise.with_rewards(U, lambda batch: reward(batch.response_texts))
U = ise.with_advantages(U, "dr_grpo")
step = ise.optimizer_step(policy, U, checkpoint)  # objective and clipping as in training
sweep = ise.entropy_change(policy, E, step.direction, [1e-4, 1e-3, 1e-2])
print(
    sweep.to_frame()[["eta", "delta_h", "delta_h_se", "first_order", "verdict"]].to_string(
        index=False
    )
)

# 3. The same for the command line: prompts and reward in files; and batches, with settings.
(folder / "all.jsonl").write_text("\n".join(json.dumps(row) for row in prompts))
(folder / "rewards.py").write_text(inspect.getsource(reward))
E.save(folder / "E.parquet")
U.save(folder / "U.parquet")
(folder / "prompts.jsonl").write_text("\n".join(json.dumps(row) for row in held_out))
settings = {
    "checkpoint": {"checkpoint_path": str(checkpoint)},
    "batch_config": {
        "dataset_name": "prompts",
        "dataset_path": str(folder / "prompts.jsonl"),
        "U_file": str(folder / "U.parquet"),
        "B_E": 64,
    },
    # objective, clipping, length and temperature are training's, from training_args.bin
    "estimator": {"eta_list": [1e-4, 1e-3, 1e-2]},
    "analysis": {"reward": False},  # the reward of this training is in U alone
}
(folder / "measure.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
