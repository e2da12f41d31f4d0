"""What the passes of a measuring verb hold by shapes while they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from isentrope.config.measure import BatchConfig
from isentrope.config.stages import SamplingConfig
from isentrope.models.architecture import text_config
from isentrope.models.checkpoint import load_tokenizer
from isentrope.models.merged import merged_bytes
from isentrope.models.precision import Precision
from isentrope.planning.memory import (
    SIZES,
    activation_bytes,
    language_model,
    scored_logits,
    trainable_parameters,
)
from isentrope.planning.plan import ACTIVATIONS, CACHE, MERGED, PassesOver
from isentrope.policy.gradient import DIRECTIONS_OF_A_BATCH
from isentrope.sampling.draw import cache_bytes, next_logits
from isentrope.sampling.encoding import count_prompt_tokens
from isentrope.sampling.prompts import Prompt, name_prompts

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
        self, sampling: SamplingConfig, precision: Precision, model: Any, prompt: int = PROMPT
    ) -> None:
        """Take the sizes of micro-batches from the settings of sampling.

        Args:
            sampling: How responses are drawn and scored.
            precision: Precision of the measurement.
            model: The model on the device meta, in the type of the measurement.
            prompt: Tokens of a prompt.
        """
        self._prompt = prompt
        self._sampling = sampling
        self._model = model
        self._config = text_config(language_model(model))
        self._size = SIZES.get(precision.runtime_dtype, 4)
        self._softmax_size = SIZES[precision.entropy_dtype]
        self._parameters = trainable_parameters(model)
        self._activations = cache(self._count_activations)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence: a prompt, and a whole response."""
        return length_of(self._config, self._prompt, self._sampling.max_new_tokens)

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
        for terms, read in self._kinds(part):
            tokens = max(tokens, read)
            if sum(terms.values()) > sum(memory.values()):
                memory = terms
        return replace(part, memory=memory, value=tokens)

    def _kinds(self, part: PassesOver) -> Iterator[tuple[dict[str, int], int]]:
        """What each kind of pass of a part holds, and the tokens of its micro-batch."""
        if part.backward:
            sequences = self._sequences(part, 1)
            terms = {
                ACTIVATIONS: self._activations(sequences, True),
                "gradients": self._size * self._parameters,
            }
            yield terms | self._logits(sequences), sequences * self.length
        if part.forward and not part.backward:
            sequences = self._sequences(part, 1)
            terms = {ACTIVATIONS: self._activations(sequences, False)}
            yield terms | self._logits(sequences), sequences * self.length
        if directions := (part.at_once if part.forward_mode else 0) or part.second_order:
            share = -(-directions // DIRECTIONS_OF_A_BATCH)
            sequences = self._sequences(part, share)
            copies = 4 if part.second_order else 1 + directions  # values and every derivative
            terms = {
                ACTIVATIONS: copies * self._activations(sequences, False),
                "tangents": directions * self._size * self._parameters,
            }
            logits = {name: copies * x for name, x in self._logits(sequences).items()}
            yield terms | logits, sequences * self.length

    def _sequences(self, part: PassesOver, share: int) -> int:
        most = self._sampling.max_tokens // share // self.length
        return max(1, min(part.responses, most))

    def _count_activations(self, sequences: int, backward: bool) -> int:
        return activation_bytes(self._model, sequences, self.length, backward=backward)

    def _logits(self, sequences: int) -> dict[str, int]:
        chunk = self._sampling.vocab_chunk
        tokens = sequences * self._sampling.max_new_tokens
        return {"logits": scored_logits(self._model, tokens, chunk, self._softmax_size)}


def length_of(config: Any, prompt: int, response: int) -> int:
    """Tokens of a prompt and a response, at most the context of the model."""
    context = getattr(config, "max_position_embeddings", None) or prompt + response
    return min(prompt + response, context)
