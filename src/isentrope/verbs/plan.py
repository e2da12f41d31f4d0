"""`isentrope plan`: what the verbs of a configuration take, before any of them runs.

Every response is taken to be as long as it may be. Prompts are encoded to know their lengths; no
weight is read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import BatchConfig, CheckpointConfig, MeasureConfig, PolicyConfig
from isentrope.config.sizes import Lengths, evaluation_sizes, measuring_sizes
from isentrope.models.checkpoint import load_tokenizer
from isentrope.nouns.rollouts import Rollouts
from isentrope.planning.plan import (
    DoesNotFitError,
    Plan,
    bytes_of,
    gigabytes,
    least,
    memory_of,
    plan_measuring,
)
from isentrope.planning.rate import measured_rate
from isentrope.planning.shapes import Shapes, shapes_of
from isentrope.planning.sizes import Sizes
from isentrope.runs.checkpoints import find_checkpoints
from isentrope.sampling.chat_template import render_chat
from isentrope.sampling.prompts import Prompt, name_prompts
from isentrope.system.processes import world_size
from isentrope.system.reading import read_json_lines
from isentrope.verbs.kinds import load_any

log = logging.getLogger("isentrope")

MEASURING = ("measure", "influence", "kernel", "noise", "variance", "audit")

PROMPTS_READ = 256
"""Prompts of a data set that are encoded to know how long they are."""


def plan(
    path: str,
    settings: Sequence[str] = (),
    *,
    verbs: Sequence[str] = (),
    memory: str | None = None,
    prompt_tokens: int | None = None,
    processes: int = 1,
) -> list[Plan]:
    """Plan the verbs of a configuration at its first checkpoint.

    Args:
        path: The configuration.
        settings: Overrides, "section.key=value".
        verbs: Which; none for all that the configuration is for.
        memory: Such as "16GB"; None for what is free on the device.
        prompt_tokens: Tokens of the longest prompt, where its data set is not to be read.
        processes: Processes that torchrun is to start on this machine.

    Returns:
        A plan a verb, of each process.

    Raises:
        ValueError: If the configuration is of another kind, or a verb is not of its kind, or one
            process is to spread a base.
    """
    config = load_any(path, settings)
    if not isinstance(config, (MeasureConfig, EvaluateConfig)):
        raise ValueError(
            f"{path} trains a model, and isentrope plan is for configurations that measure or "
            "evaluate: its checkpoints are planned once they are there."
        )
    possible = MEASURING if isinstance(config, MeasureConfig) else ("evaluate",)
    if other := [verb for verb in verbs if verb not in possible]:
        raise ValueError(f"{path} is for {', '.join(possible)}, not for {other[0]}.")
    where = config.checkpoint
    if where.shard_base and processes == 1:
        raise ValueError(
            "checkpoint.shard_base spreads the base over several processes: give --processes N."
        )
    device, first = where.device_map, find_checkpoints(where)[0]
    shapes = checkpoint_shapes(first.path, where)
    if isinstance(config, MeasureConfig):
        E, U = batch_lengths(config.batch_config, shapes, prompt_tokens)
        sizes = measuring_sizes(config, E, U)
    else:
        task = None if prompt_tokens else config.data.load_task(
            config.data.dataset_name, config.data.split, config.data.dataset_path,
            _tokenizer(shapes),
        )  # fmt: skip
        prompts = [] if task is None else task.prompts
        sizes = evaluation_sizes(config, prompt_tokens or _longest(prompts, _tokenizer(shapes)))
    if where.shard_base and not shapes.spread:
        raise ValueError(
            f"{first.name} keeps its layers where checkpoint.shard_base cannot spread them."
        )
    sizes = replace(sizes, processes=processes, sharded=where.shard_base)
    free = memory_of(device) // (1 if device.startswith("cuda") else processes)
    size = free if memory is None else bytes_of(memory)
    rate = measured_rate(device)
    return [
        plan_measuring(verb, first.name, shapes, sizes, size, rate) for verb in verbs or possible
    ]


def checkpoint_shapes(path: Path, where: PolicyConfig) -> Shapes:
    """The shapes of a checkpoint as its configuration wants it loaded."""
    patterns = where.trainable if isinstance(where, CheckpointConfig) else None
    return shapes_of(
        path,
        base_model=where.base_model,
        allow_hub=where.allow_hub,
        trainable_patterns=patterns,
        optimizer=where.optimizer_path if isinstance(where, CheckpointConfig) else None,
    )


def require_memory(verb: str, name: str, path: Path, where: PolicyConfig, sizes: Sizes) -> None:
    """Say what a verb takes at least, and refuse it where that is more than there is.

    Args:
        verb: Its name.
        name: Of the checkpoint.
        path: Its folder.
        where: The section that names it.
        sizes: What is asked.

    Raises:
        DoesNotFitError: If what is held without any pass is more than the memory.
    """
    if verb not in MEASURING or where.quantization != "none":
        return
    try:
        shapes = checkpoint_shapes(path, where)
    except (ValueError, OSError, RuntimeError, TypeError, AttributeError) as error:
        log.debug("%s: no plan, %s", name, error)  # loading it says what is wrong, if anything is
        return
    sizes = replace(sizes, processes=world_size(), sharded=where.shard_base)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    found = least(verb, name, shapes, sizes, memory_of(where.device_map, here))
    log.info(
        "%s of %s holds %s at least, and %s are free; isentrope plan says what its passes take",
        *(verb, name, gigabytes(found.peak), gigabytes(found.memory)),
    )
    if not found.fits:
        terms = ", ".join(f"{t.name} {gigabytes(t.size)}" for t in found.largest.terms)
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {gigabytes(found.peak)} at least "
            f"({found.largest.name}: {terms}), and {gigabytes(found.memory)} are free. "
            "isentrope plan names the smallest change that would fit."
        )


def batch_lengths(
    data: BatchConfig, shapes: Shapes, prompt_tokens: int | None
) -> tuple[Lengths, Lengths]:
    """How many sequences E and U have, and how long they are at most, as far as it is known."""
    tokenizer = _tokenizer(shapes)
    if data.E_file is not None:
        E = _of_file(Path(data.E_file), tokenizer)
    elif prompt_tokens is not None:
        E = Lengths(None, prompt_tokens)
    else:
        E = Lengths(None, _longest(data.evaluation_task(tokenizer).prompts, tokenizer))
    if data.U_file is not None:
        return E, _of_file(Path(data.U_file), tokenizer)
    if prompt_tokens is not None:
        return E, Lengths(None, prompt_tokens)
    return E, Lengths(None, _longest(data.update_task(tokenizer).prompts, tokenizer))


def _of_file(path: Path, tokenizer: Any) -> Lengths:
    """The lengths in a file of rollouts."""
    if path.suffix == ".parquet":
        rollouts = Rollouts.load(path)
        longest = max(map(len, rollouts.prompt_ids))
        return Lengths(len(rollouts), longest, max(map(len, rollouts.response_ids)))
    rows = [row for _, row in read_json_lines(path)]
    prompts, responses = (
        [
            len(row[f"{part}_ids"])
            if f"{part}_ids" in row
            else _encoded(tokenizer, row[part]) + end
            for row in rows
        ]
        for part, end in (("prompt", 0), ("response", 1))  # a text gets an end token, ids do not
    )
    return Lengths(len(rows), max(prompts), max(responses))


def _longest(prompts: Sequence[Any], tokenizer: Any) -> int:
    """Tokens of the longest of the first prompts."""
    return max(_tokens(tokenizer, p) for p in name_prompts(prompts[:PROMPTS_READ]))


def _tokens(tokenizer: Any, prompt: Prompt) -> int:
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    if prompt.messages is None:
        return _encoded(tokenizer, prompt.text)
    text = render_chat(tokenizer, prompt.messages, prompt.template, add_generation_prompt=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _encoded(tokenizer: Any, text: Any) -> int:
    if tokenizer is None or not isinstance(text, str):
        raise ValueError(
            "The prompts are not token ids, and the checkpoint has no tokenizer: give "
            "--prompt-tokens, the length of the longest prompt."
        )
    return len(tokenizer(text)["input_ids"])


def _tokenizer(shapes: Shapes) -> Any:
    for source in (shapes.folder, Path(shapes.source)):
        if (source / "tokenizer_config.json").exists():
            return load_tokenizer(source)
    return None
