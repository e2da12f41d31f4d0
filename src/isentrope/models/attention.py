"""Attention of long sequences, a few queries at a time.

    y_i = Σ_j softmax_j(q_i·k_j/√d) v_j

The plain kernel, which has derivatives in both modes and keeps float64, holds all (queries × keys)
of a layer: 60 GB for one response of 32,768 tokens to 14 heads. Each query has a softmax of its
own, so blocks of queries give the same numbers to rounding. Backward passes compute a block again.

The last queries come first. They see the most keys, so what their block leaves in the heap has room
for the later ones. What is left of it after a block is given back: the allocator finds no room in
blocks of one size, and forward mode along eight directions took 6 GB for 16,384 tokens (`heap`).
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from isentrope.models.batching import at_once

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
    heads = getattr(model.config, "num_attention_heads", None) or 1
    if sequences * heads * length * length <= _held(input_ids.device):
        yield
        return
    with _InBlocks(directions):
        yield


def _held(device: torch.device) -> int:
    return at_once(min(WEIGHTS_OF_CPU, WEIGHTS_HELD) if device.type == "cpu" else WEIGHTS_HELD)


def _queries(query: Tensor, keys: int, directions: int) -> int:
    """Queries of a block."""
    each = query.shape[:-2].numel() * keys * directions
    most = max(1, at_once(WEIGHTS_HELD) // each)
    if query.device.type != "cpu":
        return most
    return min(most, max(QUERIES_OF_CPU, at_once(WEIGHTS_OF_CPU) // each))


class _InBlocks(TorchFunctionMode):
    def __init__(self, directions: int) -> None:
        super().__init__()
        self._directions = directions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}), directions=self._directions)
        return func(*args, **(kwargs or {}))


def _attention(
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
    queries, keys = query.shape[-2], key.shape[-2]
    rows = _queries(query, keys, directions)
    if rows >= queries:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )

    def block(start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        end = start + q.shape[-2]
        seen, mask = keys, None
        if is_causal:
            seen = min(end, keys)
            place = torch.arange(start, end, device=q.device)[:, None]
            mask = torch.arange(seen, device=q.device) <= place
        elif attn_mask is not None:
            mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., start:end, :]
        return scaled_dot_product_attention(
            q, k[..., :seen, :], v[..., :seen, :], mask, dropout_p, **options
        )

    parts: list[Tensor] = []
    # a backward pass cannot hold them all
    many = query.shape[:-1].numel() * keys > at_once(WEIGHTS_HELD)
    again = many and torch.is_grad_enabled() and query.requires_grad
    for start in reversed(range(0, queries, rows)):
        q = query[..., start : start + rows, :]
        if again:
            parts.append(checkpoint(block, start, q, key, value, use_reentrant=False))
        else:
            parts.append(block(start, q, key, value))
    return torch.cat(parts[::-1], -2)
