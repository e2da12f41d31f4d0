"""Trainers that are not ours, over a tiny model, for the probe to follow."""

from datasets import Dataset
from torch import nn
from transformers import PrinterCallback, set_seed

from isentrope import Policy
from tests.adapters import save_base_model, with_lora
from tests.training import runs
from tests.training.conftest import small_policy

PROMPTS = [f"{i}+1=" for i in range(8)]


def adapted(folder, dropout=0.0):
    if not (folder / "base").exists():
        save_base_model(small_policy(), folder / "base")
    policy = with_lora(Policy.from_checkpoint(folder / "base", precision="float32"), 2, seed=0)
    names = [n for n, _ in policy.model.named_modules() if n.endswith("lora_dropout.default")]
    for name in names:
        if dropout:
            parent = policy.model.get_submodule(name.rpartition(".")[0])
            parent["default"] = nn.Dropout(dropout)
    return policy


def _reward(completions, **_):
    return [float(len(text) % 3) for text in completions]


def grpo(folder, steps=3, dropout=0.0, beta=0.0, **options):
    from trl import GRPOTrainer

    policy = adapted(folder, dropout)
    args = runs.trl_args(folder / "out", steps, **{"save_strategy": "no", **options})
    args.beta = beta
    made = GRPOTrainer(
        policy.model,
        _reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 2}),
        processing_class=policy.tokenizer,
    )
    made.remove_callback(PrinterCallback)
    return made


def sft(folder, steps=3, **options):
    from trl import SFTConfig, SFTTrainer

    policy = adapted(folder)
    args = SFTConfig(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        save_steps=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **options,
    )
    rows = [{"prompt": p, "completion": str(i % 9)} for i, p in enumerate(PROMPTS * 4)]
    made = SFTTrainer(
        policy.model,
        args,
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
    )
    made.remove_callback(PrinterCallback)
    return made


def plain(folder, steps=3):
    """transformers' own Trainer, language modelling on every token."""
    from transformers import Trainer, TrainingArguments

    policy = adapted(folder)
    ids = [policy.tokenizer(f"{p}7")["input_ids"] for p in PROMPTS * 4]
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = Dataset.from_list([{"input_ids": x, "labels": x} for x in ids])
    made = Trainer(policy.model, args, train_dataset=rows, processing_class=policy.tokenizer)
    made.remove_callback(PrinterCallback)
    return made


def run(made):
    """Train from the same random state as any other."""
    set_seed(3)
    made.train()
    return made


def trained(made):
    return {n: p.detach().clone() for n, p in made.model.named_parameters() if p.requires_grad}
