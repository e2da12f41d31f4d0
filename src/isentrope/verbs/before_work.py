"""What a verb will hold against the memory that there is, said before its work.

What is held without any pass is sure, and refused where it is more. What passes hold on top is
about the most that they take (`verbs.plan`): where that is too much, a warning names the change
that would fit. Where even a coarse count of them fits, the dry run of a plan is left out.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import CheckpointConfig, MeasureConfig, PolicyConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.models.architecture import text_config
from isentrope.models.checkpoint import meta_model
from isentrope.models.float_types import DTYPES
from isentrope.planning.logits import MOST_ARRAYS
from isentrope.planning.memory import (
    FOLDED,
    SIZES,
    TILE,
    held,
    held_in_training,
    trainable_parameters,
    weights_held,
)
from isentrope.planning.plan import DoesNotFitError, PassesOver, Plan
from isentrope.policy.token_statistics import LOGITS_HELD, LOGITS_OF_A_CARD
from isentrope.results.verbs import COUNTED, VERBS
from isentrope.system.formatting import gigabytes, sizes_in_words
from isentrope.system.log import log
from isentrope.system.memory import libraries_bytes, memory_of
from isentrope.system.processes import world_size
from isentrope.verbs.part_memory import PROMPT, RESIDENT, Holding, plan_verb
from isentrope.verbs.passes import Counting, batches_of

COARSE = 4
"""Numbers that passes hold at most for each input and output of a linear layer and for each score
of attention: the dry run of 24 layers counts one, and a heap as much again."""

_NO_SHAPES = (ValueError, OSError, RuntimeError, TypeError, AttributeError)
"""Of a checkpoint whose shapes cannot be read: loading it says what is wrong, if anything is."""


def require_memory(verb: str, name: str, path: Path, config: MeasureConfig) -> None:
    """Say what a measuring verb holds, refuse what is sure not to fit, and warn of the rest.

    Args:
        verb: Its name.
        name: Of the checkpoint.
        path: Its folder.
        config: What is asked.

    Raises:
        DoesNotFitError: If what is held without any pass is more than the memory.
    """
    section = config.checkpoint
    if verb not in COUNTED or section.quantization != "none" or section.shard_base:
        return
    try:
        model = shapes_of(path, section, config)
        memory = memory_of(section.device_map)
        terms = held_by_verb(verb, config, model, memory)
    except _NO_SHAPES as error:
        log.debug("%s: no plan, %s", name, error)
        return
    room = _require_least(verb, name, terms, memory, libraries_bytes(section.device_map))
    sampling = config.sampling
    size = SIZES.get(config.precision.measuring.runtime_dtype, 4)
    longest = PROMPT + sampling.max_new_tokens
    tokens = sampling.most_tokens(on_card=section.device_map != "cpu")
    if coarse_bytes(model, tokens, longest, size, section.device_map) > room:
        counting = counting_of(verb, config, model)
        _warn(plan_verb(verb, name, path, counting, model, terms, memory))


def require_memory_to_evaluate(name: str, path: Path, config: EvaluateConfig) -> None:
    """The same of an evaluation, whose responses are drawn and scored here.

    Args:
        name: Of the checkpoint.
        path: Its folder.
        config: What is asked.

    Raises:
        DoesNotFitError: If the weights are more than the memory.
    """
    section: PolicyConfig = config.checkpoint
    sampling = config.sampling
    if section.quantization != "none" or section.shard_base or sampling.engine == "vllm":
        return
    precision = config.precision.measuring
    dtype = DTYPES.get(precision.runtime_dtype, torch.float32)
    try:
        model = meta_model(
            path, base_model=section.base_model, allow_hub=section.allow_hub, dtype=dtype
        )
    except _NO_SHAPES as error:
        log.debug("%s: no plan, %s", name, error)
        return
    device = section.device_map
    memory = memory_of(device)
    libraries = libraries_bytes(device)
    terms = weights_held(model, precision)
    room = _require_least("evaluate", name, terms, memory, libraries)
    holding = Holding(sampling, precision, model, None if device == "cpu" else memory)
    responses = config.evaluation.chunk_prompts * max(config.evaluation.samples.values())
    share = RESIDENT if device == "cpu" else 1.0
    drawing = PassesOver("drawing", "E", responses, "evaluate")
    max_tokens = sampling.most_tokens(on_card=device != "cpu")
    tokens = min(max_tokens, responses * holding.length)
    coarse = coarse_bytes(model, tokens, holding.length, model.dtype.itemsize, device)
    coarse += int(share * holding.of_part(drawing).bytes)
    if coarse > room:
        scoring = PassesOver("scores", "E", responses, "evaluate", forward=1)
        parts = [holding.of_part(part).times(share) for part in (drawing, scoring)]
        _warn(Plan("evaluate", name, terms, libraries, memory, parts=tuple(parts)))


def warn_of_training(config: TrainConfig | SftConfig, verb: str, model: Any, device: str) -> None:
    """Warn of a training in one process whose sampling or update may not fit.

    Args:
        config: Of the run.
        verb: train or sft.
        model: What is trained.
        device: Where.
    """
    from isentrope.verbs.plan_training import plan_steps, untrained, update_size

    if world_size() > 1:
        return
    memory = memory_of(device)
    least = sum(held_in_training(model).values()) + libraries_bytes(device)
    number, length = update_size(config, model)
    size = next(model.parameters()).element_size()
    if coarse_bytes(model, number * length, length, size, device) <= memory - least:
        return
    try:
        planned = plan_steps(config, "", verb, untrained(config.model), memory, device)
    except _NO_SHAPES as error:
        log.debug("%s: no plan, %s", verb, error)
        return
    _warn(planned)


def shapes_of(path: Path, section: CheckpointConfig, config: MeasureConfig) -> Any:
    """The model of a checkpoint without weights, in the type of the measurement."""
    return meta_model(
        path,
        base_model=section.base_model,
        allow_hub=section.allow_hub,
        trainable_patterns=section.trainable,
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


def coarse_bytes(model: Any, tokens: int, length: int, size: int, device: str) -> int:
    """Bytes that no pass of a micro-batch exceeds, by the widths of layers alone.

    Args:
        model: On any device.
        tokens: Of the micro-batch.
        length: Tokens of a sequence.
        size: Bytes of a number.
        device: Where; a card holds at most so many logits at once as the largest one.

    Returns:
        Bytes, the logits of TRL and those of scores included.
    """
    head = model.get_output_embeddings()
    layers = [m for n, m in model.named_modules() if "lora_" not in n and m is not head]
    widths = sum(m.in_features + m.out_features for m in layers if isinstance(m, nn.Linear))
    shapes = text_config(model)
    heads = getattr(shapes, "num_attention_heads", None) or 1
    scores = 2 * shapes.num_hidden_layers * heads
    at_once = LOGITS_HELD if device == "cpu" else LOGITS_OF_A_CARD
    tile = int(4 * (1 + FOLDED)) * min(tokens, TILE[0]) * TILE[1]
    numbers = min(tokens * shapes.vocab_size, max(at_once, shapes.vocab_size))
    logits = max(MOST_ARRAYS * 8 * numbers, tile)
    return COARSE * size * tokens * (widths + scores * length) + logits


def _require_least(verb: str, name: str, terms: dict[str, int], memory: int, libraries: int) -> int:
    """Say what is held without any pass, refuse what is more than there is, and give the rest."""
    least = sum(terms.values()) + libraries
    log.info(
        "%s of %s holds %s at least, and %s are free; isentrope plan says what its passes take",
        verb,
        name,
        gigabytes(least),
        gigabytes(memory),
    )
    if least > memory:
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {gigabytes(least)} at least "
            f"({sizes_in_words(terms)}), and {gigabytes(memory)} are free. isentrope plan names "
            "the smallest change that would fit."
        )
    return memory - least


def _warn(planned: Plan) -> None:
    """Warn of passes that may not fit, with the change that would."""
    part = planned.largest
    if part is None or planned.fits:
        return
    log.warning(
        "%s of %s may not fit: with its part %r it holds up to %s (%s), and %s are free. %s",
        planned.verb,
        planned.checkpoint,
        part.name,
        gigabytes(planned.peak),
        sizes_in_words(part.memory),
        gigabytes(planned.memory),
        planned.cure,
    )
