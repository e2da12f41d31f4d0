"""What `isentrope train` does: set a run up from its configuration, or again from its folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from isentrope.config.control_options import (
    contract_entry,
    inert_reasons,
    measures,
    run_control,
)
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.config.trl import (
    advantages_of,
    grpo_options,
    objective_of,
    plain_objective_of,
)
from isentrope.files import sha256, write_bytes
from isentrope.pipelines.observers import (
    entropy_alarm,
    entropy_probe,
    held_out_prompts,
    noise_scale,
    step_control,
)
from isentrope.pipelines.replayable import balancing_weight
from isentrope.policy.language_model import Policy
from isentrope.processes import barrier, gather, rank, world_size
from isentrope.progress import Progress
from isentrope.recording.contract import (
    environment,
    frozen_hash,
    read_contract,
    require_same_run,
    trainable_shapes,
)
from isentrope.runs.folder import differences, noted_if_interrupted, resolved, run_directory
from isentrope.runs.one_writer import one_writer
from isentrope.runs.resumed_training import (
    BY_CONTENT,
    MAY_CHANGE,
    contract_config,
    may_change,
    require_same_arguments,
    require_same_training,
    training_origin,
)
from isentrope.sampling.prompts import Prompt, as_prompts, require_room
from isentrope.training.control.adaptive_strength import AdaptiveStrength
from isentrope.training.divergence import TrainingDivergedError
from isentrope.training.models import load_trainable
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.training.resumable import require_resumable
from isentrope.training.run_files import RunFiles
from isentrope.training.step_log import StepLog
from isentrope.training.update_batches import UpdateBatches

CONFIG = "config.yaml"


def train(config: TrainConfig, *, progress: Progress | None = None) -> Path:
    """Start a run.

    Args:
        config: What to train, and how.
        progress: Where to say how far it is.

    Returns:
        The run folder.

    Raises:
        FileExistsError: If the folder holds a run.
    """
    join_processes()
    files = RunFiles(gather(run_directory(config.output.directory))[0])
    with one_writer(files.folder):
        if (files.folder / CONFIG).exists():
            raise FileExistsError(
                f"{files.folder} holds a run: resume it by `isentrope train --resume "
                f"{files.folder}`, or choose another --out."
            )
        barrier()
        trainer = _trainer(config, files, progress or Progress())
        if rank() == 0:
            write_bytes(files.folder / CONFIG, resolved(config))
        return _run(trainer, files, config, None)


def resume(
    folder: str | Path, overrides: Iterable[str] = (), *, progress: Progress | None = None
) -> Path:
    """Resume a run from its newest checkpoint, bit-for-bit identically.

    Args:
        folder: The run folder.
        overrides: Settings that may change (`runs.resumed_training.MAY_CHANGE`), and paths whose
            content is the same.
        progress: Where to say how far it is.

    Returns:
        The run folder.

    Raises:
        FileNotFoundError: If the folder holds no run.
        ConfigError: If another setting is to be changed.
    """
    files, changes = RunFiles(folder), list(overrides)
    if not (files.folder / CONFIG).is_file():
        raise FileNotFoundError(f"{files.folder} holds no run: it has no {CONFIG}.")
    allowed = (*MAY_CHANGE, *BY_CONTENT)
    if fixed := [change for change in changes if not change.startswith(allowed)]:
        raise ConfigError(f"{fixed[0]} would make it another run. {may_change()}")
    join_processes()
    with one_writer(files.folder):
        return _resume(files, changes, progress or Progress())


def _resume(files: RunFiles, changes: list[str], progress: Progress) -> Path:
    config = load_config(files.folder / CONFIG, changes, root=TrainConfig)
    for difference in differences(config.provenance or {}):
        logging.getLogger("isentrope").warning("The run was begun with %s.", difference)
    files.require_known_names()
    checkpoint, done = files.latest(), max(files.steps(), default=0)
    if checkpoint is not None:
        sharded, scaled = _sharded(config), bool(config.trainer.get("fp16"))
        require_resumable(checkpoint, sharded=sharded, scaled=scaled)
        origin = training_origin(config)
        require_same_training(checkpoint, read_contract(checkpoint), config, origin)
        files.require_whole_log(done)
    if done >= config.training.steps:
        logging.getLogger("isentrope").info("The run has done its %d steps.", done)
        return files.folder
    trainer = _trainer(config, files, progress, checkpoint)
    barrier()
    if rank() == 0:
        files.rewind(done)
        write_bytes(files.folder / CONFIG, resolved(config, provenance=config.provenance))
    barrier()
    return _run(trainer, files, config, checkpoint)


def _sharded(config: TrainConfig) -> bool:
    launched = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    given = any(config.trainer.get(name) for name in ("fsdp", "deepspeed"))
    return given or any(os.environ.get(name, "").lower() in ("1", "true") for name in launched)


def join_processes() -> None:
    """Under torchrun, join the group, by the backend of the device; else nothing."""
    from accelerate import PartialState

    if "WORLD_SIZE" in os.environ:
        PartialState(**({} if torch.cuda.is_available() else {"cpu": True, "backend": "gloo"}))


def _trainer(
    config: TrainConfig, files: RunFiles, progress: Progress, checkpoint: Path | None = None
) -> Any:
    logging.getLogger("isentrope").setLevel(config.output.log_level)
    if "tensorboard" in config.output.report_to:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(files.folder / "tensorboard")
    args = grpo_options(config, files.checkpoints)
    for reason in inert_reasons(config):
        logging.getLogger("isentrope").warning(reason)
    model, tokenizer = load_trainable(**config.model.model_dump(), seed=config.training.seed)
    policy = Policy(model, tokenizer, precision="as_is")
    task = config.data.load_task(
        config.data.dataset_name, config.data.train_split, config.data.dataset_path, tokenizer
    )
    prompts = as_prompts(policy, task.prompts)
    require_room(policy, prompts, config.sampling.max_new_tokens)
    batches = _batches(config, prompts, task)
    contract = _contract(config, policy, prompts, args)
    if checkpoint is not None:
        saved = read_contract(checkpoint)
        require_same_run(saved, contract)
        if "config" not in saved:
            require_same_arguments(checkpoint, args)
    return _assembled(config, files, progress, model, tokenizer, args, batches, contract)


def _batches(config: TrainConfig, prompts: list[Prompt], task: Any) -> UpdateBatches:
    training = config.training
    sampler = PromptSampler(
        [p.key for p in prompts], seed=training.seed, weighting=training.prompt_weighting
    )
    return UpdateBatches(
        prompts,
        task,
        sampler,
        n=training.prompts_per_step,
        group_size=training.group_size,
        max_new_tokens=config.sampling.max_new_tokens,
        advantages=advantages_of(config),
        redraw_limit=training.redraw_limit,
        seed=training.seed,
    )


def _contract(
    config: TrainConfig, policy: Policy, prompts: list[Prompt], args: Any
) -> dict[str, Any]:
    """What every checkpoint of the run says of it."""
    lines = (f"{prompt.key}\t{prompt.token_ids}\t{prompt.reference}\n" for prompt in prompts)
    training = config.training
    return {
        "schema": 1,
        "objective": objective_of(config),
        "plain_objective": plain_objective_of(config),
        "advantages": advantages_of(config),
        "control": contract_entry(config),
        "loss_type": args.loss_type,
        "normaliser": training.normaliser,
        "max_new_tokens": config.sampling.max_new_tokens,
        "eos_token_ids": list(policy.eos_token_ids),
        "temperature": config.sampling.temperature,
        "max_grad_norm": training.max_grad_norm or None,
        "prompts_per_step": training.prompts_per_step,
        "group_size": training.group_size,
        "micro_batch": args.per_device_train_batch_size // training.group_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "world_size": world_size(),
        "seed": training.seed,
        "sampler": "vllm" if args.use_vllm else "transformers",
        "replayable": not balancing_weight(policy.model, vars(args)),
        "base_model": config.model.path,
        "frozen_sha256": frozen_hash(policy.model),
        "trainable": trainable_shapes(policy.model),
        "dataset": config.data.dataset_name,
        "dataset_sha256": sha256(line.encode() for line in lines),
        "environment": environment(),
        "made_from": training_origin(config),
        "config": contract_config(config),
    }


def _assembled(
    config: TrainConfig,
    files: RunFiles,
    progress: Progress,
    model: Any,
    tokenizer: Any,
    args: Any,
    batches: UpdateBatches,
    contract: dict[str, Any],
) -> Any:
    from transformers import PrinterCallback

    from isentrope.training.trainer import EntropyGRPOTrainer

    section, seed, size = config.entropy_probe, config.training.seed, config.sampling.batch_size
    readers = ["the probe"] if section.enabled else []
    readers += [f"control.name={config.control.name}"] if measures(config) else []
    held_out = held_out_prompts(config.data, readers, tokenizer, batches.prompts)
    control = step_control(config.control, held_out, seed=seed, batch_size=size)
    probe = entropy_probe(section, held_out, control, seed=seed)
    alarm = entropy_alarm(config.alarm, probe, section.functional, config.control.name)
    noise = noise_scale(config.noise_scale, model, args, config.training.group_size)
    parts = {"entropy_probe": probe, "alarm": alarm, "noise_scale": noise}
    trainer = EntropyGRPOTrainer(
        model,
        tokenizer,
        args,
        batches,
        files,
        sampling_batch=config.sampling.batch_size,
        longest_normaliser=config.training.normaliser == "longest",
        contract=contract,
        stateful={name: part for name, part in parts.items() if part is not None},
        step_control=control,
        keep=(config.training.keep_last, config.training.keep_every),
        step_log=StepLog(
            files,
            rollouts_every=config.output.rollouts_every,
            observe=progress.training(config.training.steps),
        ),
        control=run_control(config, args, held_out, batches.task),
    )
    if args.use_adaptive_entropy and config.control.name != "none":
        strength = AdaptiveStrength(trainer)
        trainer.add_callback(strength)
        trainer.stateful["control"] = strength
    trainer.remove_callback(PrinterCallback)
    if probe is not None:
        trainer.add_callback(probe)
    if alarm is not None:
        trainer.add_callback(alarm)  # behind the probe, whose readings it watches
        alarm.batch_entropies = lambda: trainer.batch and trainer.batch.rollouts.sampler_entropies
    return trainer


def _run(trainer: Any, files: RunFiles, config: TrainConfig, checkpoint: Path | None) -> Path:
    log = logging.getLogger("isentrope")
    if checkpoint is not None:
        trainer.restore(checkpoint)
        log.info("Resuming from %s.", checkpoint)
    how = f"Resume the run by `isentrope train --resume {files.folder}`."
    try:
        with noted_if_interrupted(lambda: how):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU is full ({error}): lower training.micro_batch (now "
            f"{trainer.contract['micro_batch']} prompt groups per backward pass) or "
            "sampling.batch_size, or set trainer.gradient_checkpointing=true."
        ) from error
    except TrainingDivergedError:
        raise  # a run resumed from the last checkpoint would end the same way
    except Exception:
        if last := files.latest():
            log.warning(
                "The run stopped; nothing before %s is lost. Resume it by `isentrope train "
                "--resume %s`.",
                last,
                files.folder,
            )
        raise
    return files.folder
