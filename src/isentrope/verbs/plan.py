"""`isentrope plan`: what the verbs of a configuration take, from its settings and shapes alone.

No weights are loaded and nothing is run. Passes are counted from the settings (`verbs.passes`),
bytes from the shapes of the model (`planning.memory`), and seconds are given only where an earlier
run recorded them (`verbs.recorded_seconds`). Every response is taken to be as long as it may be.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isentrope.checkpoint.find import find_checkpoints
from isentrope.checkpoint.settle import settle
from isentrope.config.io import kind_of, load_any, load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import training_device
from isentrope.planning.memory import language_model
from isentrope.planning.plan import Plan
from isentrope.planning.room import bytes_of
from isentrope.policy.scoring import tokens_in
from isentrope.results.verbs import INFLUENCE, MEASURE, VERBS
from isentrope.system.memory import libraries_bytes, memory_of
from isentrope.verbs.least_memory import counting_of, held_by_verb, shapes_of
from isentrope.verbs.part_memory import (
    PROMPT,
    PROMPTS,
    PROMPTS_READ,
    RESIDENT,
    Holding,
    longest_prompt,
)
from isentrope.verbs.passes import COUNTED, count_passes
from isentrope.verbs.plan_training import plan_steps, untrained
from isentrope.verbs.recorded_seconds import seconds_of_verb

AFTERWARDS = (MEASURE.name, INFLUENCE.name)
"""Verbs that are planned for the checkpoints of a training that has none yet."""


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
        verbs: Verbs to plan; none for all that can be planned.
        memory: Such as "16GB"; None for what is free on the device.

    Returns:
        A plan per verb.

    Raises:
        ValueError: If the configuration is of another kind, a verb is not planned, or the base is
            to be spread.
    """
    config = load_any(path, settings)
    kind = kind_of(type(config).model_fields)
    if kind == "evaluate":
        raise ValueError(f"{path} evaluates, and isentrope plan plans what measures or trains.")
    planned = {MEASURE.name: COUNTED, "train": (kind, *AFTERWARDS)}.get(kind, (kind,))
    if other := [verb for verb in verbs if verb not in planned]:
        raise ValueError(f"{path} is for {', '.join(planned)}, not for {other[0]}.")
    section = "checkpoint" if isinstance(config, MeasureConfig) else "model"
    if getattr(config, section).shard_base:
        raise ValueError(
            f"{section}.shard_base spreads the base over several processes, and a plan is of one: "
            "plan with it false, and take off what the others hold."
        )
    if isinstance(config, MeasureConfig):
        return _plan_measuring(config, verbs or planned, memory)
    assert isinstance(config, (TrainConfig, SftConfig))
    return _plan_training(config, path, verbs or planned, memory)


def _plan_measuring(config: MeasureConfig, verbs: Sequence[str], memory: str | None) -> list[Plan]:
    first = find_checkpoints(config.checkpoint)[0]
    settled = settle(first, config).config
    model = shapes_of(first.path, config.checkpoint, settled)
    device = config.checkpoint.device_map
    size = memory_of(device) if memory is None else bytes_of(memory)
    return [_plan_verb(verb, first.name, first.path, settled, model, size) for verb in verbs]


def _plan_verb(
    verb: str, name: str, folder: Path | None, config: MeasureConfig, model: Any, memory: int
) -> Plan:
    """Plan a measuring verb at a checkpoint; None for one that is not there yet."""
    counting = counting_of(verb, config, model)
    prompt = longest_prompt(config.batch_config, folder) if folder is not None else None
    precision = config.precision.measuring
    sampling = config.sampling
    kept = RESIDENT
    if config.checkpoint.device_map != "cpu":
        kept = 1.0
        loaded = 4 * sum(p.numel() for p in model.parameters())
        half = (memory - libraries_bytes(config.checkpoint.device_map) - loaded) // 2
        fitting = tokens_in(half, model, language_model(model).get_output_embeddings())
        sampling = sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, fitting)})
    holding = Holding(sampling, precision, model, prompt or PROMPT)
    parts = tuple(holding.of_part(part).times(kept) for part in count_passes(verb, counting))
    seconds: dict[str, float] = {}
    source = "No time is given: there is no checkpoint yet."
    if folder is not None:
        seconds, source = seconds_of_verb(verb, config, counting, parts, folder)
    device = config.checkpoint.device_map
    return Plan(
        verb,
        name,
        held_by_verb(verb, config, model, memory),
        libraries_bytes(device),
        memory,
        batches=tuple(counting.batches.values()),
        parts=parts,
        seconds=seconds,
        measured_by=source,
        assumptions=tuple(_state_assumptions(verb, config, prompt, holding.length)),
    )


def _plan_training(
    config: TrainConfig | SftConfig, path: str, verbs: Sequence[str], memory: str | None
) -> list[Plan]:
    """Plan a training, and what measures its checkpoints in float32."""
    # a size is given for another machine, and trainings are planned for GPUs
    device = training_device(config.trainer, has_gpu=None if memory is None else True)
    size = memory_of(device) if memory is None else bytes_of(memory)
    model = untrained(config.model)
    afterwards = load_config(
        {
            "checkpoint": {"checkpoint_path": ".", "device_map": device},
            "precision": {"runtime_dtype": "float32"},
        }
    )
    plans: list[Plan] = []
    for verb in verbs:
        if verb in AFTERWARDS:
            plans.append(_plan_verb(verb, "a checkpoint", None, afterwards, model, size))
            continue
        plans.append(plan_steps(config, path, verb, model, size))
    return plans


def _state_assumptions(
    verb: str, config: MeasureConfig, prompt: int | None, length: int
) -> list[str]:
    """What is assumed of a verb, and what is not counted."""
    data = config.batch_config
    kernel = config.fisher_kernel
    analysis = config.analysis
    response = config.sampling.max_new_tokens
    longest = PROMPTS.format(PROMPT)
    if prompt is not None:
        longest = (
            f"Prompts have {prompt} tokens, the most of the first {PROMPTS_READ} of their file; "
            "responses are taken to be as long as they may be."
        )
    if length < (prompt or PROMPT) + response:
        longest = f"Sequences are taken to fill the context of the model, {length} tokens."
    left_out = {
        f"U may be drawn again, up to batch_config.redraw_limit={data.redraw_limit} times.": (
            data.U_file is None and data.redraw_limit
        ),
        "Fresh responses of estimator.resample_collapsed are not counted.": (
            verb == "measure" and config.estimator.resample_collapsed
        ),
        "The rounding floor may take its passes five times in float64.": (
            verb == "measure" and config.precision.measuring.runtime_dtype == "float64"
        ),
        "fisher_kernel.memory_gb cuts gradients into tiles, whose passes are counted once.": (
            kernel.memory_gb is not None and VERBS[verb].gradients is not None
        ),
        "K2 (fisher_kernel.second_order) is not counted.": verb == "kernel" and kernel.second_order,
        "The supervised loss is not counted.": verb == "noise" and analysis.supervised,
        "The base is quantised: its weights are counted as if they were not.": (
            config.checkpoint.quantization != "none"
        ),
        "Gradients one by one take a pass for each response.": analysis.gradient_backend == "loop",
    }
    return [longest, *(words for words, holds in left_out.items() if holds)]
