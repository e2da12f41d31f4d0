"""The kinds of layer whose per-sequence gradients hooks can compute, and those of a model.

For a micro-batch with inputs x (b, l, in) and output gradients g (b, l, out):

    linear      W: Σ_l g_l x_lᵀ      bias: Σ_l g_l          (stored transposed in a Conv1D)
    embedding   W: g_l, times its constant scale if it has one, added to the row of its token
    norm        w: Σ_l g_l ⊙ x̂_l    bias: Σ_l g_l          x̂ = y(w = 1) − y(w = 0), no bias

Padding needs no mask: a causal model's output gradients are exactly zero there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from isentrope.models.batching import MicroBatch
from isentrope.policy.language_model import Policy


@dataclass(frozen=True)
class Layer:
    """A module with its own trainable parameters.

    Attributes:
        module: The module.
        names: Its own parameter names ("weight", "bias") → the model's.
    """

    module: nn.Module
    names: dict[str, str]

    def keep(self, x: Tensor) -> Tensor:
        """What of the input is needed later: the input itself, or x̂ of a norm."""
        if not _is_norm(self.module) or "weight" not in self.names:
            return x
        parameters = dict(self.module.named_parameters())

        def output(weight: float) -> Tensor:
            filled = {
                n: torch.full_like(p, weight if n == "weight" else 0.0)
                for n, p in parameters.items()
            }
            return functional_call(self.module, filled, (x,))

        return output(1.0) - output(0.0)

    def gradient(self, parameter: str, x: Tensor, g: Tensor) -> Tensor:
        """The gradients of one of its parameters.

        Args:
            parameter: Its name in the layer, "weight" or "bias".
            x: (b, l, in) what was kept of the input.
            g: (b, l, out) output gradients.

        Returns:
            (b, *shape).
        """
        module = self.module
        if parameter == "bias":
            return g.sum(1)
        if isinstance(module, nn.Embedding):
            if module.padding_idx is not None:
                g = g.masked_fill((x == module.padding_idx)[..., None], 0.0)
            g = g * getattr(module, "embed_scale", 1.0)  # as transformers calls a constant factor
            out = g.new_zeros(len(x), *module.weight.shape)
            rows = torch.arange(len(x), device=x.device)[:, None].expand_as(x)
            return out.index_put_((rows, x), g, accumulate=True)
        if _is_norm(module):
            return (x * g).sum(1)
        return x.mT @ g if isinstance(module, Conv1D) else g.mT @ x


HandOver = Callable[[Layer, Tensor, Tensor], None]
"""Called with a layer, what it keeps of its input, and its output gradient."""


def find_layers(policy: Policy) -> list[Layer]:
    """The layers that hold a policy's trainable parameters.

    Args:
        policy: The policy.

    Returns:
        One layer per module.

    Raises:
        ValueError: If a trainable parameter is in a module of another kind.
    """
    name_of = {id(p): n for n, p in policy.model.named_parameters() if p.requires_grad}
    layers = []
    for path, module in policy.model.named_modules():
        parameters = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        names = {key: name_of[id(p)] for key, p in parameters.items() if id(p) in name_of}
        if not names:
            continue
        plain = type(module) in (nn.Linear, Conv1D)
        if not (plain or isinstance(module, nn.Embedding) or _is_norm(module)):
            raise ValueError(
                f"The trainable parameter {next(iter(names.values()))!r} is in "
                f"{path or 'the model'!r}, a {type(module).__name__}, a kind of layer whose "
                "per-sequence gradients the hooks do not support. Use GradientOptions('loop') (in "
                "a config: analysis.gradient_backend=loop), which takes one backward pass per "
                "sequence and is exact for every kind of layer; or freeze the parameter."
            )
        layers.append(Layer(module, names))
    return layers


def _is_norm(module: nn.Module) -> bool:
    """An elementwise scale and shift after a normalisation, in any library's spelling."""
    parameters = dict(module.named_parameters(recurse=False))
    of_norms = set(parameters) <= {"weight", "bias"}
    vectors = of_norms and all(p.ndim == 1 for p in parameters.values())
    return vectors and "Norm" in type(module).__name__


@contextmanager
def recorded(policy: Policy, layers: list[Layer], hand_over: HandOver) -> Iterator[list[Tensor]]:
    """Forward hooks that keep each layer's input, and hand it over when its gradient is known.

    Args:
        policy: The policy.
        layers: Its layers with trainable parameters.
        hand_over: Called with a layer, what it keeps of its input, and its output gradient.

    Yields:
        Where autograd may stop: nothing trainable is below.
    """
    sources: list[Tensor] = []
    inside = False

    def stop(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Embeddings that were made to require a gradient (for checkpointing) hide the sources."""
        if output.requires_grad:
            sources.append(output)

    def hook_of(layer: Layer) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            nonlocal inside
            if inside or not output.requires_grad:  # inside: a norm asked for its x̂
                return
            inside = True
            with torch.no_grad():
                inputs = layer.keep(args[0].detach())
            inside = False
            if not args[0].requires_grad:
                sources.append(output)
            output.register_hook(lambda g: hand_over(layer, inputs, g))

        return hook

    hooks = [(policy.causal_lm.get_input_embeddings(), stop)]
    hooks += [(layer.module, hook_of(layer)) for layer in layers]
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield sources
    finally:
        for handle in handles:
            handle.remove()
        sources.clear()  # hooks and tensors refer to each other: a cycle would hold memory


def by_sequence(x: Tensor, batch: MicroBatch) -> Tensor:
    """Bring a layer's input or output gradient to (b, l, ...): packed tokens are put in place.

    Axes between the first and the last count as positions: those of a norm over each head, (b, l,
    heads, d) or (b, heads, l, d).

    Args:
        x: (b, l), (b, l, d), (b, ..., d), or packed (m, d) as the output embedding has it.
        batch: The micro-batch.

    Returns:
        One row per sequence.

    Raises:
        ValueError: If the tensor does not keep the sequences apart.
    """
    size, longest = batch.input_ids.shape
    packed = x.ndim == 2 and x.is_floating_point()
    if len(x) == size and x.ndim > 3:
        return x.flatten(1, -2)
    if x.shape[:2] == (size, longest) and not packed:
        return x
    if packed and len(x) == len(batch.rows):
        padded = x.new_zeros(size, int(batch.positions.max()) + 1, x.shape[1])
        padded[batch.rows, batch.positions] = x
        return padded
    raise ValueError(
        f"A layer's tensor has shape {tuple(x.shape)} for {size} sequences of {longest} tokens, so "
        "the sequences cannot be separated. Use GradientOptions('loop') (in a config: "
        "analysis.gradient_backend=loop)."
    )
