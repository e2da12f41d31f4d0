"""`isentrope plan`: what the verbs of a configuration take, before any of them runs.

Every response is taken to be as long as it may be. The verb itself is run on small shares of its
batches (`verbs.dry_run`); where that cannot be, what it holds without any pass is all that is said.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.planning.plan import (
    DoesNotFitError,
    Plan,
    Shapes,
    bytes_of,
    gigabytes,
    held,
    libraries_bytes,
    memory_of,
    shapes_of,
)
from isentrope.results.verbs import MEASURE, VERBS
from isentrope.runs.checkpoints import find_checkpoints
from isentrope.runs.study import plan_study
from isentrope.verbs.dry_run import stages_of
from isentrope.verbs.kinds import load_any

log = logging.getLogger("isentrope")

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
    if not isinstance(config, MeasureConfig):
        raise ValueError(f"{path} measures nothing, and isentrope plan plans what measures.")
    if other := [verb for verb in verbs if verb not in PLANNED]:
        raise ValueError(f"{path} is for {', '.join(PLANNED)}, not for {other[0]}.")
    where = config.checkpoint
    if where.shard_base:
        raise ValueError(
            "checkpoint.shard_base spreads the base over several processes, and a plan runs in "
            "one: plan with checkpoint.shard_base=false, and take off what the others hold."
        )
    first = find_checkpoints(where)[0]
    shapes = _shapes(first.path, where)
    size = memory_of(where.device_map) if memory is None else bytes_of(memory)
    plans = [_least(verb, first.name, config, shapes, size) for verb in verbs or PLANNED]
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
        terms = ", ".join(f"{name} {gigabytes(size)}" for name, size in found.held.items())
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {least} at least ({terms}), and {free} are "
            "free. isentrope plan names the smallest change that would fit."
        )
