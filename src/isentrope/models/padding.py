"""The padding row of an embedding: which of two derivatives is meant.

torch gives the row `padding_idx` of nn.Embedding no gradient where it is looked up, in reverse mode
only. So there are two derivatives wherever the padding token is an input, as it is in any chat
whose padding is its end of turn, and the row moves, as it does under a tied output embedding:

    of the scores       ∂s, ∂H: what a change of the parameters does. E is differentiated so.
    of training         the gradients of a step on U: the lookup of the row contributes nothing.

Reverse mode takes the second, forward mode the first, unless one of these blocks says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


@contextmanager
def derivative_of_scores(model: nn.Module) -> Generator[None]:
    """In this block reverse mode too differentiates by the padding rows.

    Args:
        model: The model; its embeddings are as before after the block.

    Yields:
        Nothing.
    """
    padded = {
        module: module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    try:
        for module in padded:
            module.padding_idx = None
        yield
    finally:
        for module, row in padded.items():
            module.padding_idx = row


class DerivativeOfTraining(TorchFunctionMode):
    """In this block forward mode too omits the lookup of padding rows."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is not F.embedding:
            return out
        named: dict[str, Any] = dict(
            zip(("input", "weight", "padding_idx"), args, strict=False)
        ) | (kwargs or {})
        row = named.get("padding_idx")
        if row is None:
            return out
        row = row if row >= 0 else len(named["weight"]) + row
        return torch.where((named["input"] == row)[..., None], out.detach(), out)
