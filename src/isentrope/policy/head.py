"""A causal LM by its hidden states and its output embedding, and the derivatives of scores there.

With logits l = W h + b, and π = softmax(l/T) at the position that predicts token t,

    ∂s/∂l_a = (1{a = t} − π_a)/T              ∂H/∂l_a = −π_a (log π_a + H)/T
    ∂s/∂h   = (W_t − Σ_a π_a W_a)/T

So a gradient goes back from the hidden states, and a directional derivative of s is a dot product
with ∂s/∂h, the same for every direction. No graph over (tokens × vocabulary) is built. The model is
run without its loss: hidden states at response positions, then the head in chunks.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isentrope.models.architecture import decoder_of, head_of, refusal_by_name
from isentrope.models.attention import attention_in_blocks, hidden_after_prompt
from isentrope.models.batching import MicroBatch
from isentrope.models.module_state import KeptAttributes, shares_trained_parameters
from isentrope.models.precision import Precision
from isentrope.models.sharding import Parameters
from isentrope.parallel.sharded import is_sharded
from isentrope.policy.token_statistics import Softmax, rows_held, token_statistics


class Scorer(nn.Module):
    """What is computed of a micro-batch: a module, so that `functional_call` gives it other θ.

    Attributes:
        lm: The causal LM itself, inside any adapter wrapper.
        inner_names: The model's parameter names → this module's.
    """

    lm: Any
    _outermost: tuple[Any]  # not a part, whose parameters would have two names

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.lm = model.get_base_model() if hasattr(model, "peft_config") else model
        if any(c.is_prompt_learning for c in getattr(model, "peft_config", {}).values()):
            raise ValueError("Prompt-learning adapters are not supported; use LoRA or none.")
        self._outermost = (model,)
        self._kept: KeptAttributes | None = None
        outer = {id(p): n for n, p in model.named_parameters()}
        self.inner_names = {outer[id(p)]: n for n, p in self.named_parameters()}

    @property
    def outermost(self) -> Any:
        """The model that is trained: the causal LM, or an adapter's wrapper around it."""
        return self._outermost[0]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters()).device

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

    @contextmanager
    def several_passes(self) -> Generator[None]:
        """A block of passes between which nothing else changes the model.

        What its modules have is then looked at once, and not once per pass. A block within another
        one has what that has.

        Yields:
            Nothing.
        """
        outer = self._kept
        self._kept = outer or KeptAttributes(self.outermost)
        try:
            yield
        finally:
            self._kept = outer

    @contextmanager
    def evaluating(
        self,
        precision: Precision,
        input_ids: Tensor,
        directions: int = 1,
        *,
        forward_mode: bool = True,
    ) -> Generator[None]:
        """A block in which the model reads sequences, and is refused where its own code fails.

        What its modules assign meanwhile is gone afterwards.

        Args:
            precision: Precision in force.
            input_ids: (b, l) what is read.
            directions: Directions of a forward-mode pass that this is in.
            forward_mode: As for `Precision.active`.

        Yields:
            Nothing.
        """
        # the plain kernel holds all attention weights of a layer; the fused ones never do
        plain = forward_mode or precision.runtime_dtype == "float64"
        blocks = attention_in_blocks(self.lm, input_ids, directions)
        with (
            precision.active(forward_mode=forward_mode),
            refusal_by_name(self.lm),
            self._kept or KeptAttributes(self.outermost),
            blocks if plain else nullcontext(),
        ):
            yield

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of this module gives, such as `Scorer.scores` or `Scorer.hidden`."""
        return function(self, *arguments)

    def at(self, params: Parameters, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of this module gives at other parameters.

        Args:
            params: By the model's names. Layers that are spread are replaced where they are
                gathered (`layers_at`).
            function: Such as `Scorer.scores`.
            *arguments: What it takes.

        Returns:
            Its result.
        """
        names = self.inner_names
        unsharded = {
            names[n]: p for n, p in params.items() if isinstance(p, Tensor) and not is_sharded(p)
        }
        # torch looks for other names of each parameter in all modules, once per micro-batch
        tied = shares_trained_parameters(self)
        return functional_call(self, unsharded, (function, *arguments), tie_weights=tied)

    def scores(
        self,
        batch: MicroBatch,
        softmax: Softmax,
        features: int = 0,
        variances: bool = False,
    ) -> tuple[Tensor, ...]:
        """Score a micro-batch.

        Args:
            batch: Micro-batch on the model's device.
            softmax: Of the logits.
            features: Number of projected hidden-state features to return as well.
            variances: Whether to return V and F of `token_statistics` as well.

        Returns:
            s and H, each (m,), then V and F, or (m, features), if requested.
        """
        hidden = self.hidden(batch)
        scores = token_statistics(hidden, self.head, batch.targets, softmax, variances)
        if not features:
            return scores
        generator = torch.Generator().manual_seed(0)
        matrix = torch.randn(hidden.shape[1], features, generator=generator, dtype=torch.float64)
        return (*scores, hidden.double() @ (matrix / hidden.shape[1] ** 0.5).to(hidden.device))


