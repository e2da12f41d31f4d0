"""A GRPO script of TRL with two lines more: what each step spends of entropy, and what it earns.

    .venv/bin/python docs/two_lines.py [FOLDER]

Twenty seconds on a CPU, nothing is downloaded; replace the model, prompts and reward with your own.
"""

import sys
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

import isentrope as ise
from isentrope.training.models import build_toy_policy

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/two_lines")
toy = build_toy_policy(seed=0)  # a Qwen2 with random weights, and its tokenizer
toy.model.save_pretrained(folder / "base")
toy.tokenizer.save_pretrained(folder / "base")

prompts = [f"{a}+{b}=" for a in range(9) for b in range(9)]
trained, held_out = prompts[::2], prompts[1::2]


def reward(completions, **_):
    """Digits are good answers."""
    return [sum(c.isdigit() for c in text) / 12 for text in completions]


trainer = GRPOTrainer(
    str(folder / "base"),
    reward,
    args=GRPOConfig(
        output_dir=str(folder),
        max_steps=20,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=12,
        learning_rate=2e-3,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="tensorboard",  # or wandb, trackio, mlflow: the same keys
        seed=0,
    ),
    train_dataset=Dataset.from_dict({"prompt": trained}),
    peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
)

# The two lines.
options = ise.ProbeOptions(reward=reward)
probe = ise.EntropyProbe(held_out, every=5, size=64, options=options).attach(trainer)

trainer.train()

for reading in probe.history:  # with 95 % intervals, or [-] where the step was too long for one
    print(f"step {reading.step}: {reading.change},")
    print(f"    for {reading.price.whole.reward}")
