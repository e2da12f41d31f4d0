"""What a training run starts from: model, prompts, update batches, contract and observers.

Observers are what watches and corrects it: probe, alarm, noise scale, entropy budget.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isentrope.config.contract import advantages_of, measures, run_contract, run_control
from isentrope.config.train import DataConfig, TrainConfig, TrainingConfig
from isentrope.config.trl import grpo_options, shards_weights
from isentrope.config.values import path_in_run
from isentrope.control.budget import EntropyBudget
from isentrope.control.requirements import BudgetOptions
from isentrope.models.sharding import shard_base
from isentrope.planning.training_memory import require_room_to_train
from isentrope.policy.language_model import Policy
from isentrope.probe.alarm import Alarm
from isentrope.probe.callback import EntropyProbe
from isentrope.probe.online_noise_scale import NoiseScaleMonitor
from isentrope.probe.requirements import ProbeOptions
from isentrope.recording.contract import environment, frozen_hash, read_contract, trainable_shapes
from isentrope.runs.branch import Branch
from isentrope.runs.folder import kept_steps, require_disk
from isentrope.runs.identity import contract_config, require_same_run
from isentrope.runs.origin import training_origin
from isentrope.sampling.batches import Groups
from isentrope.sampling.prompts import Prompt, as_prompts, require_room
from isentrope.sampling.tasks.task import Task
from isentrope.system.checkpoint_folder import step_of_folder
from isentrope.system.files import sha256
from isentrope.system.processes import all_ranks, world_size
from isentrope.system.progress import progress
from isentrope.training.models import load_trainable
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.training.run_files import RunFiles
from isentrope.training.step_log import StepLog
from isentrope.training.update_batches import UpdateBatches
from isentrope.verbs.training_step import balancing_weight


def held_out_prompts(
    data: DataConfig, readers: Sequence[str], trained_on: Sequence[Prompt]
) -> list[Prompt]:
    """Prompts for evaluation batches; those of training, with a warning, where there are no others.

    Args:
        data: The data set.
        readers: What reads entropy from them, in words.
        trained_on: Prompts of the run.

    Returns:
        The prompts; none where nothing reads them.
    """
    if not readers:
        return []
    held_out = data.task(data.held_out_split)
    trained = {prompt.content for prompt in trained_on}
    prompts = [prompt for prompt in held_out.prompts if prompt.content not in trained]
    if not prompts:
        logging.getLogger("isentrope").warning(
            "The data set has no held-out split for %s: entropy is read from fresh responses to "
            "prompts that are trained on, not to held-out ones.",
            " and ".join(readers),
        )
    return prompts or held_out.prompts


log = logging.getLogger("isentrope")


def prepare_training(config: TrainConfig, files: RunFiles, checkpoint: Path | None = None) -> Any:
    """Build the trainer of a run; of a resumed run its contract must be the checkpoint's."""
    training = config.training
    log.setLevel(config.output.log_level)
    if "tensorboard" in config.output.report_to:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(files.folder / "tensorboard")
    args = grpo_options(config, files.checkpoints)
    model, tokenizer = load_trainable(
        **config.model.model_dump(exclude={"shard_base"}), seed=training.seed
    )
    if not (config.model.shard_base or shards_weights(config.trainer)):
        require_room_to_train(model, args.device)
    done = 0 if checkpoint is None else step_of_folder(checkpoint.name) or 0
    steps = range(done + 1 if done else 0, training.steps + 1)
    kept = kept_steps(steps, training.save_every, training.keep_last, training.keep_every)
    require_disk(files.folder, model, kept, "set training.keep_last, or choose another --out")
    policy = Policy(model, tokenizer, precision="as_is")
    data, longest = config.data, config.sampling.max_new_tokens
    task = data.task(data.train_split)
    prompts = as_prompts(policy, task.prompts)
    require_room(policy, prompts, longest)
    batches = _batches(training, prompts, task, longest, advantages_of(config))
    contract = run_contract(config, args, _facts(policy, prompts, args)) | {
        "made_from": training_origin(config),
        "config": contract_config(config, files.folder),
        "base_model": _base_model(model, config.model.path, files.folder),
    }
    if (begun := Branch.of(files)) is not None:
        contract["parent"] = asdict(begun)
    if checkpoint is not None:
        saved = read_contract(checkpoint)
        require_same_run(checkpoint, saved, contract, branched=Branch.at(files, done) is not None)
    if config.model.shard_base:
        shard_base(model, all_ranks(), args.device)
    readers = ["the probe"] if config.entropy_probe.enabled else []
    readers += [f"control.name={config.control.name}"] if measures(config) else []
    held_out = held_out_prompts(data, readers, prompts)
    step_control, observers = _observers(config, held_out, task, model, args)
    return _assembled(
        config,
        (model, tokenizer, args, batches, files),
        contract,
        step_control,
        observers,
        held_out,
    )


