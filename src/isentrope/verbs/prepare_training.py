"""What a training run starts from: model, prompts, update batches, contract and observers.

Observers are what watches and corrects it: probe, alarm, noise scale, entropy budget.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from isentrope.checkpoint.files import step_of_folder
from isentrope.checkpoint.limits import balancing_weight
from isentrope.checkpoint.record.contract import (
    environment,
    frozen_hash,
    read_contract,
    trainable_shapes,
)
from isentrope.config.contract import advantages_of, run_contract, run_control
from isentrope.config.control_fields import draws_held_out
from isentrope.config.paths import path_in_run
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trainable import require_vllm_to_train
from isentrope.config.trl import (
    draws_by_vllm,
    grpo_options,
    shards_weights,
    training_device,
)
from isentrope.control.budget import EntropyBudget
from isentrope.control.budget_options import BudgetOptions
from isentrope.models.sharding import shard_base
from isentrope.nouns.choices import PER_OF
from isentrope.planning.room import require_room_to_train
from isentrope.policy.language_model import Policy
from isentrope.probe.alarm import Alarm
from isentrope.probe.callback import EntropyProbe
from isentrope.probe.online_noise_scale import NoiseScaleMonitor
from isentrope.probe.options import ProbeOptions
from isentrope.run.branch import Branch
from isentrope.run.origin import training_origin
from isentrope.run.resuming import contract_config, require_same_run
from isentrope.sampling.batches import Groups
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import as_prompts, require_room
from isentrope.sampling.tasks.task import Task
from isentrope.system.files import sha256
from isentrope.system.log import log
from isentrope.system.outputs import require_disk
from isentrope.system.processes import world_size
from isentrope.system.progress import progress
from isentrope.training.batch_trainer import RunOptions
from isentrope.training.models import load_trainable
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.training.run_files import RunFiles, kept_steps
from isentrope.training.tensorboard import TENSORBOARD
from isentrope.training.trainer import EntropyGRPOTrainer
from isentrope.training.update_batches import UpdateBatches
from isentrope.verbs.before_work import warn_of_training

DRAWS_ANEW = (
    "trainer.use_vllm=true: vLLM draws without the uniforms of this run, so its steps from here on "
    "are not those that it would have taken without the interruption."
)
"""What a run that is resumed with vLLM no longer promises."""


def prepare_training(
    config: TrainConfig, files: RunFiles, checkpoint: Path | None = None
) -> EntropyGRPOTrainer:
    """Build the trainer of a run; of a resumed run its contract must be the checkpoint's."""
    training = config.training
    log.setLevel(config.output.log_level)
    if draws_by_vllm(config.trainer):
        require_vllm_to_train()
        if checkpoint is not None:
            log.warning("%s", DRAWS_ANEW)
    args = grpo_options(config, files.checkpoints)
    last_step = 0 if checkpoint is None else step_of_folder(checkpoint.name) or 0
    steps = range(last_step + 1 if last_step else 0, training.steps + 1)
    saved = kept_steps(steps, training.save_every, training.keep_last, training.keep_every)
    model, tokenizer = begin_training(
        config, files, training.seed, saved, "set training.keep_last, or choose another --out"
    )
    policy = Policy(model, tokenizer, precision="as_is")
    task = config.data.task(config.data.train_split)
    prompts = as_prompts(policy, task.prompts)
    require_room(policy, prompts, config.sampling.max_new_tokens)
    batches = _draw_batches(config, prompts, task)
    contract = _make_contract(config, files, policy, prompts, args)
    if checkpoint is not None:
        before = read_contract(checkpoint)
        is_branch = Branch.at(files, last_step) is not None
        require_same_run(checkpoint, before, contract, branched=is_branch)
    if config.model.shard_base:
        shard_base(model, args.device)
    held_out = _choose_held_out(config, prompts)
    observers = _make_observers(config, held_out, task, model, args)
    if (control := run_control(config, args, held_out)) is not None:
        observers["control"] = control
    trainer = EntropyGRPOTrainer(
        *(model, tokenizer, args, batches, files),
        options=RunOptions(
            sampling_batch=config.sampling.batch_size,
            longest_normaliser=training.normaliser == "longest",
            contract=contract,
            observers=observers,
            keep=(training.keep_last, training.keep_every),
            rollouts_every=config.output.rollouts_every,
            observe=progress().training(training.steps),
        ),
    )
    trainer.remove_callback(PrinterCallback)
    for name in ("entropy_probe", "alarm"):  # which watches the readings of the probe
        if name in observers:
            trainer.add_callback(observers[name])
    if alarm := observers.get("alarm"):
        alarm.batch_entropies = lambda: trainer.batch.rollouts.sampler_entropies
    return trainer


def _draw_batches(config: TrainConfig, prompts: list[Prompt], task: Task) -> UpdateBatches:
    """What draws the update batch of each step."""
    training = config.training
    sampling = config.sampling
    sampler = PromptSampler(
        [prompt.key for prompt in prompts],
        seed=training.seed,
        draws=training.draws,
        weighting=training.prompt_weighting,
    )
    groups = Groups(
        training.prompts_per_step,
        training.group_size,
        sampling.max_new_tokens,
        advantages_of(config),
        training.redraw_limit,
    )
    return UpdateBatches(
        prompts, task, sampler, groups, seed=training.draws, batch_size=sampling.batch_size
    )


