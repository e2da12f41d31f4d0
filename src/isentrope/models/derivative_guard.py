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
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from isentrope.models.architecture import derivative_of_scores, name_of
from isentrope.models.precision import Precision
from isentrope.models.sharding import Moved, is_spread, layers_at, moved_along
from isentrope.nouns.differences import Function, Gap, Mode, derivative_gap
from isentrope.nouns.vectors import Vector, is_sharded, local_part, sharded_like, total
from isentrope.system.memory import free_memory, mapped_blocks

log = logging.getLogger("isentrope")

MASKED = 1e6
"""Inputs of a module from this size on are masks, and are not moved."""

_FIRST_ORDER = "Ask for the first order only (order=1; `measure.order: 1`). "


class DerivativeError(ValueError):
    """torch differentiates a part of the model wrongly."""


def compare_derivatives(
    model: nn.Module, scorer: Any, arguments: tuple[Any, ...], mode: Mode
) -> None:
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
    first = mode in ("forward", "backward")
    for dtype in _types(model, first=first):
        precision = Precision("float64" if dtype == torch.float64 else "float32")
        gap_of = partial(derivative_gap, mode=mode, dtype=dtype)
        with mapped_blocks(), precision.active(), derivative_of_scores(model):
            try:
                gap = gap_of(_scores_along(model, scorer, arguments, dtype))
            except RuntimeError:  # an operation that has no such type, or no memory
                if is_spread(model):  # the other processes go on, and would wait for this one
                    raise
                continue
            if gap.wrong:
                # a module of spread layers that is called alone is not gathered
                spread = is_spread(model)
                culprit = "the model" if spread else _culprit(scorer, arguments, gap_of, dtype)
                raise DerivativeError(
                    f"The derivatives of {culprit} are wrong: {mode}, "
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


def _scores_along(
    model: nn.Module, scorer: Any, arguments: tuple[Any, ...], dtype: torch.dtype
) -> Function:
    """The scores (2, m), as the parameters move in the random direction."""
    theta = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    names = scorer.inner_names
    tensors = _converted(scorer, dtype)
    sizes = _sizes(theta)
    largest = max(sizes.values())
    along = {n: _noise(p, sizes[n] or largest, k) for k, (n, p) in enumerate(theta.items())}
    spread = {n for n, p in theta.items() if is_sharded(p)}

    def scores(e: Tensor) -> Tensor:
        moved = {
            names[n]: moved_along(tensors[names[n]], along[n], e) for n in along.keys() - spread
        }
        with layers_at(model, {n: Moved(along[n], e) for n in spread}):
            return torch.stack(functional_call(scorer, tensors | moved, arguments))

    return scores


def _converted(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters and buffers in `dtype`, by name."""
    named = chain(module.named_parameters(), module.named_buffers())
    return {n: x.detach().to(dtype) for n, x in named if x.is_floating_point()}


def _sizes(tensors: Vector) -> dict[str, float]:
    """Root mean squares."""
    squares = {n: local_part(x).double().square().sum() for n, x in tensors.items()}
    pairs = zip(tensors.items(), total(squares, tensors), strict=True)
    return {n: (square / max(1, x.numel())) ** 0.5 for (n, x), square in pairs}


def _noise(x: Tensor, size: float, seed: int = 0) -> Tensor:
    """Normal numbers of a root mean square."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return sharded_like(size * noise, x)


def _culprit(
    scorer: Any, arguments: tuple[Any, ...], gap_of: Callable[[Function], Gap], dtype: torch.dtype
) -> str:
    """The class of the smallest module whose derivatives by inputs and parameters are wrong.

    Every module is called as it was first called while two short sequences were scored.

    Returns:
        The class and the name.
    """
    calls: dict[nn.Module, tuple[Any, ...]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(module, (args, dict(kwargs)))

    names = {module: name for name, module in scorer.lm.named_modules()}
    with ExitStack() as stack, torch.no_grad():
        for module in names:
            handle = module.register_forward_pre_hook(keep, with_kwargs=True)
            stack.callback(handle.remove)
        functional_call(scorer, _converted(scorer, dtype), arguments)
    for module in sorted(calls, key=lambda module: len([*module.modules()])):
        try:
            if gap_of(_outputs_along(module, calls[module], dtype)).wrong:
                kind = getattr(module, "original_name", type(module).__name__)
                return f"{kind} ({names[module]})"
        except (RuntimeError, TypeError):  # it gives no tensors, or refuses other inputs
            continue
    return "what the model does between its modules"


def _outputs_along(module: nn.Module, call: tuple[Any, ...], dtype: torch.dtype) -> Function:
    """All a module returns, as its inputs and parameters move in a random direction."""
    tensors = _converted(module, dtype)

    def moved(x: Any, e: Tensor) -> Any:
        finite = isinstance(x, Tensor) and x.is_floating_point() and float(x.abs().max()) < MASKED
        return moved_along(x, _noise(x, _sizes({"x": x})["x"] or 1.0), e) if finite else x

    def output(e: Tensor) -> Tensor:
        parameters, inputs = tree_map(partial(moved, e=e), (tensors, call))
        leaves = tree_leaves(functional_call(module, parameters, *inputs))
        return torch.cat([x.flatten() for x in leaves if torch.is_floating_point(x)])

    return output
