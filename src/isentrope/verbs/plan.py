"""`isentrope plan`: what the verbs of a configuration take, before any of them runs.

Every response is taken to be as long as it may be. The verb itself is run on small shares of its
batches (`verbs.dry_run`), a training for two steps of one micro-batch (`verbs.dry_training`);
where that cannot be, what is held by shapes alone is all that is said.
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from isentrope.config.analysis import ControlConfig
from isentrope.config.io import load_config
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import planned_fields, sft_options, shards_weights
from isentrope.planning.plan import (
    DoesNotFitError,
    Plan,
    Shapes,
    Stage,
    bytes_of,
    held,
    libraries_bytes,
    memory_of,
    shapes_of,
)
from isentrope.planning.training_memory import cache_bytes, held_in_training, pass_bytes
from isentrope.results.verbs import INFLUENCE, MEASURE, VERBS
from isentrope.runs.checkpoints import find_checkpoints
from isentrope.runs.study import plan_study
from isentrope.system.formatting import gigabytes, sizes_in_words
from isentrope.system.memory import is_lack_of_memory
from isentrope.system.progress import Clock
from isentrope.training.run_files import RunFiles
from isentrope.verbs.dry_run import stages_of
from isentrope.verbs.kinds import kind_of, load_any

log = logging.getLogger("isentrope")

AFTERWARDS = (MEASURE.name, INFLUENCE.name)
"""Verbs that are planned for the checkpoints of a training that has none yet."""

NO_CHECKPOINT = "there is no checkpoint yet, and batches and groups are taken to be the defaults"

PROMPT, DEMONSTRATION = 256, 1024
"""Tokens of a prompt, and of a demonstration, where they are not read."""

SMALLER = "trainer.gradient_checkpointing=true, a smaller rank, model.dtype=bfloat16"
"""What makes a training take less, but for smaller micro-batches."""

LARGEST = 500_000_000
"""Parameters of a model that is trained for two steps on a CPU, at most."""

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
    training = isinstance(config, (TrainConfig, SftConfig))
    if not (training or isinstance(config, MeasureConfig)):
        raise ValueError(f"{path} evaluates, and isentrope plan plans what measures or trains.")
    own = kind_of(type(config).model_fields)
    known = PLANNED if not training else (own, *AFTERWARDS) if own == "train" else (own,)
    if other := [verb for verb in verbs if verb not in known]:
        raise ValueError(f"{path} is for {', '.join(known)}, not for {other[0]}.")
    section = config.model if training else config.checkpoint
    if section.shard_base:
        raise ValueError(
            f"{'model' if training else 'checkpoint'}.shard_base spreads the base over several "
            "processes, and a plan runs in one: plan with it false, and take off what the others "
            "hold."
        )
    if training:
        return _training(config, verbs or known, memory)
    return _measuring(config, verbs or PLANNED, memory)


def _measuring(config: MeasureConfig, verbs: Sequence[str], memory: str | None) -> list[Plan]:
    where = config.checkpoint
    first = find_checkpoints(where)[0]
    shapes = _shapes(first.path, where)
    size = memory_of(where.device_map) if memory is None else bytes_of(memory)
    plans = [_least(verb, first.name, config, shapes, size) for verb in verbs]
    if reason := _obstacle(where, shapes):
        return [replace(p, not_run=reason) for p in plans]
    if not all(found.fits for found in plans):
        return plans
    with tempfile.TemporaryDirectory() as place:
        item = plan_study(MEASURE.name, config, Path(place)).items[0]
        return stages_of(plans, item.config, item.subject, Path(place))


def _least(verb: str, name: str, config: MeasureConfig, shapes: Shapes, memory: int) -> Plan:
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
    terms = held(shapes, config.precision.measuring, storage, groups, sides)
    return Plan(verb, name, terms, libraries_bytes(config.checkpoint.device_map), memory)


def _training(
    config: TrainConfig | SftConfig, verbs: Sequence[str], memory: str | None
) -> list[Plan]:
    """Plan a training, and what measures its checkpoints in float32."""
    from isentrope.verbs.dry_training import untrained

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = memory_of(device) if memory is None else bytes_of(memory)
    model, present = untrained(config.model)
    shapes = Shapes.of(model, present)
    afterwards = load_config(
        {
            "checkpoint": {"checkpoint_path": ".", "device_map": device},
            "precision": {"runtime_dtype": "float32"},
        }
    )
    plans, name = [], config.model.path
    if isinstance(config, TrainConfig) and config.control.name == "budget":
        name += ", without control.name=budget"
        config = config.model_copy(update={"control": ControlConfig()})
    for verb in verbs:
        if verb in AFTERWARDS:
            found = _least(verb, "a checkpoint", afterwards, shapes, size)
            plans.append(replace(found, not_run=NO_CHECKPOINT))
            continue
        terms = held_in_training(model, planned_fields(config.trainer).reference)
        found = Plan(verb, name, terms, libraries_bytes(device), size, otherwise=SMALLER)
        if not (reason := _why_no_step(config, shapes, found.peak)) and found.fits:
            try:
                found = replace(found, stages=tuple(_two_steps(config)))
            except (RuntimeError, MemoryError) as error:
                if not is_lack_of_memory(error):
                    raise
                reason = "this machine's memory was full in its dry run"
        if reason:
            stages = _by_shapes(config, model, sum(terms.values()))
            found = replace(found, stages=tuple(stages), not_run=reason)
        plans.append(found)
    return plans


def _why_no_step(config: TrainConfig | SftConfig, shapes: Shapes, least: int) -> str | None:
    """Why no step can be taken here."""
    reasons = {
        "the weights are not on this machine": not shapes.present,
        "the weights are to be sharded": shards_weights(config.trainer),
        "vLLM is to sample": planned_fields(config.trainer).vllm,
        "there is no GPU here, and the model is too large to be tried on a CPU": not (
            torch.cuda.is_available() or shapes.parameters <= LARGEST
        ),
        "it holds more than this machine has": least > memory_of("cuda"),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _by_shapes(config: TrainConfig | SftConfig, model: Any, fixed: int) -> list[Stage]:
    """The stages of a training by shapes, above what is held; of no time."""
    fields = planned_fields(config.trainer)
    stages = []
    if isinstance(config, SftConfig):
        tuning = config.fine_tuning
        setting, number = "fine_tuning.micro_batch", tuning.micro_batch or tuning.batch_size
        shape = number, tuning.max_length or DEMONSTRATION
    else:
        training, sampling = config.training, config.sampling
        setting, number = "training.micro_batch", training.micro_batch or training.prompts_per_step
        shape = number * training.group_size, PROMPT + sampling.max_new_tokens
        at_once = min(sampling.batch_size, training.prompts_per_step * training.group_size)
        size = model.dtype.itemsize
        cache = cache_bytes(model.config, at_once, shape[1], size)
        stages.append(Stage("sampling", None, fixed + cache, fixed, "sampling.batch_size", at_once))
    most = pass_bytes(model.to("meta"), *shape, fields.checkpointing, fields.bf16)
    return [*stages, Stage("update", None, fixed + most, fixed, setting, number)]


def _two_steps(config: TrainConfig | SftConfig) -> list[Stage]:
    """The stages of a training, from two steps of one micro-batch."""
    from isentrope.verbs import dry_training as dry
    from isentrope.verbs.prepare_training import prepare_training

    with tempfile.TemporaryDirectory() as place:
        files, loading = RunFiles(place), Clock()
        output = {"directory": place, "report_to": (), "log_level": "ERROR"}
        config = config.model_copy(update={"output": config.output.model_copy(update=output)})
        with loading.stage("load"):
            if isinstance(config, TrainConfig):
                uses = planned_fields(config.trainer).uses
                small, counts = dry.small_training(config.training, config.entropy_probe, uses)
                trainer = prepare_training(config.model_copy(update=small), files)
                dry.draw_at_random(trainer)
            else:
                small, counts = dry.small_tuning(config.fine_tuning)
                options = sft_options(config.model_copy(update=small), files.folder)
                trainer, longer = dry.tuning_trainer(
                    config.model, config.data, small["fine_tuning"], options
                )
                counts = replace(counts, longer=longer)
        stages = [dry.loaded(trainer, loading.seconds["load"])]
        if isinstance(config, TrainConfig):
            stages.append(dry.decoding(trainer, config.sampling.batch_size, counts))
        return [*stages, *dry.stages_of_training(trainer, counts)]


def _obstacle(where: CheckpointConfig, shapes: Shapes) -> str | None:
    """Why nothing can be run here."""
    reasons = {
        "the weights are not on this machine": not shapes.present,
        "a quantised base is not run": where.quantization != "none",
        "there is no CUDA device here": where.device_map.startswith("cuda")
        and not torch.cuda.is_available(),
        "the weights are larger than this machine's memory": 4 * shapes.parameters
        > memory_of(where.device_map),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _shapes(path: Path, where: CheckpointConfig) -> Shapes:
    return shapes_of(
        path,
        base_model=where.base_model,
        allow_hub=where.allow_hub,
        trainable_patterns=where.trainable,
    )


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
        shapes = _shapes(path, where)
    except (ValueError, OSError, RuntimeError, TypeError, AttributeError) as error:
        log.debug("%s: no plan, %s", name, error)  # loading it says what is wrong, if anything is
        return
    found = _least(verb, name, config, shapes, memory_of(where.device_map))
    least, free = gigabytes(found.peak), gigabytes(found.memory)
    log.info(
        "%s of %s holds %s at least, and %s are free; isentrope plan says what its passes take",
        *(verb, name, least, free),
    )
    if not found.fits:
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {least} at least "
            f"({sizes_in_words(found.held)}), and {free} are free. isentrope plan "
            "names the smallest change that would fit."
        )
