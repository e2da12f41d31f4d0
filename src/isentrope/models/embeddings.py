"""What a model does at both ends: its padding row, and a scale or a cap of its logits.

What a model does to the logits of its output embedding: a scale and a soft cap of its config.

    l = f(W h + b),     f(x) = c tanh(x / c)   or   f(x) = m x

Both are declared by the configuration (Gemma caps, Cohere multiplies, Granite divides). They become
part of the head, a module that is differentiated like every other. What a model does beyond that
is found by comparing with its own logits (`models.requirements`).

The padding row of an embedding: which of two derivatives is meant.

torch gives the row `padding_idx` of nn.Embedding no gradient where it is looked up, in reverse mode
only. So there are two derivatives wherever the padding token is an input, as it is in any chat
whose padding is its end of turn, and the row moves, as it does under a tied output embedding:

    of the scores       ∂s, ∂H: what a change of the parameters does. E is differentiated so.
    of training         the gradients of a step on U: the lookup of the row contributes nothing.

Reverse mode takes the second, forward mode the first, unless one of these blocks says otherwise.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Settings of a configuration that cap logits."""

FACTORS = ("logit_scale", "lm_head_multiplier")
"""Settings that multiply logits."""

DIVISORS = ("logits_scaling",)
"""Settings that divide logits."""

MULTIPLYING = ("hyperclovax",)
"""Model types that multiply by what others divide by."""


class ScaledHead(nn.Module):
    """An output embedding, its logits multiplied and then capped.

    Attributes:
        embedding: The output embedding.
        factor: m.
        cap: c, or None for no cap.
    """

    def __init__(self, embedding: nn.Module, factor: float, cap: float | None) -> None:
        super().__init__()
        self.embedding, self.factor, self.cap = embedding, factor, cap

    @property
    def vocabulary(self) -> int:
        """Rows of the output embedding."""
        weight: Any = self.embedding.weight
        return weight.shape[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """(m, v) logits of (m, d) hidden states."""
        logits = self.embedding(hidden) * self.factor
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


def head_of(lm: Any) -> nn.Module:
    """The head of a causal LM: its output embedding, with the scale and the cap of its config.

    Args:
        lm: The causal LM.

    Returns:
        The output embedding itself where the configuration declares neither.
    """
    embedding, config = lm.get_output_embeddings(), lm.config
    factor = 1.0
    for name in (*FACTORS, *DIVISORS):
        if value := getattr(config, name, None):
            divides = name in DIVISORS and config.model_type not in MULTIPLYING
            factor *= 1 / value if divides else value
    cap = next((c for name in CAPS if (c := getattr(config, name, None))), None)
    return embedding if factor == 1.0 and cap is None else ScaledHead(embedding, factor, cap)


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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return _constant_row(out, *args, **(kwargs or {})) if func is F.embedding else out


def _constant_row(
    out: Tensor, input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any
) -> Tensor:
    """What a lookup gives, without a derivative where it is the padding row."""
    if padding_idx is None:
        return out
    return torch.where((input == padding_idx % len(weight))[..., None], out.detach(), out)