def is_frozen_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether an output embedding is a plain linear layer without trainable parameters."""
    return type(head) is nn.Linear and not any(p.requires_grad for p in head.parameters())


def hidden_gradient(
    hidden: Tensor,
    head: nn.Linear,
    targets: Tensor,
    a: Tensor,
    b: Tensor | None,
    temperature: float,
    of_weight: Tensor | None = None,
) -> Tensor:
    """∂ Σ_k (a_k s_k + b_k H_k) / ∂ hidden.

    Args:
        hidden: (m, d) hidden states.
        head: Output embedding.
        targets: (m,) predicted tokens.
        a: (m,) weights of the log-probabilities.
        b: (m,) weights of the entropies, or None.
        temperature: Sampling temperature T.
        of_weight: (v, d), to which the same sum's derivative by the weights is added in 16 bits,
            as TRL's fused head takes it; None where it is not needed.

    Returns:
        (m, d) at the dtype of `hidden`.
    """
    gradient = torch.empty_like(hidden)
    with torch.no_grad():
        rows = rows_held(head.weight.shape[0], hidden.device)
        for start in range(0, len(hidden), rows):
            block = slice(start, start + rows)
            logits = nn.functional.linear(hidden[block], head.weight, head.bias)
            by_logits = logit_gradient(
                logits, targets[block], a[block], None if b is None else b[block], temperature
            )
            # under autocast factors are rounded to the type of the logits, and the products are
            # added up in the type of the weights, as TRL's fused head does it
            factor, weight, states = (
                x.to(logits.dtype).to(head.weight.dtype)
                for x in (by_logits, head.weight, hidden[block])
            )
            with torch.autocast(factor.device.type, enabled=False):
                gradient[block] = (factor @ weight).to(hidden)
                if of_weight is not None:
                    of_weight += factor.T @ states
    return gradient


def logit_gradient(
    logits: Tensor, targets: Tensor, a: Tensor, b: Tensor | None, temperature: float
) -> Tensor:
    """∂ Σ_k (a_k s_k + b_k H_k) / ∂ logits.

    Args:
        logits: (m, v).
        targets: (m,) predicted tokens.
        a: (m,) weights of the log-probabilities.
        b: (m,) weights of the entropies, or None.
        temperature: Sampling temperature T.

    Returns:
        (m, v) at the dtype of the logits, at least float32.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    scaled = logits.to(dtype) / temperature
    pull = a[:, None].to(dtype)
    if b is None:
        gradient = scaled.softmax(-1).mul_(-pull)
    else:
        log_p = scaled.log_softmax(-1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1, keepdim=True)
        gradient = -p * (pull + b[:, None].to(dtype) * (log_p + entropy))
    return gradient.scatter_add_(1, targets[:, None], pull).div_(temperature)
