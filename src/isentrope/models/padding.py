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
from torch import Tensor, nn
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
        return _constant_row(out, *args, **(kwargs or {})) if func is F.embedding else out


def _constant_row(
    out: Tensor, input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any
) -> Tensor:
    """What a lookup gives, without a derivative where it is the padding row."""
    if padding_idx is None:
        return out
    return torch.where((input == padding_idx % len(weight))[..., None], out.detach(), out)
