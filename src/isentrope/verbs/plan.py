"""`isentrope plan`: what the verbs of a configuration take, before any of them runs.

Every response is taken to be as long as it may be. A measuring verb is run on small shares of its
batches (`verbs.dry_run`); where that cannot be, what is held by shapes alone is all that is said.
A training is planned by shapes alone (`planning.memory`).
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from isentrope.checkpoint.find import find_checkpoints
from isentrope.config.io import load_config
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.config.train import ModelConfig, SftConfig, TrainConfig
from isentrope.config.trl import planned_fields, training_device
from isentrope.planning.memory import cache_bytes, held_in_training, pass_bytes
from isentrope.planning.plan import (
    DoesNotFitError,
    Plan,
    Stage,
    bytes_of,
    held,
    libraries_bytes,
    memory_of,
    meta_model,
)
from isentrope.results.verbs import INFLUENCE, MEASURE, VERBS
from isentrope.run.study import study_items
from isentrope.system.formatting import gigabytes, sizes_in_words
from isentrope.training.models import TOY, build_toy_policy, find_model, fresh_adapter
from isentrope.verbs.dry_run import stages_of
from isentrope.verbs.kinds import kind_of, load_any

log = logging.getLogger("isentrope")

AFTERWARDS = (MEASURE.name, INFLUENCE.name)
"""Verbs that are planned for the checkpoints of a training that has none yet."""

NOT_ALL = "This is not all: no pass is in it, since"
NO_CHECKPOINT = (
    f"{NOT_ALL} there is no checkpoint yet, and batches and groups are taken to be the defaults."
)
TWO_STEPS = (
    "Memory is by shapes alone, and no time is given. Two steps show the time: "
    "`isentrope {verb} {path} --set {section}.steps=2 --out NEW`."
)

PROMPT, DEMONSTRATION = 256, 1024
"""Tokens of a prompt, and of a demonstration, that are not read."""

SMALLER = "trainer.gradient_checkpointing=true, a smaller rank, model.dtype=bfloat16"
"""What makes a training take less, but for smaller micro-batches."""

GROUPS = 8
"""Error groups of influence, at least, unless the configuration asks for others."""

PLANNED = tuple(verb.name for verb in VERBS.values() if verb.planned)


def plan(
    path: str,
    settings: Sequence[str] = (),
    *,
    verbs: Sequence[str] = (),
    memory: str | None = None,
) -> list[Plan]:
    """Plan the verbs of a configuration at its first checkpoint.

    Args:
        path: The configuration.
        settings: Overrides, "section.key=value".
        verbs: Which; none for all that can be planned.
        memory: Such as "16GB"; None for what is free on the device.

    Returns:
        A plan a verb.

    Raises:
        ValueError: If the configuration is of another kind, a verb is not planned, or the base is
            to be spread.
    """
    config = load_any(path, settings)
    own = kind_of(type(config).model_fields)
    if own == "evaluate":
        raise ValueError(f"{path} evaluates, and isentrope plan plans what measures or trains.")
    known = {MEASURE.name: PLANNED, "train": (own, *AFTERWARDS)}.get(own, (own,))
    if other := [verb for verb in verbs if verb not in known]:
        raise ValueError(f"{path} is for {', '.join(known)}, not for {other[0]}.")
    name = "checkpoint" if isinstance(config, MeasureConfig) else "model"
    if getattr(config, name).shard_base:
        raise ValueError(
            f"{name}.shard_base spreads the base over several processes, and a plan runs in one: "
            "plan with it false, and take off what the others hold."
        )
    if isinstance(config, MeasureConfig):
        return _measuring(config, verbs or known, memory)
    assert isinstance(config, (TrainConfig, SftConfig))
    return _training(config, path, verbs or known, memory)


def _measuring(config: MeasureConfig, verbs: Sequence[str], memory: str | None) -> list[Plan]:
    where = config.checkpoint
    first = find_checkpoints(where)[0]
    model, present = _without_weights(first.path, where)
    size = memory_of(where.device_map) if memory is None else bytes_of(memory)
    plans = [_least(verb, first.name, config, model, size) for verb in verbs]
    obstacles = {
        "the weights are not on this machine": not present,
        "a quantised base is not run": where.quantization != "none",
        "there is no CUDA device here": where.device_map.startswith("cuda")
        and not torch.cuda.is_available(),
        "the weights are larger than this machine's memory": plans[0].held["weights"]
        > memory_of(where.device_map),
    }
    if reason := next((reason for reason, holds in obstacles.items() if holds), None):
        return [replace(p, not_run=f"{NOT_ALL} {reason}.") for p in plans]
    if not all(found.fits for found in plans):
        return plans
    with tempfile.TemporaryDirectory() as place:
        item = study_items(MEASURE.name, config, Path(place))[0]
        return stages_of(plans, item.checkpoint, item.settings, Path(place))


def _without_weights(path: Path, where: CheckpointConfig) -> tuple[Any, bool]:
    return meta_model(
        path,
        base_model=where.base_model,
        allow_hub=where.allow_hub,
        trainable_patterns=where.trainable,
    )


def _least(verb: str, name: str, config: MeasureConfig, model: Any, memory: int) -> Plan:
    """What a verb holds without any pass: it is sure to take more."""
    data, analysis, kernel = config.batch_config, config.analysis, config.fisher_kernel
    stored, groups, sides = VERBS[verb].gradients, 0, list[tuple[int, int | None]]()
    if stored in ("groups", "prompts"):
        groups = (analysis.groups or min(GROUPS, data.B_E)) * (1 + analysis.reward)
    if stored == "prompts":
        sides = [(data.B_U, None)]
    elif stored == "blocks":
        u, e = data.B_U * data.G, data.B_E * data.G_E
        of = {"UU": (u, None), "EE": (e, None), "EU": (e, u), "FU": (data.B_U, u)}
        sides = [of[block] for block in kernel.blocks]
    on_gpu = config.checkpoint.device_map != "cpu"
    storage = kernel.held.within(memory) if on_gpu else kernel.held
    terms = held(model, config.precision.measuring, storage, groups, sides)
    return Plan(verb, name, terms, libraries_bytes(config.checkpoint.device_map), memory)


def _training(
    config: TrainConfig | SftConfig, path: str, verbs: Sequence[str], memory: str | None
) -> list[Plan]:
    """Plan a training by shapes, and what measures its checkpoints in float32."""
    device = training_device(config.trainer)
    size = memory_of(device) if memory is None else bytes_of(memory)
    model = untrained(config.model)
    reference, checkpointing, bf16 = planned_fields(config.trainer)
    afterwards = load_config(
        {
            "checkpoint": {"checkpoint_path": ".", "device_map": device},
            "precision": {"runtime_dtype": "float32"},
        }
    )
    plans = []
    for verb in verbs:
        if verb in AFTERWARDS:
            found = _least(verb, "a checkpoint", afterwards, model, size)
            plans.append(replace(found, not_run=NO_CHECKPOINT))
            continue
        terms, stages = held_in_training(model, reference), []
        fixed = sum(terms.values())
        if isinstance(config, SftConfig):
            tuning = config.fine_tuning
            section, number = "fine_tuning", tuning.micro_batch or tuning.batch_size
            shape = number, tuning.max_length or DEMONSTRATION
        else:
            training, sampling = config.training, config.sampling
            section, number = "training", training.micro_batch or training.prompts_per_step
            shape = number * training.group_size, PROMPT + sampling.max_new_tokens
            at_once = min(sampling.batch_size, training.prompts_per_step * training.group_size)
            cache = cache_bytes(model.config, at_once, shape[1], model.dtype.itemsize)
            stages = [Stage("sampling", None, fixed + cache, fixed, "sampling.batch_size", at_once)]
        most = pass_bytes(model, *shape, checkpointing, bf16)
        stages.append(Stage("update", None, fixed + most, fixed, f"{section}.micro_batch", number))
        plans.append(
            Plan(
                verb,
                config.model.path,
                terms,
                libraries_bytes(device),
                size,
                tuple(stages),
                not_run=TWO_STEPS.format(verb=verb, path=path, section=section),
                otherwise=SMALLER,
            )
        )
    return plans


def untrained(where: ModelConfig) -> Any:
    """The model that a run trains, without weights, with its trainable set.

    Returns:
        It, on the device meta.

    Raises:
        FileNotFoundError: If there is no such model.
    """
    if where.path == TOY:
        return build_toy_policy(0).model.to("meta")
    folder = Path(where.path).expanduser()
    try:
        source = str(folder) if (folder / "config.json").is_file() else find_model(where.path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} Before it is made, plan with --set model.path= and the model that it is to "
            "be made from."
        ) from error
    model, _ = meta_model(source, allow_hub=where.allow_hub, dtype=getattr(torch, where.dtype))
    if not where.lora_rank or hasattr(model, "peft_config"):
        return model
    with torch.device("meta"):
        return fresh_adapter(model, where.lora_rank, where.lora_alpha, where.lora_target_modules)


def require_memory(verb: str, name: str, path: Path, config: MeasureConfig) -> None:
    """Say what a verb holds at least, and refuse what is sure not to fit, before any work.

    Args:
        verb: Its name.
        name: Of the checkpoint.
        path: Its folder.
        config: What is asked.

    Raises:
        DoesNotFitError: If what is held without any pass is more than the memory.
    """
    where = config.checkpoint
    if verb not in PLANNED or where.quantization != "none" or where.shard_base:
        return
    try:
        model, _ = _without_weights(path, where)
    except (ValueError, OSError, RuntimeError, TypeError, AttributeError) as error:
        log.debug("%s: no plan, %s", name, error)  # loading it says what is wrong, if anything is
        return
    found = _least(verb, name, config, model, memory_of(where.device_map))
    least, free = gigabytes(found.peak), gigabytes(found.memory)
    log.info(
        "%s of %s holds %s at least, and %s are free; isentrope plan says what its passes take",
        verb,
        name,
        least,
        free,
    )
    if not found.fits:
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {least} at least "
            f"({sizes_in_words(found.held)}), and {free} are free. isentrope plan "
            "names the smallest change that would fit."
        )
