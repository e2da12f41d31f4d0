"""Compares a model's derivatives with finite differences, once per policy and way to take them.

Scores of two short sequences at θ + e d, with d a fixed random direction as large as θ, are
differentiated by e in the mode that will be used, and compared (`differences`): an operation
without a rule for a mode has a derivative of 0 there, without an error. The model is evaluated in
float64, on a copy of its tensors; the model itself is not changed. Where that is impossible (no
memory, an operation that has no float64, or a base that is spread over processes), and for first
derivatives of a float32 policy, it is compared as it is, which finds errors of some per cent. A
shorter one is then not compared at all.
"""

# pyright: reportMissingTypeStubs=false

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from isentrope.models.architecture import name_of
from isentrope.models.embeddings import derivative_of_scores
from isentrope.models.precision import Precision
from isentrope.models.sharding import Moved, is_spread, layers_at, moved_along
from isentrope.nouns.differences import Function, Gap, Mode, derivative_gap
from isentrope.nouns.vectors import Vector, is_sharded, local_part, sharded_like, total
from isentrope.system.memory import free_memory, mapped_blocks

log = logging.getLogger("isentrope")

MASKED = 1e6
"""Inputs of a module from this size on are masks, and are not moved."""


Arguments = tuple[Any, ...]

_FIRST_ORDER = "Ask for the first order only (order=1; `measure.order: 1`). "


class DerivativeError(ValueError):
    """torch differentiates a part of the model wrongly."""


@dataclass(frozen=True)
class _Pass:
    """A pass whose derivatives are compared; the fields are arguments of `compare_derivatives`."""

    model: nn.Module
    scorer: Any
    arguments: Arguments
    mode: Mode


def compare_derivatives(model: nn.Module, scorer: Any, arguments: Arguments, mode: Mode) -> None:
    """Refuse a model whose derivatives are wrong.

    Args:
        model: Whose trainable parameters move, and whose layers may be spread over processes.
        scorer: The module that gives the scores (s, H) of the model, which it holds as `lm`;
            `inner_names` are its names of the model's parameters.
        arguments: What it is called with: a few short sequences first.
        mode: How derivatives are about to be computed.

    Raises:
        DerivativeError: If they are wrong, naming the class of the module at fault.
        RuntimeError: What torch raised, where layers are spread over processes.
    """
    pass_of = _Pass(model, scorer, arguments, mode)
    first = mode in ("forward", "backward")
    for dtype in _types(model, first=first):
        precision = Precision("float64" if dtype == torch.float64 else "float32")
        with mapped_blocks(), precision.active(), derivative_of_scores(model):
            try:
                gap = _gap(pass_of, dtype)
            except RuntimeError:  # an operation that has no such type, or no memory
                if is_spread(model):  # the other processes go on, and would wait for this one
                    raise
                continue
            if gap.wrong:
                raise DerivativeError(
                    f"The derivatives of {_culprit(pass_of, dtype)} are wrong: {mode}, "
                    f"on two short sequences, the model's are {gap.error:.1%} from differences. "
                    f"{'' if first else _FIRST_ORDER}Write that module in elementary operations of "
                    "torch, or load the model without custom kernels."
                )
        break
    else:
        log.warning(
            "Derivatives (%s) of %s are not compared with finite differences: that takes a copy in "
            "float64, or a model in float32.",
            mode,
            name_of(scorer.lm),
        )


def _types(model: nn.Module, *, first: bool) -> Iterator[torch.dtype]:
    """float64 where there is room for a copy, then float32; that alone for first derivatives."""
    tensors = [p for p in model.parameters() if p.is_floating_point()]
    shorter = [p for p in tensors if p.dtype != torch.float64]
    # the layers of a sharded base are exchanged in their own type
    room = 0 if is_spread(model) else free_memory(tensors[0].device) / 2
    plain = {p.dtype for p in tensors} == {torch.float32}
    fits = not shorter or 8 * sum(p.numel() for p in shorter) < room
    if fits and not (first and plain):
        yield torch.float64
    if plain:
        yield torch.float32


