"""`isentrope plan`: what the verbs of a configuration take, from its settings and shapes alone.

No weights are loaded and nothing is run. Passes are counted from the settings (`verbs.passes`),
bytes from the shapes of the model (`planning.memory`), and seconds are given only where an earlier
run recorded them (`verbs.recorded_seconds`). Every response is taken to be as long as it may be.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isentrope.checkpoint.find import find_checkpoints
from isentrope.checkpoint.settle import settle
from isentrope.config.io import kind_of, load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import training_device
from isentrope.planning.plan import Plan
from isentrope.system.memory import memory_of
from isentrope.verbs.before_work import counting_of, held_by_verb, shapes_of
from isentrope.verbs.part_memory import plan_verb
from isentrope.verbs.plan_training import plan_steps, untrained
from isentrope.verbs.planned import AFTERWARDS, bytes_of, planned_verbs
from isentrope.verbs.recorded_seconds import seconds_of_verb


def plan(
    config: Any,
    path: str,
    *,
    verbs: Sequence[str] = (),
    memory: str | None = None,
) -> list[Plan]:
    """Plan the verbs of a configuration at its first checkpoint.

    Args:
        config: The configuration.
        path: Where it was read.
        verbs: Verbs to plan; none for all that can be planned.
        memory: Such as "16GB"; None for what is free on the device.

    Returns:
        A plan per verb.

    Raises:
        ValueError: If the configuration is of another kind, a verb is not planned, or the base is
            to be spread.
    """
    kind = kind_of(type(config).model_fields)
    names = planned_verbs(kind, path, verbs, dict(config))
    if isinstance(config, MeasureConfig):
        return _plan_measuring(config, names, memory)
    assert isinstance(config, (TrainConfig, SftConfig))
    return _plan_training(config, path, names, memory)


def _plan_measuring(config: MeasureConfig, verbs: Sequence[str], memory: str | None) -> list[Plan]:
    first = find_checkpoints(config.checkpoint)[0]
    settled = settle(first, config).config
    model = shapes_of(first.path, config.checkpoint, settled)
    device = config.checkpoint.device_map
    size = memory_of(device) if memory is None else bytes_of(memory)
    plans: list[Plan] = []
    for verb in verbs:
        counting = counting_of(verb, settled, model)
        terms = held_by_verb(verb, settled, model, size)
        planned = plan_verb(verb, first.name, first.path, counting, model, terms, size)
        seconds, source = seconds_of_verb(verb, settled, counting, planned.parts, first.path)
        plans.append(replace(planned, seconds=seconds, measured_by=source))
    return plans


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
            counting = counting_of(verb, afterwards, model)
            terms = held_by_verb(verb, afterwards, model, size)
            plans.append(plan_verb(verb, "a checkpoint", None, counting, model, terms, size))
            continue
        plans.append(plan_steps(config, path, verb, model, size, device))
    return plans
