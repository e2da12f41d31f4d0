"""A prompt that several sequences begin with is read once, and its keys and values serve them all.

A causal model's keys and values of a prompt do not depend on what follows. So the hidden states of
the responses are those of whole sequences to rounding, and so are their derivatives, in both modes.
That holds for full attention with a plain cache, in the architectures of `PLAIN_CACHE`, and not
where angles depend on the length that is read (dynamic and LongRoPE scaling).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from isentrope.models.batching import MicroBatch

PLAIN_CACHE = frozenset(
    (
        *("arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "gpt2", "gpt_neox"),
        *("granite", "helium", "llama", "mistral", "mixtral", "nemotron", "olmo", "olmo2"),
        *("phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss"),
        *("smollm3", "stablelm", "starcoder2"),
    )
)
"""Model types of transformers whose scores and derivatives are compared, shared and not."""

_FIXED_ANGLES = ("default", "linear", "llama3", "yarn")


def keeps_plain_cache(model: Any) -> bool:
    """Whether a prompt's keys and values serve all that follows it.

    Args:
        model: The causal LM, or a PEFT model around one.

    Returns:
        True for the architectures of `PLAIN_CACHE` in transformers' own code with full attention
        in every layer, fixed rotary angles and, if any, LoRA adapters. False for a quantised model,
        whose rounding may depend on what is read together, and while checkpointing acts, which
        leaves no cache.
    """
    adapters = getattr(model, "peft_config", {})
    lm = model.get_base_model() if adapters else model
    config: Any = lm.config
    angles: Any = getattr(config, "rope_parameters", None) or {}
    return (
        getattr(config, "model_type", None) in PLAIN_CACHE
        and type(lm).__module__.startswith("transformers.models.")
        and config._attn_implementation in ("sdpa", "eager")
        and all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
        and angles.get("rope_type", "by layer" if angles else "default") in _FIXED_ANGLES
        and all(adapter.peft_type == "LORA" for adapter in adapters.values())
        and not getattr(lm, "is_quantized", False)
        and not (lm.training and any(getattr(m, "gradient_checkpointing", 0) for m in lm.modules()))
    )


def hidden_after_prompt(decoder: Any, batch: MicroBatch) -> Tensor:
    """The hidden states that predict a micro-batch's tokens; the prompt runs once.

    Args:
        decoder: The part of the causal LM that makes hidden states.
        batch: Its sequences begin with `batch.prompt` equal tokens.

    Returns:
        (m, d).

    Raises:
        RuntimeError: If the model left the cache empty.
    """
    shared: Any = DynamicCache()
    found: list[Tensor] = []
    decoder(input_ids=batch.input_ids[:1, : batch.prompt], past_key_values=shared, use_cache=True)
    if shared.get_seq_length() != batch.prompt:
        raise RuntimeError("The model leaves no keys and values of a prompt in the cache.")
    for part in batch.parts:
        rows = part.stop - part.start
        kept = [
            (layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1))
            for layer in shared.layers
        ]
        hidden = decoder(
            input_ids=batch.input_ids[part.start : part.stop, batch.prompt : part.length],
            past_key_values=DynamicCache(kept),
            use_cache=True,
        )[0]
        here = (batch.rows >= part.start) & (batch.rows < part.stop)
        found.append(hidden[batch.rows[here] - part.start, batch.columns[here] - batch.prompt])
    return torch.cat(found)
