"""The causal LM without its loss: hidden states at response positions, then the head in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isentrope.models.architecture import decoder_of
from isentrope.models.batching import MicroBatch
from isentrope.models.logits import head_of
from isentrope.models.shared_prompts import hidden_after_prompt
from isentrope.policy.token_statistics import token_statistics


class Scorer(nn.Module):
    """A module whose output is the scores of a micro-batch, for `functional_call`.

    Attributes:
        lm: The causal LM itself, inside any adapter wrapper.
        inner_names: The model's parameter names → this module's.
    """

    lm: Any

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.lm = model.get_base_model() if hasattr(model, "peft_config") else model
        if any(c.is_prompt_learning for c in getattr(model, "peft_config", {}).values()):
            raise ValueError("Prompt-learning adapters are not supported; use LoRA or none.")
        outer = {id(p): n for n, p in model.named_parameters()}
        self.inner_names = {outer[id(p)]: n for n, p in self.named_parameters()}

    @property
    def head(self) -> nn.Module:
        """Hidden states in, logits out: the output embedding with the config's scale and cap."""
        return head_of(self.lm)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The (m, d) hidden states from which the tokens of a micro-batch are predicted."""
        decoder = decoder_of(self.lm)
        if batch.prompt:
            return hidden_after_prompt(decoder, batch)
        mask = {} if batch.attention_mask is None else {"attention_mask": batch.attention_mask}
        hidden = decoder(input_ids=batch.input_ids, use_cache=False, **mask)[0]
        return hidden[batch.rows, batch.columns]

    def forward(
        self,
        batch: MicroBatch,
        temperature: float,
        vocab_chunk: int,
        dtype: torch.dtype,
        features: int = 0,
        variances: bool = False,
    ) -> tuple[Tensor, ...]:
        """Score a micro-batch.

        Args:
            batch: Micro-batch on the model's device.
            temperature: Sampling temperature.
            vocab_chunk: Vocabulary entries at a time.
            dtype: Type of the softmax arithmetic.
            features: Number of projected hidden-state features to return as well.
            variances: Whether to return V and F of `spread` as well.

        Returns:
            s and H, each (m,), then V and F, or (m, features), if requested.
        """
        hidden = self.hidden(batch)
        scores = token_statistics(
            hidden,
            self.head,
            batch.targets,
            temperature=temperature,
            vocab_chunk=vocab_chunk,
            dtype=dtype,
            variances=variances,
        )
        return (*scores, _project(hidden, features)) if features else scores


class HiddenStates(Scorer):
    """The same without the head: its output is the hidden states that predict the tokens."""

    def forward(self, batch: MicroBatch) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(m, d) hidden states of a micro-batch on the model's device."""
        return self.hidden(batch)


def _project(hidden: Tensor, features: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(hidden.shape[1], features, generator=generator, dtype=torch.float64)
    return hidden.double() @ (matrix / hidden.shape[1] ** 0.5).to(hidden.device)