def _base_model(model: Any, given: str, run: Path) -> str:
    """The base model: its path in the run's folder, if it is there, else as it was given."""
    adapters = getattr(model, "peft_config", {})
    named = next((a.base_model_name_or_path for a in adapters.values()), given)
    return path_in_run(str(named), run, run) or given


def _batches(
    section: TrainingConfig, prompts: list[Prompt], task: Any, longest: int, advantages: str
) -> UpdateBatches:
    sampler = PromptSampler(
        [p.key for p in prompts],
        seed=section.seed,
        draws=section.draws,
        weighting=section.prompt_weighting,
    )
    return UpdateBatches(
        prompts,
        task,
        sampler,
        Groups(
            section.prompts_per_step, section.group_size, longest, advantages, section.redraw_limit
        ),
        seed=section.draws,
    )


def _facts(policy: Policy, prompts: list[Prompt], args: Any) -> dict[str, Any]:
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


_AS_CONFIGURED = [
    *("log_every", "functional", "method", "second_order", "fresh", "preconditioning"),
    "position_pattern",
]
"""Settings of the probe that are its options."""


def _observers(
    config: TrainConfig, held_out: list[Prompt], task: Task, model: Any, args: Any
) -> tuple[EntropyBudget | None, dict[str, Any]]:
    """Those of a configuration; the noise scale needs a step of two micro-batches or more.

    Returns:
        What corrects steps, if anything; and what watches them, by the names of their states.
    """
    training, control = config.training, config.control.build()
    probing, watching, noise = config.entropy_probe, config.alarm, config.noise_scale
    step_control, found = None, dict[str, Any]()
    if isinstance(control, BudgetOptions):
        step_control = EntropyBudget(
            config.control.target,
            options=control,
            gains=config.control.feedback,
            seed=training.draws,
        )
    if probing.enabled:
        options = ProbeOptions(
            **{name: getattr(probing, name) for name in _AS_CONFIGURED},
            seed=training.seed,
            ema_decay=probing.memory,
            reward=task if probing.price else None,
        )
        found["entropy_probe"] = EntropyProbe(
            held_out,
            every=probing.every,
            size=probing.size,
            control=step_control,
            options=options,
        )
        if watching.enabled:
            found["alarm"] = Alarm(
                found["entropy_probe"],
                false_alarms=watching.false_alarms,
                half_life=watching.half_life,
                stop=watching.stop,
            )
    if noise.enabled and args.gradient_accumulation_steps >= 2:
        found["noise_scale"] = NoiseScaleMonitor(
            [p for p in model.parameters() if p.requires_grad],
            accumulation=args.gradient_accumulation_steps,
            processes=world_size(),
            groups=args.per_device_train_batch_size // training.group_size,
            ema_decay=noise.memory,
        )
    return step_control, found


def _assembled(
    config: TrainConfig,
    parts: tuple[Any, Any, Any, UpdateBatches, RunFiles],
    contract: dict[str, Any],
    step_control: EntropyBudget | None,
    observers: dict[str, Any],
    held_out: list[Prompt],
) -> Any:
    from transformers import PrinterCallback

    from isentrope.training.trainer import EntropyGRPOTrainer, RunOptions

    *_, args, _, files = parts
    training = config.training
    trainer = EntropyGRPOTrainer(
        *parts,
        options=RunOptions(
            sampling_batch=config.sampling.batch_size,
            longest_normaliser=training.normaliser == "longest",
            contract=contract,
            stateful=observers,
            step_control=step_control,
            keep=(training.keep_last, training.keep_every),
        ),
        step_log=StepLog(
            files,
            rollouts_every=config.output.rollouts_every,
            observe=progress().training(training.steps),
        ),
        control=run_control(config, args, held_out),
    )
    trainer.remove_callback(PrinterCallback)
    if probe := observers.get("entropy_probe"):
        trainer.add_callback(probe)
    if alarm := observers.get("alarm"):
        trainer.add_callback(alarm)  # behind the probe, whose readings it watches
        alarm.batch_entropies = lambda: trainer.batch.rollouts.sampler_entropies
    return trainer
