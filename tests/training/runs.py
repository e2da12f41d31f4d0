"""Tiny training runs: a random policy of two layers, on a task that chance solves."""

import json
from pathlib import Path

import torch
from transformers import PrinterCallback

from isentrope import EntropyProbe, ProbeOptions, Prompt
from isentrope.checkpoint.record.contract import frozen_hash, trainable_shapes
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.sampling.batches import Groups
from isentrope.sampling.prompts import as_prompts
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.training.run_files import RunFiles
from isentrope.training.update_batches import UpdateBatches
from tests.adapters import adapted, save_base_model
from tests.training.conftest import Short, small_policy

STEPS, GROUPS, SIZE, LENGTH = 4, 4, 4, 3
UNPROBED = {"entropy_probe": {"enabled": False}}


def trl_args(folder, steps=STEPS, **options):
    from trl import GRPOConfig

    usual = {
        "per_device_train_batch_size": GROUPS * SIZE // 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.03,  # clips some steps and not others
        "save_steps": 1,
        "bf16": False,
    }
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        num_generations=SIZE,
        max_completion_length=LENGTH,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        use_cpu=True,
        gradient_checkpointing=options.pop("gradient_checkpointing", False),
        beta=0.0,
        **{"loss_type": "dr_grpo", "scale_rewards": "none", **usual, **options},
    )


def trainer(
    folder,
    *,
    steps=STEPS,
    probe=None,
    weighting="uniform",
    longest=False,
    control=None,
    precision="float32",
    **options,
):
    """A trainer over the base model in `folder`, which is made if need be."""
    from isentrope.training.trainer import EntropyGRPOTrainer, RunOptions

    folder = Path(folder)
    if not (folder / "base").exists():
        save_base_model(small_policy(), folder / "base")
    policy = adapted(folder / "base", precision)
    task = Short()
    prompts = as_prompts(policy, [Prompt(f"short/{i}", text=f"{i}+3=") for i in range(16)])
    sampler = PromptSampler([p.key for p in prompts], seed=3, weighting=weighting)
    batches = UpdateBatches(prompts, task, sampler, Groups(GROUPS, SIZE, LENGTH), seed=1)
    made = EntropyGRPOTrainer(
        policy.model,
        policy.tokenizer,
        trl_args(folder / "training_state", steps, **options),
        batches,
        RunFiles(folder),
        options=RunOptions(
            longest_normaliser=longest,
            contract={
                "trainable": trainable_shapes(policy.model),
                "frozen_sha256": frozen_hash(policy.model),
            },
            observers={
                name: part
                for name, part in {"entropy_probe": probe, "control": control}.items()
                if part is not None
            },
        ),
    )
    made.remove_callback(PrinterCallback)
    if probe is not None:
        made.add_callback(probe)
    return made


def probe(every=2, size=8, **options):
    prompts, options = [f"{i}+2=" for i in range(5)], ProbeOptions(**{"seed": 5, **options})
    return EntropyProbe(prompts, every=every, size=size, options=options)


def lines(folder):
    text = (Path(folder) / "logs" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def parameters(folder, step):
    from safetensors.torch import load_file

    return load_file(Path(folder) / "training_state" / f"step_{step}" / "adapter_model.safetensors")


def theta(made):
    return {n: p.detach().clone() for n, p in made.policy.theta.items()}


def relative(found, expected):
    flat = [torch.cat([x[n].double().flatten() for n in expected]) for x in (found, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def settings(folder, **sections):
    """A configuration of `isentrope train` over a tiny model: one token, right by chance."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "base").exists():
        save_base_model(small_policy(), folder / "base")
        rows = [{"prompt": f"{i}+1=", "reference": "7", "key": f"sum/{i}"} for i in range(90)]
        (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    usual = {
        "model": {"path": str(folder / "base"), "lora_rank": 2, "lora_alpha": 4},
        "data": {"dataset_name": "prompts", "dataset_path": str(folder / "prompts.jsonl")},
        "sampling": {"max_new_tokens": 1},
        "training": {
            "steps": 12,
            "learning_rate": 1e-2,
            "prompts_per_step": 4,
            "group_size": 8,
            "micro_batch": 16,
            "save_every": 2,
            "prompt_weighting": "difficulty",
        },
        "entropy_probe": {"every": 3, "size": 4},
        "output": {"directory": str(folder / "run"), "report_to": [], "log_level": "WARNING"},
    }
    return {
        name: (usual[name] | sections.get(name, {})) if isinstance(usual.get(name), dict) else new
        for name, new in (usual | sections).items()
    }


def trained(folder, **sections):
    """The folder of a run of `isentrope train` with these settings."""
    from isentrope.verbs.train import train

    return train(load_config(settings(folder, **sections), root=TrainConfig))


def measuring(checkpoint, prompts, batch=None, **sections):
    """A configuration of `isentrope measure` at checkpoints of such a run, to order 0."""
    sizes = {"B_E": 12, "B_U": 2, "G": 8, "allow_overlap": True}
    data = {"dataset_name": "prompts", "dataset_path": str(prompts)}
    return {
        "checkpoint": {"checkpoint_path": checkpoint},
        "batch_config": data | sizes | (batch or {}),
        "estimator": {"order": 0, "eta_list": [1e-3]},
        "sampling": {"max_new_tokens": 1},
        **sections,
    }
