"""Attention of long sequences, a few queries at a time, and of prompts that are read once.

    y_i = Σ_j softmax_j(q_i·k_j/√d) v_j

The plain kernel, which has derivatives in both modes and keeps float64, holds all (queries × keys)
of a layer: 60 GB for one response of 32,768 tokens to 14 heads. Each query has a softmax of its
own, so blocks of queries give the same numbers to rounding. Backward passes compute a block again.

The last queries come first. They see the most keys, so what their block leaves in the heap has room
for the later ones. What is left of it after a block is given back: the allocator finds no room in
blocks of one size, and forward mode along eight directions took 6 GB for 16,384 tokens (`heap`).

A prompt that several sequences begin with is read once, and its keys and values serve them all. A
causal model's keys and values of a prompt do not depend on what follows. So the hidden states of
the responses are those of whole sequences to rounding, and so are their derivatives, in both modes.
That holds for full attention with a plain cache, in the architectures of `PLAIN_CACHE`, and not
where angles depend on the length that is read (dynamic and LongRoPE scaling).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from inspect import signature
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from isentrope.models.architecture import text_config
from isentrope.models.batching import MicroBatch

WEIGHTS_HELD = 2**25
"""Attention weights of a layer that are held at once, at least those of one query."""

WEIGHTS_OF_CPU = 2**22
"""Weights of a block on a CPU, where the memory of larger ones is mapped and cleared each time
(docs/results/attention.md)."""

QUERIES_OF_CPU = 32
"""Queries of a block on a CPU, at least, as far as `WEIGHTS_HELD` allows: products of fewer rows
are slow."""


@contextmanager
def attention_in_blocks(model: Any, input_ids: Tensor, directions: int = 1) -> Generator[None]:
    """A block in which attention holds at most `WEIGHTS_HELD` weights.

    Args:
        model: The causal LM, whose configuration has the number of heads.
        input_ids: (b, l) what it is about to read; shorter sequences are left to torch.
        directions: Directions of a forward-mode pass, each of which has weights of its own.

    Yields:
        Nothing.
    """
    sequences, length = input_ids.shape
    heads = getattr(text_config(model), "num_attention_heads", None) or 1
    cpu = input_ids.device.type == "cpu"
    limit = min(WEIGHTS_OF_CPU, WEIGHTS_HELD) if cpu else WEIGHTS_HELD
    long = sequences * heads * length * length > limit
    with _InBlocks(directions) if long else _masks_made_once():
        yield


_MASKS: ContextVar[dict[Any, tuple[Any, Tensor]] | None] = ContextVar("masks", default=None)
"""Masks of the micro-batch that this thread reads, with what the model gave for each."""

_READERS: list[Any] = []
"""transformers' own kernel, once for every block that is open in any thread."""

_READERS_CHANGE = Lock()


@contextmanager
def _masks_made_once() -> Generator[None]:
    """A block in which all layers share the mask that the plain kernel would make in each."""
    # a mask of its own takes a layer five operations of thirteen, for which a device waits
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # a second, without a model

    table = ALL_ATTENTION_FUNCTIONS
    with _READERS_CHANGE:
        _READERS.append(_READERS[0] if _READERS else table["sdpa"])
        table["sdpa"] = partial(_attend_with_shared_mask, _READERS[0])
    before = _MASKS.set({})
    try:
        yield
    finally:
        _MASKS.reset(before)
        with _READERS_CHANGE:
            plain = _READERS.pop()
            if not _READERS:  # the last of all threads
                table["sdpa"] = plain


