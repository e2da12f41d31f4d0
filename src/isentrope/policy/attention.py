"""Attention of long sequences, a few queries at a time.

    y_i = Σ_j softmax_j(q_i·k_j/√d) v_j

The plain kernel, which has derivatives in both modes and keeps float64, holds all (queries × keys)
of a layer: 60 GB for one response of 32,768 tokens to 14 heads. Each query has a softmax of its
own, so blocks of queries give the same numbers to rounding. Backward passes compute a block again.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from isentrope.policy.batching import MicroBatch

WEIGHTS_HELD = 2**25
"""Attention weights of a layer that are held at once, at least those of one query."""


@contextmanager
def attention_in_blocks(model: Any, batch: MicroBatch) -> Generator[None]:
    """A block in which attention holds at most `WEIGHTS_HELD` weights.

    Args:
        model: The causal LM, whose configuration has the number of heads.
        batch: What it is about to read; shorter sequences are left to torch.

    Yields:
        Nothing.
    """
    sequences, length = batch.input_ids.shape
    heads = getattr(model.config, "num_attention_heads", None) or 1
    if sequences * heads * length * length <= WEIGHTS_HELD:
        yield
        return
    with _InBlocks():
        yield


class _InBlocks(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """`scaled_dot_product_attention` of (b, h, l, d), block by block of queries."""
    queries, keys = query.shape[-2], key.shape[-2]
    rows = max(1, WEIGHTS_HELD // (query.shape[:-2].numel() * keys))
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
    again = torch.is_grad_enabled() and query.requires_grad
    for start in range(0, queries, rows):
        q = query[..., start : start + rows, :]
        if again:
            parts.append(checkpoint(block, start, q, key, value, use_reentrant=False))
        else:
            parts.append(block(start, q, key, value))
    return torch.cat(parts, -2)
