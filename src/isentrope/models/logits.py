"""What a model does to the logits of its output embedding: a scale and a soft cap of its config.

    l = f(W h + b),     f(x) = c tanh(x / c)   or   f(x) = m x

Both are declared by the configuration (Gemma caps, Cohere multiplies, Granite divides). They become
part of the head, a module that is differentiated like every other. What a model does beyond that
is found by comparing with its own logits (`models.requirements`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

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