def _attend_with_shared_mask(
    plain: Any,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *args: Any,
    **options: Any,
) -> Any:
    masks = _MASKS.get()
    if masks is None or options.get("position_bias") is not None:
        return plain(module, query, key, value, attention_mask, *args, **options)
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    length = query.shape[2]
    # a mask that the model gives says itself what is hidden, at any number of queries and keys
    causal = attention_mask is None and causal and 1 < length == key.shape[2]
    kind = (id(attention_mask), causal, query.dtype, query.device, length)
    hidden = None  # keys that are not seen
    if kind not in masks:
        if causal:
            hidden = query.new_ones(1, 1, length, length, dtype=torch.bool).triu(1)
        elif isinstance(attention_mask, Tensor) and attention_mask.dtype == torch.bool:
            hidden = ~attention_mask
    if hidden is not None:
        added = torch.zeros_like(hidden, dtype=query.dtype).masked_fill_(hidden, -torch.inf)
        masks[kind] = attention_mask, added  # the mask is kept, so that its id stays its own
    mask = masks[kind][1] if kind in masks else attention_mask
    return plain(module, query, key, value, mask, *args, **options)


def _queries_at_once(query: Tensor, keys: int, directions: int) -> int:
    """Queries of a block."""
    weights_of_query = query.shape[:-2].numel() * keys * directions
    at_once = max(1, WEIGHTS_HELD // weights_of_query)
    if query.device.type != "cpu":
        return at_once
    return min(at_once, max(QUERIES_OF_CPU, WEIGHTS_OF_CPU // weights_of_query))


class _InBlocks(TorchFunctionMode):
    def __init__(self, directions: int) -> None:
        super().__init__()
        self._directions = directions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            return _attend_in_blocks(*args, **(kwargs or {}), directions=self._directions)
        return func(*args, **(kwargs or {}))


def _attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    directions: int = 1,
    **options: Any,
) -> Tensor:
    """`scaled_dot_product_attention` of (b, h, l, d), block by block of queries."""
    queries = query.shape[-2]
    keys = key.shape[-2]
    rows = _queries_at_once(query, keys, directions)
    if rows >= queries:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )

    def block(start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        end = start + q.shape[-2]
        visible = keys
        mask = None
        if is_causal:
            visible = min(end, keys)
            place = torch.arange(start, end, device=q.device)[:, None]
            mask = torch.arange(visible, device=q.device) <= place
        elif attn_mask is not None:
            mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., start:end, :]
        return scaled_dot_product_attention(
            q, k[..., :visible, :], v[..., :visible, :], mask, dropout_p, **options
        )

    # a backward pass cannot hold them all
    is_large = query.shape[:-1].numel() * keys > WEIGHTS_HELD
    run: Callable[..., Tensor] = block
    if is_large and torch.is_grad_enabled() and query.requires_grad:
        run = partial(checkpoint, block, use_reentrant=False)
    starts = reversed(range(0, queries, rows))
    parts = [run(start, query[..., start : start + rows, :], key, value) for start in starts]
    return torch.cat(parts[::-1], -2)


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


@cache
def _name_of_cache(decoder: type) -> str:
    """The argument of a decoder that is its cache: transformers 5.24 renamed it."""
    return "cache" if "cache" in signature(decoder.forward).parameters else "past_key_values"


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
    states: list[Tensor] = []
    name = _name_of_cache(type(decoder))
    decoder(input_ids=batch.input_ids[:1, : batch.prompt], use_cache=True, **{name: shared})
    if shared.get_seq_length() != batch.prompt:
        raise RuntimeError("The model leaves no keys and values of a prompt in the cache.")
    for part in batch.parts:
        size = part.stop - part.start
        expanded = [
            (layer.keys.expand(size, -1, -1, -1), layer.values.expand(size, -1, -1, -1))
            for layer in shared.layers
        ]
        hidden = decoder(
            input_ids=batch.input_ids[part.start : part.stop, batch.prompt : part.length],
            use_cache=True,
            **{name: DynamicCache(expanded)},
        )[0]
        inside = (batch.rows >= part.start) & (batch.rows < part.stop)
        rows = batch.rows[inside] - part.start
        states.append(hidden[rows, batch.columns[inside] - batch.prompt])
    return torch.cat(states)