def _gap(of: _Pass, dtype: torch.dtype) -> Gap:
    """The derivatives of the scores along the random direction."""
    theta = {n: p.detach() for n, p in of.model.named_parameters() if p.requires_grad}
    names = of.scorer.inner_names
    tensors = _converted(of.scorer, dtype)
    sizes = _sizes(theta)
    largest = max(sizes.values())
    along = {n: _noise(p, sizes[n] or largest, k) for k, (n, p) in enumerate(theta.items())}
    spread = {n for n, p in theta.items() if is_sharded(p)}

    def scores(e: Tensor) -> Tensor:
        in_layers = {n: Moved(along[n], e) for n in spread}
        moved = {
            names[n]: moved_along(tensors[names[n]], along[n], e) for n in along.keys() - spread
        }
        with layers_at(of.model, in_layers):
            return torch.stack(functional_call(of.scorer, tensors | moved, of.arguments))  # (2, m)

    return derivative_gap(scores, mode=of.mode, dtype=dtype)


def _converted(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters and buffers in `dtype`, by name."""
    named = chain(module.named_parameters(), module.named_buffers())
    return {n: x.detach().to(dtype) for n, x in named if x.is_floating_point()}


def _sizes(tensors: Vector) -> dict[str, float]:
    """Root mean squares."""
    squares = {n: local_part(x).double().square().sum() for n, x in tensors.items()}
    pairs = zip(tensors.items(), total(squares, tensors), strict=True)
    return {n: (square / x.numel()) ** 0.5 if x.numel() else 0.0 for (n, x), square in pairs}


def _noise(x: Tensor, size: float, seed: int = 0) -> Tensor:
    """Normal numbers of a root mean square."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return sharded_like(size * noise, x)


_Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module, and what it was called with."""


def _culprit(of: _Pass, dtype: torch.dtype) -> str:
    """The class of the smallest module whose derivatives by inputs and parameters are wrong."""
    if is_spread(of.model):  # a module that is called alone is not gathered
        return "the model"
    calls = _calls(of, dtype)
    for name, call in sorted(calls, key=lambda x: len([*x[1][0].modules()])):
        try:
            if derivative_gap(_of_module(*call, dtype), mode=of.mode, dtype=dtype).wrong:
                kind = getattr(call[0], "original_name", type(call[0]).__name__)
                return f"{kind} ({name})"
        except (RuntimeError, TypeError):  # it gives no tensors, or refuses other inputs
            continue
    return "what the model does between its modules"


def _calls(of: _Pass, dtype: torch.dtype) -> list[tuple[str, _Call]]:
    """The first call of every module by name, while two short sequences are scored."""
    calls: dict[str, _Call] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(name, (module, args, dict(kwargs)))

        return hook

    with ExitStack() as stack, torch.no_grad():
        for name, module in of.scorer.lm.named_modules():
            handle = module.register_forward_pre_hook(keep(name), with_kwargs=True)
            stack.callback(handle.remove)
        functional_call(of.scorer, _converted(of.scorer, dtype), of.arguments)
    return list(calls.items())


def _of_module(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> Function:
    """All a module returns, as its inputs and parameters move in a random direction."""
    tensors = _converted(module, dtype)

    def moved(x: Any, e: Tensor) -> Any:
        finite = isinstance(x, Tensor) and x.is_floating_point() and float(x.abs().max()) < MASKED
        return moved_along(x, _noise(x, _sizes({"x": x})["x"] or 1.0), e) if finite else x

    def output(e: Tensor) -> Tensor:
        parameters = {n: moved(x, e) for n, x in tensors.items()}
        inputs = tree_map(partial(moved, e=e), (args, kwargs))
        leaves = tree_leaves(functional_call(module, parameters, *inputs))
        return torch.cat([x.flatten() for x in leaves if torch.is_floating_point(x)])

    return output
