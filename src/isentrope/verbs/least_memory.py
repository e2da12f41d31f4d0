"""What a verb holds without any pass, by shapes: it is sure to take more.

A verb that does not fit is refused before its work.
"""

from pathlib import Path
from typing import Any

import torch

from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.models.checkpoint import meta_model
from isentrope.models.float_types import DTYPES
from isentrope.planning.memory import SIZES, held, trainable_parameters
from isentrope.planning.plan import DoesNotFitError
from isentrope.results.verbs import VERBS
from isentrope.system.formatting import gigabytes, sizes_in_words
from isentrope.system.log import log
from isentrope.system.memory import libraries_bytes, memory_of
from isentrope.verbs.passes import COUNTED, Counting, batches_of


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
    if verb not in COUNTED or where.quantization != "none" or where.shard_base:
        return
    try:
        model = shapes_of(path, where, config)
        free = memory_of(where.device_map)
        terms = held_by_verb(verb, config, model, free)
    except (ValueError, OSError, RuntimeError, TypeError, AttributeError) as error:
        log.debug("%s: no plan, %s", name, error)  # loading it says what is wrong, if anything is
        return
    least = sum(terms.values()) + libraries_bytes(where.device_map)
    log.info(
        "%s of %s holds %s at least, and %s are free; isentrope plan says what its passes take",
        verb,
        name,
        gigabytes(least),
        gigabytes(free),
    )
    if least > free:
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {gigabytes(least)} at least "
            f"({sizes_in_words(terms)}), and {gigabytes(free)} are free. isentrope plan names the "
            "smallest change that would fit."
        )


def shapes_of(path: Path, where: CheckpointConfig, config: MeasureConfig) -> Any:
    """The model of a checkpoint without weights, in the type of the measurement."""
    return meta_model(
        path,
        base_model=where.base_model,
        allow_hub=where.allow_hub,
        trainable_patterns=where.trainable,
        dtype=DTYPES.get(config.precision.measuring.runtime_dtype, torch.float32),
    )


def counting_of(verb: str, config: MeasureConfig, model: Any) -> Counting:
    """What the passes of a verb are counted from."""
    element = SIZES.get(config.precision.measuring.runtime_dtype, 4)
    return Counting(config, batches_of(verb, config), trainable_parameters(model), element)


def held_by_verb(verb: str, config: MeasureConfig, model: Any, memory: int) -> dict[str, int]:
    """Bytes that a verb holds without any pass, by what they are."""
    precision = config.precision.measuring
    stored = VERBS[verb].gradients
    if not stored:
        return held(model, precision, Storage())
    counting = counting_of(verb, config, model)
    batches = counting.batches
    kernel = config.fisher_kernel
    groups = 0
    sides: list[tuple[int, int | None]] = []
    if stored == "groups":
        tokens = config.analysis.tokens or verb == "audit"
        quantities = 1 + (config.analysis.reward and verb != "audit")
        groups = counting.groups(tokens=tokens) * quantities
    elif stored == "prompts":
        groups = counting.groups(tokens=False)
        sides = [(batches["U"].prompts, None)]
    elif stored == "blocks":
        for rows, columns in kernel.blocks:
            if rows in batches:  # else the verb says what is missing
                right = None if rows == columns else batches[columns].responses
                sides.append((batches[rows].responses, right))
    on_gpu = config.checkpoint.device_map != "cpu"
    storage = kernel.held.within(memory) if on_gpu else kernel.held
    return held(model, precision, storage, groups, sides)
