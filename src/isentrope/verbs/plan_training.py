"""What a step of training takes: its passes, and what they hold by shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from isentrope.config.train import ModelConfig, SftConfig, TrainConfig
from isentrope.config.trl import planned_fields
from isentrope.models.architecture import text_config
from isentrope.models.checkpoint import meta_model
from isentrope.models.merged import merged_bytes
from isentrope.models.trainable import TOY, find_model
from isentrope.planning.memory import (
    activation_bytes,
    autocast_copies,
    held_in_training,
    language_model,
    training_logits,
)
from isentrope.planning.plan import ACTIVATIONS, CACHE, MERGED, PassesOver, Plan
from isentrope.sampling.draw import cache_bytes, next_logits
from isentrope.system.memory import libraries_bytes
from isentrope.training.models import build_toy_policy, fresh_adapter
from isentrope.verbs.part_memory import PROMPT, PROMPTS, length_of
from isentrope.verbs.recorded_seconds import seconds_of_training

SMALLER = "trainer.gradient_checkpointing=true, a smaller rank, model.dtype=bfloat16"
"""What makes a training take less, but for smaller micro-batches."""

DEMONSTRATION = 1024
"""Tokens that a demonstration is taken to have where no length is set."""


def plan_steps(
    config: TrainConfig | SftConfig, path: str, verb: str, model: Any, memory: int, device: str
) -> Plan:
    """Plan one step of a training, and the seconds of all where they were measured.

    Args:
        config: Settings of the training.
        path: The file that they are from.
        verb: train or sft.
        model: The model that is trained, on the device meta.
        memory: Bytes that there are.
        device: Where it is trained.

    Returns:
        The plan.
    """
    section = "training"
    length = PROMPTS.format(PROMPT)
    seconds: dict[str, float] = {}
    source = "No time is given: fine-tuning records none."
    if isinstance(config, TrainConfig):
        seconds, source = seconds_of_training(config)
        if not seconds:
            source += (
                f" Two steps measure it: `isentrope train {path} --set training.steps=2 --out NEW`,"
                " then plan with --set output.directory=NEW."
            )
    else:
        section = "fine_tuning"
        tokens = config.fine_tuning.max_length or DEMONSTRATION
        length = f"Demonstrations are taken to have {tokens} tokens."
    reference, *_ = planned_fields(config.trainer)
    return Plan(
        verb,
        config.model.path,
        held_in_training(model, reference),
        libraries_bytes(device),
        memory,
        parts=tuple(training_parts(config, model, device)),
        seconds=seconds,
        measured_by=source,
        assumptions=(
            f"Passes are those of one step, of {getattr(config, section).steps}.",
            length,
            "The probe, a control and the alarm are not counted.",
        ),
        otherwise=SMALLER,
    )


def update_size(config: TrainConfig | SftConfig, model: Any) -> tuple[int, int]:
    """Sequences of a micro-batch of training, and the tokens of each at most."""
    if isinstance(config, SftConfig):
        tuning = config.fine_tuning
        return tuning.micro_batch or tuning.batch_size, tuning.max_length or DEMONSTRATION
    training = config.training
    number = training.micro_batch or training.prompts_per_step * training.group_size
    shapes = text_config(language_model(model))
    return number, length_of(shapes, PROMPT, config.sampling.max_new_tokens)


def training_parts(config: TrainConfig | SftConfig, model: Any, device: str) -> list[PassesOver]:
    """The parts of one step of training, and what they hold above `held_in_training`.

    Args:
        config: Settings of the training.
        model: The model that is trained, on the device meta.
        device: Where.

    Returns:
        Sampling, of `train`, and the update.
    """
    reference, checkpointing, bf16 = planned_fields(config.trainer)
    parts: list[PassesOver] = []
    lm_config = text_config(language_model(model))
    number, length = update_size(config, model)
    if isinstance(config, SftConfig):
        setting = "fine_tuning.micro_batch"
        responses = config.fine_tuning.batch_size
        unit = 1
        batch = "demonstrations"
    else:
        training = config.training
        sampling = config.sampling
        setting = "training.micro_batch"
        responses = training.prompts_per_step * training.group_size
        unit = training.group_size
        batch = "U"
        at_once = sampling.batch_size  # a round of redrawing fills it
        cache_size = cache_bytes(lm_config, at_once, length, model.dtype.itemsize)
        drawing = {
            CACHE: cache_size,
            "logits": next_logits(lm_config, at_once),
            MERGED: merged_bytes(model),
        }
        options = {"memory": drawing, "setting": "sampling.batch_size", "value": at_once}
        parts.append(PassesOver("drawing", "U", responses, "step", **options))
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    memory = {
        ACTIVATIONS: activation_bytes(model, number, length),
        "logits": training_logits(model, number * length, device),
    }
    if bf16 and not checkpointing:
        memory["copies in bfloat16"] = autocast_copies(model)
    forward = 1 + checkpointing + reference
    options = {"memory": memory, "setting": setting, "value": number, "unit": unit}
    parts.append(
        PassesOver("update", batch, responses, "step", forward=forward, backward=1, **options)
    )
    return parts


def untrained(section: ModelConfig) -> Any:
    """The model that a run trains, without weights, with its trainable set.

    Returns:
        It, on the device meta.

    Raises:
        FileNotFoundError: If there is no such model.
    """
    if section.path == TOY:
        return build_toy_policy(0).model.to("meta")
    folder = Path(section.path).expanduser()
    try:
        source = str(folder) if (folder / "config.json").is_file() else find_model(section.path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} Before it is made, plan with --set model.path= and the model that it is to "
            "be made from."
        ) from error
    model = meta_model(source, allow_hub=section.allow_hub, dtype=getattr(torch, section.dtype))
    if not section.lora_rank or hasattr(model, "peft_config"):
        return model
    with torch.device("meta"):
        return fresh_adapter(
            model, section.lora_rank, section.lora_alpha, section.lora_target_modules
        )