def _make_contract(
    config: TrainConfig, files: RunFiles, policy: Policy, prompts: list[Prompt], args: Any
) -> dict[str, Any]:
    """What the checkpoints of a run say of it, and of the run that it branches from."""
    contract = run_contract(config, args, _describe_run(policy, prompts, args)) | {
        "made_from": training_origin(config),
        "config": contract_config(config, files.folder),
        "base_model": _name_base(policy.model, config.model.path, files.folder),
    }
    if (branch := Branch.of(files)) is not None:
        contract["parent"] = asdict(branch)
    return contract


def begin_training(
    config: TrainConfig | SftConfig, files: RunFiles, seed: int, saved: Iterable[int], cure: str
) -> tuple[Any, Any]:
    """Load what is trained; memory and disk that are too small are refused before any work.

    Args:
        config: Of the run.
        files: Its files.
        seed: Of random weights.
        saved: Steps whose checkpoints will be there together; step 0 has no moments.
        cure: What to do where the disk is full, the end of a sentence.

    Returns:
        The model and its tokenizer.
    """
    if "tensorboard" in config.output.report_to:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(files.folder / TENSORBOARD)
    section = config.model
    model, tokenizer = load_trainable(**section.model_dump(exclude={"shard_base"}), seed=seed)
    if not (section.shard_base or shards_weights(config.trainer)):
        device = training_device(config.trainer)
        require_room_to_train(model, device)
        warn_of_training(
            config, "train" if isinstance(config, TrainConfig) else "sft", model, device
        )
    tokenizer_size = 0
    if getattr(tokenizer, "is_fast", False):
        tokenizer_size = len(tokenizer.backend_tokenizer.to_str().encode())
    require_disk(files.folder, model, saved, cure, tokenizer_size)
    return model, tokenizer


def _choose_held_out(config: TrainConfig, trained_on: list[Prompt]) -> list[Prompt]:
    """Prompts that the probe and the control read entropy from; none where neither does.

    Returns:
        Those of training, with a warning, where there are no others.
    """
    readers = ["the probe"] if config.entropy_probe.enabled else []
    readers += [f"control.name={config.control.name}"] if draws_held_out(config) else []
    if not readers:
        return []
    held_out = config.data.task(config.data.held_out_split).prompts
    trained = {prompt.content for prompt in trained_on}
    prompts = [prompt for prompt in held_out if prompt.content not in trained]
    if not prompts:
        log.warning(
            "The data set has no held-out split for %s: entropy is read from fresh responses to "
            "prompts that are trained on, not to held-out ones.",
            " and ".join(readers),
        )
    return prompts or held_out


def _name_base(model: Any, path: str, run: Path) -> str:
    """The base model: its path in the run's folder, if it is there, else as it was given."""
    adapters = getattr(model, "peft_config", {})
    base = next((a.base_model_name_or_path for a in adapters.values()), path)
    return path_in_run(str(base), run, run) or path


def _describe_run(policy: Policy, prompts: list[Prompt], args: Any) -> dict[str, Any]:
    """What a contract says of the model, the data and the machine."""
    lines = (f"{prompt.key}\t{prompt.token_ids}\t{prompt.reference}\n" for prompt in prompts)
    return {
        "eos_token_ids": list(policy.eos_token_ids),
        "replayable": not balancing_weight(policy.model, vars(args)),
        "frozen_sha256": frozen_hash(policy.model),
        "trainable": trainable_shapes(policy.model),
        "dataset_sha256": sha256(line.encode() for line in lines),
        "environment": environment(),
    }


_AS_CONFIGURED = {
    "log_every",
    "method",
    "second_order",
    "fresh",
    "preconditioning",
    "position_pattern",
}
"""Settings of the probe that are its options by the same names."""


def _make_observers(
    config: TrainConfig, held_out: list[Prompt], task: Task, model: Any, args: Any
) -> dict[str, Any]:
    """Those of a configuration; the noise scale needs a step of two micro-batches or more.

    Returns:
        What corrects steps, if anything, and what watches them, by the names of their states.
    """
    training = config.training
    control = config.control.build()
    probing = config.entropy_probe
    watching = config.alarm
    noise = config.noise_scale
    step_control = None
    observers: dict[str, Any] = {}
    if isinstance(control, BudgetOptions):
        step_control = EntropyBudget(
            config.control.target,
            options=control,
            gains=config.control.feedback,
            seed=training.draws,
        )
    if probing.enabled:
        options = ProbeOptions(
            **probing.model_dump(include=_AS_CONFIGURED),
            per=PER_OF[probing.functional],
            seed=training.seed,
            decay=probing.decay,
            reward=task if probing.price else None,
        )
        observers["entropy_probe"] = EntropyProbe(
            held_out,
            every=probing.every,
            size=probing.size,
            control=step_control,
            options=options,
        )
        if watching.enabled:
            observers["alarm"] = Alarm(
                observers["entropy_probe"],
                false_alarms=watching.false_alarms,
                half_life=watching.half_life,
                stop=watching.stop,
            )
    if noise.enabled and args.gradient_accumulation_steps >= 2:
        observers["noise_scale"] = NoiseScaleMonitor(
            [p for p in model.parameters() if p.requires_grad],
            accumulation=args.gradient_accumulation_steps,
            processes=world_size(),
            groups=args.per_device_train_batch_size // training.group_size,
            decay=noise.decay,
        )
    if step_control is not None:
        observers["step_control"] = step_control
    return observers
