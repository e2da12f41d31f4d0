"""What the passes of a measuring verb hold by shapes while they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from isentrope.config.measure import BatchConfig, MeasureConfig
from isentrope.config.stages import SamplingConfig
from isentrope.models.architecture import text_config
from isentrope.models.checkpoint import load_tokenizer
from isentrope.models.merged import merged_bytes
from isentrope.models.precision import Precision
from isentrope.planning.logits import HeadMemory
from isentrope.planning.memory import (
    SIZES,
    activation_bytes,
    held_to_compare,
    language_model,
    trainable_parameters,
    weights_held,
)
from isentrope.planning.plan import ACTIVATIONS, CACHE, MERGED, PassesOver, Plan
from isentrope.policy.derivative_guard import SEQUENCES_COMPARED, TOKENS_COMPARED
from isentrope.policy.gradient import DIRECTIONS_OF_A_BATCH
from isentrope.policy.short_memory import tokens_in
from isentrope.policy.token_statistics import LOGITS_HELD, logits_held
from isentrope.results.verbs import VERBS
from isentrope.sampling.draw import cache_bytes, next_logits
from isentrope.sampling.encoding import count_prompt_tokens
from isentrope.sampling.prompt import Prompt, name_prompts
from isentrope.system.memory import libraries_bytes
from isentrope.verbs.passes import Counting, count_passes

PROMPT = 256
"""Tokens that a prompt is taken to have where none is read."""

PROMPTS = "Prompts are taken to have {} tokens, and responses to be as long as they may be."


PROMPTS_READ = 256
"""Prompts of a file that are encoded to know how long they are."""


def longest_prompt(data: BatchConfig, checkpoint: Path) -> int | None:
    """Tokens of the longest prompt of E or U, as far as the first prompts of a file show it.

    Args:
        data: Where the prompts come from.
        checkpoint: Folder with the tokenizer.

    Returns:
        Tokens; None where the data set is in no file here, or its prompts are conversations.
    """
    if data.dataset_path is None:
        return None
    has_tokenizer = (checkpoint / "tokenizer_config.json").is_file()
    tokenizer = load_tokenizer(checkpoint) if has_tokenizer else None
    lengths: list[int] = []
    for prompt in _first_prompts(data):
        if prompt.token_ids is not None:
            lengths.append(len(prompt.token_ids))
        elif prompt.messages is None and tokenizer is not None:
            lengths.append(count_prompt_tokens(tokenizer, prompt.text or ""))
        else:
            return None
    return max(lengths, default=None)


def _first_prompts(data: BatchConfig) -> list[Prompt]:
    tasks = (data.evaluation_task(), data.update_task())
    return [p for task in tasks for p in name_prompts(task.prompts[:PROMPTS_READ])]


RESIDENT = 1.8
"""Resident bytes of a process for each byte of arrays that come and go: of 1.5 to 2.2 measured on a
CPU, where free blocks stay in the heap (docs/results/plan.md)."""


class Holding:
    """Computes what the parts of a measuring verb hold."""

    def __init__(
        self,
        sampling: SamplingConfig,
        precision: Precision,
        model: Any,
        card: int | None,
        prompt: int = PROMPT,
    ) -> None:
        """Take the sizes of micro-batches from the settings of sampling.

        Args:
            sampling: How responses are drawn and scored.
            precision: Precision of the measurement.
            model: The model on the device meta, in the type of the measurement.
            card: Bytes of the card's memory; None on a CPU.
            prompt: Tokens of a prompt.
        """
        self._prompt = prompt
        self._sampling = sampling
        self._tokens = sampling.most_tokens(on_card=card is not None)
        self._model = model
        self._config = text_config(language_model(model))
        self._size = SIZES.get(precision.runtime_dtype, 4)
        self._head = HeadMemory(
            model,
            chunk=sampling.vocab_chunk,
            softmax_size=SIZES[precision.entropy_dtype],
            size=self._size,
            held=LOGITS_HELD if card is None else logits_held(card),
            on_card=card is not None,
        )
        self._parameters = trainable_parameters(model)
        self._activations = cache(self._count_activations)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence: a prompt, and a whole response."""
        return length_of(self._config, self._prompt, self._sampling.max_new_tokens)

    def to_compare(self, free: int, order: int) -> dict[str, int]:
        """What comparing derivatives with differences holds, where so many bytes are free."""
        terms = held_to_compare(self._model, free, order)
        size = 8 if "weights in float64" in terms else self._size
        tokens = SEQUENCES_COMPARED * TOKENS_COMPARED
        return terms | {"logits": self._head.of_differences(tokens, size, order)}

    def of_part(self, part: PassesOver) -> PassesOver:
        """A part with what it holds, and the setting that saves of it."""
        if not any(part.passes):
            at_once = min(self._sampling.batch_size, part.responses)
            cache_size = cache_bytes(self._config, at_once, self.length, self._size)
            memory = {
                CACHE: cache_size,
                "logits": next_logits(self._config, at_once),
                MERGED: merged_bytes(self._model),
            }
            return replace(part, memory=memory, setting="sampling.batch_size", value=at_once)
        memory: dict[str, int] = {}
        tokens = 0
        for terms, size in self._kinds(part):
            tokens = max(tokens, size)
            if sum(terms.values()) > sum(memory.values()):
                memory = terms
        return replace(part, memory=memory, value=tokens)

    def _kinds(self, part: PassesOver) -> Iterator[tuple[dict[str, int], int]]:
        """What each kind of pass of a part holds, and the tokens of its micro-batch."""
        sequences = self._sequences(part, 1)
        scored = sequences * self._sampling.max_new_tokens
        if part.backward:
            terms = {
                ACTIVATIONS: self._activations(sequences, True),
                "gradients": self._size * self._parameters,
                "logits": self._head.of_gradient(scored, entropies=part.entropies),
            }
            yield terms, sequences * self.length
        if part.forward and (part.entropies or not part.backward):
            logits = self._head.of_scores(scored, variances=part.entropies)
            if part.rates:
                remainder = part.second_order > 0
                logits = max(logits, self._head.of_comparison(scored, remainder=remainder))
            terms = {ACTIVATIONS: self._activations(sequences, False), "logits": logits}
            yield terms, sequences * self.length
        if directions := (part.at_once if part.forward_mode else 0) or part.second_order:
            share = -(-directions // DIRECTIONS_OF_A_BATCH)
            sequences = self._sequences(part, share)
            scored = sequences * self._sampling.max_new_tokens
            copies = 4 if part.second_order else 1 + directions  # values and every derivative
            logits = self._head.of_directions(scored, directions)
            if directions == 1:
                logits = self._head.of_series(scored, 2 if part.second_order else 1)
            terms = {
                ACTIVATIONS: copies * self._activations(sequences, False),
                "tangents": directions * self._size * self._parameters,
                "logits": logits,
            }
            yield terms, sequences * self.length

    def _sequences(self, part: PassesOver, share: int) -> int:
        fitting = self._tokens // share // self.length
        return max(1, min(part.responses, fitting))

    def _count_activations(self, sequences: int, backward: bool) -> int:
        return activation_bytes(self._model, sequences, self.length, backward=backward)


def length_of(config: Any, prompt: int, response: int) -> int:
    """Tokens of a prompt and a response, at most the context of the model."""
    context = getattr(config, "max_position_embeddings", None) or prompt + response
    return min(prompt + response, context)


def plan_verb(
    verb: str,
    name: str,
    folder: Path | None,
    counting: Counting,
    model: Any,
    terms: dict[str, int],
    memory: int,
) -> Plan:
    """Plan a measuring verb at a checkpoint, without its time.

    Args:
        verb: Its name.
        name: Of the checkpoint.
        folder: Of the checkpoint; None for one that is not there yet.
        counting: What its passes are counted from.
        model: The checkpoint's on the device meta.
        terms: Bytes that it holds without any pass.
        memory: Bytes that there are.

    Returns:
        The plan.
    """
    config = counting.config
    prompt = longest_prompt(config.batch_config, folder) if folder is not None else None
    precision = config.precision.measuring
    sampling = config.sampling
    share = RESIDENT
    card = None
    if config.checkpoint.device_map != "cpu":
        card = memory
        share = 1.0
        loaded = 4 * sum(p.numel() for p in model.parameters())
        half = (memory - libraries_bytes(config.checkpoint.device_map) - loaded) // 2
        fitting = tokens_in(half, model, language_model(model).get_output_embeddings())
        max_tokens = min(sampling.most_tokens(on_card=True), fitting)
        sampling = sampling.model_copy(update={"max_tokens": max_tokens})
    holding = Holding(sampling, precision, model, card, prompt or PROMPT)
    parts = tuple(holding.of_part(part).times(share) for part in count_passes(verb, counting))
    device = config.checkpoint.device_map
    libraries = libraries_bytes(device)
    compared: dict[str, int] = {}
    if any(part.backward or part.forward_mode or part.second_order for part in parts):
        free = memory - libraries - sum(weights_held(model, precision).values())
        order = 2 if any(part.second_order for part in parts) else 1
        compared = holding.to_compare(free, order)
    return Plan(
        verb,
        name,
        terms,
        libraries,
        memory,
        compared=compared,
        batches=tuple(counting.batches.values()),
        parts=parts,
        measured_by="No time is given: there is no checkpoint yet.",
        assumptions=tuple(_state_assumptions(verb, config, prompt, holding.length)),
    )


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
