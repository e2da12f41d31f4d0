"""A policy: a causal language model, with or without adapter, as a function of its trainable θ.

`Policy` evaluates π at θ, at θ + ηv (without touching the model) and differentiates through it
in both modes. θ is the asserted set of parameters that require a gradient, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.models.architecture import text_config
from isentrope.models.batching import PADDING, PADDING_ON_ACCELERATOR, MicroBatch
from isentrope.models.checkpoint import load_checkpoint, tokenizer_beside
from isentrope.models.precision import Precision
from isentrope.models.quantised import convert_model
from isentrope.models.requirements import (
    end_tokens,
    padding_token,
    require_no_dropout,
    require_plain_weights,
)
from isentrope.models.sharding import Parameters, layers_at
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.head import Scorer
from isentrope.policy.own_logits import require_float64
from isentrope.policy.same_function import require_own_logits
from isentrope.policy.theta import Theta
from isentrope.policy.token_statistics import Scores, Softmax
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.manifest import verification
from isentrope.system.one_line import one_line


class Policy(Theta):
    """A causal LM as a function of its trainable parameters.

    The model is converted in place to the runtime dtype of `precision`, its experts and layers of
    4-bit weights run as plain matrix products if it has any, and is not changed otherwise. It must
    be in evaluation mode wherever it has dropout.

    Attributes:
        model: The Hugging Face causal LM, or a PEFT model around one.
        tokenizer: Its tokenizer, or None.
        temperature: Sampling temperature T; every log-probability is at this temperature.
        precision: The numerical precision in force.
        scorer: The model as a function of micro-batches.
        names: Names of the trainable parameters, in the model's order.
        eos_token_ids: Tokens that end a response, the tokenizer's own first; empty for none.
        pad_token_id: Token that pads prompts when sampling.
        max_tokens: Padded tokens per micro-batch.
        vocab_chunk: Vocabulary entries at a time.
        compared_derivatives: Ways of taking derivatives, and parameter types, in which they have
            been compared with finite differences (`derivative_guard`).
    """

    @refuse_other_types
    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        temperature: float = 1.0,
        precision: str | Precision = "float64",
        eos_token_id: int | Iterable[int] | None = None,
        pad_token_id: int | None = None,
        trainable: Iterable[str] | None = None,
        max_tokens: int = 8192,
        vocab_chunk: int = 8192,
    ) -> None:
        """Wrap a model.

        Args:
            model: Causal LM; its trainable parameters are those with `requires_grad`.
            tokenizer: Used to encode text prompts and decode responses.
            temperature: Sampling temperature, > 0.
            precision: "float64", "float32", "bfloat16", "as_is" (a model in training, which must
                not be converted), or a `Precision`.
            eos_token_id: Ends of a response, one token or several; by default the tokenizer's and
                all of the model's generation config, which is where trainers and servers stop,
                else the model config's.
            pad_token_id: Padding; by default the tokenizer's, else EOS.
            trainable: If given, the exact set of names that must require a gradient.
            max_tokens: Padded tokens per micro-batch.
            vocab_chunk: Vocabulary entries whose logits are held at once.

        Raises:
            ValueError: If the temperature is not positive, the trainable set is empty or not the
                one asserted, weights are NaN, dropout is active, or the model is not supported
                (`UnsupportedModelError`): its code fails, or its own logits are not its output
                embedding of its hidden states with the scale and cap of its configuration.
        """
        if not 0 < temperature < math.inf:
            raise ValueError(f"The temperature must be positive and finite, got {temperature}.")
        self.model: Any = model  # its attributes are the architecture's
        self.tokenizer = tokenizer
        self.temperature = float(temperature)
        self.precision = Precision.named(precision)
        self.max_tokens = max_tokens
        self.vocab_chunk = vocab_chunk
        require_plain_weights(model)
        self.compared_derivatives: set[tuple[str, torch.dtype]] = set()
        self.scorer = Scorer(model)
        self.eos_token_ids = end_tokens(eos_token_id, tokenizer, self.scorer.lm)
        pad = padding_token(pad_token_id, tokenizer, text_config(self.scorer.lm))
        self.pad_token_id = pad if pad is not None else self.eos_token_id
        self.convert(self.precision)
        self.names = tuple(self.theta)
        if not self.names:
            raise ValueError("The model has no parameter that requires a gradient: θ is empty.")
        if trainable is not None and (unexpected := set(trainable) ^ set(self.names)):
            raise ValueError(
                f"The trainable set is not the one asserted: {len(unexpected)} names differ, the "
                f"first is {sorted(unexpected)[0]!r}."
            )
        self.require_no_dropout()
        self.require_own_logits()

    def __repr__(self) -> str:
        kind = type(self.scorer.lm).__name__
        numbers = f"temperature {self.temperature:g}, {self.precision.runtime_dtype}"
        return one_line(self, f"{kind} on {self.device}", self.size, numbers)

    @classmethod
    def from_checkpoint(cls, path: str | Path, **options: Any) -> Policy:
        """Load a Hugging Face or TRL checkpoint folder (safetensors only).

        Args:
            path: Folder with an adapter or a full model.
            **options: Those of `models.checkpoint.load_checkpoint`, and of `Policy`, such as a
                tokenizer: those of the folder and of its base are then not read.

        Returns:
            The policy.
        """
        of_policy = {n: options.pop(n) for n in signature(cls).parameters if n in options}
        tokenizer = of_policy.pop("tokenizer", None)
        with verification(options.get("verify", True)):
            model = load_checkpoint(path, **options)
            tokenizer = tokenizer or tokenizer_beside(path, model)
        return cls(model, tokenizer, **of_policy)

    @property
    def eos_token_id(self) -> int | None:
        """The first of `eos_token_ids`; setting it makes it the only one. None if there is none."""
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @eos_token_id.setter
    def eos_token_id(self, value: int | None) -> None:
        self.eos_token_ids = () if value is None else (value,)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the policy can draw."""
        return int(text_config(self.causal_lm).vocab_size)

    @property
    def context(self) -> int | None:
        """Tokens of the longest sequence that the model reads; None where it has no limit."""
        positions = getattr(text_config(self.causal_lm), "max_position_embeddings", None)
        return positions if positions is not None and positions > 0 else None

    @property
    def softmax(self) -> Softmax:
        """How its logits become probabilities."""
        return Softmax(self.temperature, self.vocab_chunk, self.precision.entropy)

    @property
    def padding(self) -> int:
        """Padded tokens of a micro-batch at most: one more micro-batch costs as much."""
        return PADDING if self.device.type == "cpu" else PADDING_ON_ACCELERATOR

    @property
    def causal_lm(self) -> Any:
        """The causal LM itself, below any adapter wrapper."""
        return self.scorer.lm

    @property
    def head(self) -> Any:
        """The output embedding, with the config's scale and cap: hidden states in, logits out."""
        return self.scorer.head

    def packed_scores(
        self,
        batch: MicroBatch,
        params: Parameters | None = None,
        directions: int = 1,
        *,
        features: int = 0,
        variances: bool = False,
    ) -> tuple[Tensor, ...]:
        """Log-probability and entropy of every token, differentiable by forward and reverse mode.

        Args:
            batch: Micro-batch on the policy's device.
            params: Trainable parameters to use, θ by default.
            directions: Directions of a forward-mode pass that this is in.
            features: Number k of projected hidden-state coordinates to return as well.
            variances: Whether to return V and F of `token_statistics` as well.

        Returns:
            s and H in nats, each (m,); then V and F, each (m,), or the features (m, k).
        """
        arguments = (batch, self.softmax, features, variances)
        return self.at(params or self.theta, Scorer.scores, *arguments, directions=directions)

    def packed_hidden(
        self, batch: MicroBatch, params: Parameters | None = None, directions: int = 1
    ) -> Tensor:
        """The hidden states that predict a micro-batch's tokens.

        Args:
            batch: Micro-batch on the policy's device.
            params: Trainable parameters to use; None: the model's own, which module hooks receive
                and autograd differentiates.
            directions: Directions of a forward-mode pass that this is in.

        Returns:
            (m, d).
        """
        if params is not None:
            return self.at(params, Scorer.hidden, batch, directions=directions)
        self.require_no_dropout()
        ids = batch.input_ids
        with self.scorer.evaluating(self.precision, ids, directions, forward_mode=False):
            return self.scorer.hidden(batch)

    def at(
        self,
        params: Parameters,
        function: Callable[..., Any],
        batch: MicroBatch,
        *arguments: Any,
        directions: int = 1,
    ) -> Any:
        """What a function of the scorer gives of a micro-batch at other parameters.

        Args:
            params: Trainable parameters to use.
            function: Such as `Scorer.scores`.
            batch: Micro-batch on the policy's device.
            *arguments: What else the function takes.
            directions: Directions of a forward-mode pass that this is in.

        Returns:
            Its result.
        """
        self.require_no_dropout()
        evaluating = self.scorer.evaluating(self.precision, batch.input_ids, directions)
        with evaluating, layers_at(self.model, params):
            return self.scorer.at(params, function, batch, *arguments)

    def convert(self, precision: str | Precision) -> Policy:
        """Switch to another precision in place (exact when it is a longer one).

        Args:
            precision: A name or a `Precision`.

        Returns:
            The policy itself.

        Raises:
            ValueError: If float64 is requested and an operation of the model would round, or if
                the model is quantised and cannot be converted.
        """
        precision = Precision.named(precision)
        if precision.runtime is not None:
            convert_model(self.model, self.causal_lm, precision)
        self.precision = precision
        if precision.runtime_dtype == "float64":
            require_float64(self.scorer, precision)
        return self

    def require_own_logits(
        self, rollouts: Rollouts | None = None, scores: Scores | None = None
    ) -> None:
        """Refuse a model whose own logits are not those that it is scored by.

        Args:
            rollouts: Sequences, the longest of which is compared; by default a few random ones.
            scores: What they were scored at; scored here by default.

        Raises:
            UnsupportedModelError: If they differ.
        """
        require_own_logits(self.scorer, self.softmax, self.precision, rollouts, scores)

    def require_no_dropout(self) -> None:
        """Refuse to evaluate while dropout acts."""
        require_no_dropout(self.model)
