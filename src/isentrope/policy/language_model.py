"""A policy: a causal language model, with or without adapter, as a function of its trainable θ.

`Policy` evaluates π at θ, at θ + ηv (without touching the model) and differentiates through it
in both modes. θ is the asserted set of parameters that require a gradient, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from isentrope.models.architecture import refusal_by_name, use_eager_experts
from isentrope.models.attention import attention_in_blocks
from isentrope.models.batching import PADDING, PADDING_ON_ACCELERATOR, MicroBatch
from isentrope.models.checkpoint import LoadOptions, load_checkpoint
from isentrope.models.layerwise import Moved, Point, layers_at, moved_along
from isentrope.models.precision import Precision
from isentrope.models.quantised import require_exact_inputs, write_out_products
from isentrope.models.requirements import (
    active_dropout,
    require_finite_weights,
    require_one_device,
    require_plain_embeddings,
)
from isentrope.models.sharding import exchange_as_stored, is_spread
from isentrope.models.special_tokens import end_tokens, padding_token
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.sharded_tensors import is_sharded, local_part, total
from isentrope.nouns.vectors import Vector, require_same_names
from isentrope.policy.divergence import DivergentScorer, Reference
from isentrope.policy.own_logits import (
    require_float64,
    require_own_logits,
    rounding_operations,
)
from isentrope.policy.scorer import HiddenStates, Scorer
from isentrope.policy.token_statistics import Scores
from isentrope.system.processes import ALONE, Ranks


class Policy:
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
        ranks: The processes that share the work on each batch; every one of them must then make
            the same calls. This process alone, until it is set.
        compared_derivatives: Ways of taking derivatives, and parameter types, in which they have
            been compared with finite differences (`derivative_guard`).
    """

    ranks: Ranks = ALONE

    def __init__(
        self,
        model: Any,
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
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = float(temperature)
        self.precision = Precision.named(precision)
        self.max_tokens, self.vocab_chunk = max_tokens, vocab_chunk
        require_one_device(model)
        self.compared_derivatives: set[tuple[str, torch.dtype]] = set()
        self.scorer = Scorer(model)
        config = self.scorer.lm.config
        self.eos_token_ids = end_tokens(eos_token_id, tokenizer, self.scorer.lm)
        pad = padding_token(pad_token_id, tokenizer, config)
        self.pad_token_id = pad if pad is not None else self.eos_token_id
        self.convert(self.precision)
        self.names = tuple(n for n, p in model.named_parameters() if p.requires_grad)
        self._require_trainable(trainable)
        self.require_no_dropout()
        require_finite_weights(model)
        require_plain_embeddings(model)
        self.require_own_logits()

    @classmethod
    def from_checkpoint(cls, path: str | Path, **options: Any) -> Policy:
        """Load a Hugging Face or TRL checkpoint folder (safetensors only).

        Args:
            path: Folder with an adapter or a full model.
            **options: Fields of `models.checkpoint.LoadOptions`; the rest goes to `Policy`.

        Returns:
            The policy.
        """
        named = [field.name for field in fields(LoadOptions) if field.name in options]
        chosen = LoadOptions(**{name: options.pop(name) for name in named})
        return cls(*load_checkpoint(path, chosen), **options)

    @property
    def eos_token_id(self) -> int | None:
        """The first of `eos_token_ids`, which is put after a finished text; None if there is none.

        Setting it makes it the only one.
        """
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @eos_token_id.setter
    def eos_token_id(self, value: int | None) -> None:
        self.eos_token_ids = () if value is None else (value,)

    @property
    def device(self) -> torch.device:
        """Device of the trainable parameters."""
        return next(p for p in self.model.parameters() if p.requires_grad).device

    @property
    def sharded(self) -> bool:
        """Whether the base is spread over processes (`models.sharding`)."""
        return is_spread(self.model)

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

    @property
    def theta(self) -> Vector:
        """θ: the trainable parameters by name, detached, sharing the model's memory."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parts(self) -> Vector:
        """What this process holds of θ: θ itself, where it is not spread over processes."""
        return {n: local_part(p) for n, p in self.theta.items()}

    @property
    def spreads_theta(self) -> bool:
        """Whether trained parameters are spread over processes (`models.layerwise`)."""
        return any(is_sharded(p) for p in self.model.parameters() if p.requires_grad)

    def parameters_along(self, direction: Vector, eta: Tensor | float) -> Point:
        """θ + ηv, added in float64 and then rounded to the runtime dtype.

        Args:
            direction: v by parameter name.
            eta: A number, or a scalar tensor to differentiate by.

        Returns:
            The shifted parameters; those that are spread are added up where they are used.
        """
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        return {
            n: Moved(direction[n], eta)
            if is_sharded(p)
            else moved_along(p.detach(), direction[n], eta)
            for n, p in trained.items()
        }

    def require_direction(self, direction: Mapping[str, Tensor]) -> None:
        """Refuse a vector that is not over exactly θ.

        Args:
            direction: A named vector.

        Raises:
            ValueError: If it holds NaN or infinity.
        """
        require_same_names(self.theta, direction)
        wrong = {n: (~local_part(x).isfinite()).sum() for n, x in direction.items()}
        for name, entries in zip(wrong, total(wrong, direction), strict=True):
            if entries:
                raise ValueError(f"The direction is not finite in parameter {name!r}.")

    @contextmanager
    def shifted(self, direction: Vector, eta: float) -> Generator[None]:
        """Put θ + ηv into the model for a block, then restore θ exactly.

        Only sampling needs this; scoring at θ + ηv does not change the model.

        Args:
            direction: v by parameter name.
            eta: Step size.

        Yields:
            Nothing.
        """
        self.require_direction(direction)
        saved = {n: p.clone() for n, p in self.theta.items()}
        moved = {n: moved_along(p, direction[n], eta) for n, p in self.theta.items()}
        try:
            self._write(moved)
            yield
        finally:
            self._write(saved)

    def _write(self, values: Vector) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in values:
                    parameter.copy_(values[name])

    def packed_scores(
        self, batch: MicroBatch, params: Point | None = None, directions: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every response token of a micro-batch.

        Differentiable in `params` by forward and reverse mode.

        Args:
            batch: Micro-batch on the policy's device.
            params: Trainable parameters to use, θ by default.
            directions: Directions of a forward-mode pass that this is in.

        Returns:
            (s, H), each (m,), nats.
        """
        s, entropy = self._call(batch, params, 0, directions=directions)
        return s, entropy

    def packed_scores_and_features(self, batch: MicroBatch, features: int) -> tuple[Tensor, ...]:
        """Like `packed_scores` at θ, with (m, features) projected hidden states as third."""
        return self._call(batch, None, features)

    def packed_scores_and_variances(
        self, batch: MicroBatch, params: Point | None = None
    ) -> tuple[Tensor, ...]:
        """Like `packed_scores`, with V and F of `spread`, each (m,), as third and fourth."""
        return self._call(batch, params, 0, variances=True)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the policy can draw."""
        return int(self.causal_lm.config.vocab_size)

    def packed_hidden(
        self, batch: MicroBatch, params: Point | None = None, directions: int = 1
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
        self.require_no_dropout()
        forward_mode = params is not None
        plain = forward_mode or self.precision.runtime_dtype == "float64"  # attention's kernel
        blocks = attention_in_blocks(self.causal_lm, batch.input_ids, directions)
        with (
            self.precision.active(forward_mode=forward_mode),
            refusal_by_name(self.causal_lm),
            blocks if plain else nullcontext(),
        ):
            if params is None:
                return self.scorer.hidden(batch)
            with layers_at(self.model, params):
                return functional_call(HiddenStates(self.model), self._whole(params), (batch,))

    def packed_divergence(
        self, batch: MicroBatch, params: Point, reference: Reference, remainder: bool
    ) -> Tensor:
        """Scores of a micro-batch at other parameters, and how far they are from the sampler.

        Args:
            batch: Micro-batch on the policy's device.
            params: Trainable parameters to use.
            reference: What the tokens were drawn from.
            remainder: Whether to compute ρ too.

        Returns:
            (m, 4) s, H, χ² and κ, or (m, 6) with ρ_2 and ρ_4 (`divergence`).
        """
        self.require_no_dropout()
        options = (self.temperature, self.vocab_chunk, self.precision.entropy, remainder)
        blocks = attention_in_blocks(self.causal_lm, batch.input_ids)
        in_layers, arguments = layers_at(self.model, params), (batch, reference, *options)
        with self.precision.active(), refusal_by_name(self.causal_lm), blocks, in_layers:
            return functional_call(DivergentScorer(self.model), self._whole(params), arguments)

    def _call(
        self,
        batch: MicroBatch,
        params: Point | None,
        features: int,
        variances: bool = False,
        directions: int = 1,
    ) -> tuple[Tensor, ...]:
        self.require_no_dropout()
        point = params or self.theta
        chunk, dtype = self.vocab_chunk, self.precision.entropy
        arguments = (batch, self.temperature, chunk, dtype, features, variances)
        blocks = attention_in_blocks(self.causal_lm, batch.input_ids, directions)
        in_layers = layers_at(self.model, point)
        with self.precision.active(), refusal_by_name(self.causal_lm), blocks, in_layers:
            return functional_call(self.scorer, self._whole(point), arguments)

    def _whole(self, point: Point) -> Vector:
        """The parameters that are not spread, by the scorer's names."""
        names = self.scorer.inner_names
        plain = {n: p for n, p in point.items() if isinstance(p, Tensor)}
        return {names[n]: p for n, p in plain.items() if not is_sharded(p)}

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
        if precision.runtime is None:
            self.precision = precision
            return self
        if getattr(self.scorer.lm, "is_quantized", False):
            if precision.runtime_dtype == "float64":
                raise ValueError("A quantised base cannot run in float64: use float32.")
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(precision.runtime)
        else:
            self.model.to(precision.runtime)
            exchange_as_stored(self.model)
        use_eager_experts(self.causal_lm)
        require_exact_inputs(self.causal_lm)
        write_out_products(self.causal_lm)
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
        require_own_logits(self.scorer, self.temperature, self.precision, rollouts, scores)

    def rounding_operations(self) -> list[str]:
        """The operations of a forward pass in float64 whose results are shorter, as of now."""
        return rounding_operations(self.scorer, self.precision)

    def require_no_dropout(self) -> None:
        """Refuse to evaluate while dropout acts.

        Raises:
            ValueError: Naming a module with active dropout.
        """
        if active := active_dropout(self.model):
            raise ValueError(
                f"Dropout is active in {len(active)} modules, the first is {active[0]!r}: the "
                "policy would be random. Call model.eval(), and train with dropout 0."
            )

    def _require_trainable(self, expected: Iterable[str] | None) -> None:
        if not self.names:
            raise ValueError("The model has no parameter that requires a gradient: θ is empty.")
        if expected is not None and (other := set(expected) ^ set(self.names)):
            raise ValueError(
                f"The trainable set is not the one asserted: {len(other)} names differ, the first "
                f"is {sorted(other)[0]!r}."
            )
