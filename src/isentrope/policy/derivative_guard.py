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

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import get_max_memory
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from isentrope.nouns.differences import Function, Gap, Mode, derivative_gap
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.sharded_tensors import is_sharded, sharded_like
from isentrope.nouns.vectors import norm
from isentrope.policy.architecture import name_of
from isentrope.policy.batching import MicroBatch, micro_batches
from isentrope.policy.layerwise import Moved, layers_at, moved_along
from isentrope.policy.padding import derivative_of_scores
from isentrope.policy.precision import Precision
from isentrope.system.heap import give_back_free_memory, mapped_blocks

if TYPE_CHECKING:
    from isentrope.policy.language_model import Policy

log = logging.getLogger("isentrope")

TOKENS = 4
"""Prompt tokens and response tokens that are kept of a sequence."""

MASKED = 1e6
"""Inputs of a module from this size on are masks, and are not moved."""


_FIRST_ORDER = "Ask for the first order only (order=1; `measure.order: 1`). "


class DerivativeError(ValueError):
    """torch differentiates a part of the model wrongly."""


def require_derivatives(policy: Policy, rollouts: Rollouts, mode: Mode = "forward") -> None:
    """Refuse a policy whose derivatives are wrong. Later calls with the policy cost nothing.

    Args:
        policy: The policy.
        rollouts: The first two sequences are used, cut short.
        mode: How derivatives are about to be computed.

    Raises:
        DerivativeError: If they are wrong, naming the class of the module at fault.
        RuntimeError: What torch raised, where layers are spread over processes.
    """
    dtype_of_theta = next(iter(policy.theta.values())).dtype
    known = {way for way, dtype in policy.compared_derivatives if dtype == dtype_of_theta}
    if mode in known or (mode == "forward" and "forward over forward" in known):
        return
    policy.require_no_dropout()
    (batch,) = micro_batches(_short(rollouts), 4 * TOKENS**2, padding=4 * TOKENS**2)
    batch = batch.to(policy.device)
    first = mode in ("forward", "backward")
    for dtype in _types(policy, first=first):
        with mapped_blocks(), _precision(dtype), derivative_of_scores(policy.model):
            try:
                gap = _gap(policy, batch, dtype, mode)
            except RuntimeError:  # an operation that has no such type, or no memory
                if policy.sharded:  # the other processes go on, and would wait for this one
                    raise
                continue
            if gap.wrong:
                raise DerivativeError(
                    f"The derivatives of {_culprit(policy, batch, dtype, mode)} are wrong: {mode}, "
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
            name_of(policy.causal_lm),
        )
    give_back_free_memory()  # of the copy of all weights
    policy.compared_derivatives.add((mode, dtype_of_theta))


def _short(rollouts: Rollouts) -> Rollouts:
    n = min(2, len(rollouts))
    return Rollouts(
        [p[-TOKENS:] for p in rollouts.prompt_ids[:n]],
        [r[:TOKENS] for r in rollouts.response_ids[:n]],
        torch.arange(n),
    )


def _types(policy: Policy, *, first: bool) -> Iterator[torch.dtype]:
    """float64 where there is room for a copy, then float32; that alone for first derivatives."""
    tensors = [p for p in policy.model.parameters() if p.is_floating_point()]
    shorter = [p for p in tensors if p.dtype != torch.float64]
    where: Any = policy.device.index or 0 if policy.device.type == "cuda" else "cpu"
    # the layers of a sharded base are exchanged in their own type
    room = 0 if policy.sharded else get_max_memory()[where] / 2
    if first and {p.dtype for p in tensors} == {torch.float32}:
        yield torch.float32
        return
    if not shorter or 8 * sum(p.numel() for p in shorter) < room:
        yield torch.float64
    if {p.dtype for p in tensors} == {torch.float32}:
        yield torch.float32


def _precision(dtype: torch.dtype) -> AbstractContextManager[None]:
    return Precision("float64" if dtype == torch.float64 else "float32").active()


def _gap(policy: Policy, batch: MicroBatch, dtype: torch.dtype, mode: Mode) -> Gap:
    """The derivatives of the scores along the random direction."""
    scorer = policy.scorer
    tensors = _converted(scorer, dtype)
    size = max(_size(p) for p in policy.theta.values())
    along = {n: _noise(p, k, size) for k, (n, p) in enumerate(policy.theta.items())}

    arguments = _arguments(policy, batch)

    spread = {n for n, p in policy.theta.items() if is_sharded(p)}

    def scores(e: Tensor) -> Tensor:
        in_layers = {n: Moved(along[n], e) for n in spread}
        names = {n: scorer.inner_names[n] for n in along.keys() - spread}
        moved = {inner: moved_along(tensors[inner], along[n], e) for n, inner in names.items()}
        with layers_at(policy.model, in_layers):
            return torch.stack(functional_call(scorer, tensors | moved, arguments))

    return derivative_gap(scores, mode=mode, dtype=dtype, device=policy.device)


def _arguments(policy: Policy, batch: MicroBatch) -> tuple[Any, ...]:
    return batch, policy.temperature, policy.vocab_chunk, policy.precision.entropy


def _converted(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters and buffers in `dtype`, by name."""
    named = chain(module.named_parameters(), module.named_buffers())
    return {n: x.detach().to(dtype) for n, x in named if x.is_floating_point()}


def _size(x: Tensor) -> float:
    return norm({"x": x}) / x.numel() ** 0.5 if x.numel() else 0.0


def _noise(x: Tensor, seed: int = 0, otherwise: float = 1.0) -> Tensor:
    """Normal numbers as large as x, root mean square; `otherwise` where x is 0."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return sharded_like((_size(x) or otherwise) * noise, x)


@dataclass(frozen=True)
class _Call:
    """What a module was called with."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def kind(self) -> str:
        return getattr(self.module, "original_name", type(self.module).__name__)


def _culprit(policy: Policy, batch: MicroBatch, dtype: torch.dtype, mode: Mode) -> str:
    """The class of the smallest module whose derivatives by inputs and parameters are wrong."""
    if policy.sharded:  # a module that is called alone is not gathered
        return "the model"
    options: dict[str, Any] = {"mode": mode, "dtype": dtype, "device": policy.device}
    calls = _calls(policy, batch, dtype)
    for call in sorted(calls, key=lambda c: sum(1 for _ in c.module.modules())):
        try:
            if derivative_gap(_of_module(call, dtype), **options).wrong:
                return f"{call.kind} ({call.name})"
        except (RuntimeError, TypeError):  # it gives no tensors, or refuses other inputs
            continue
    return "what the model does between its modules"


def _calls(policy: Policy, batch: MicroBatch, dtype: torch.dtype) -> list[_Call]:
    """The first call of every module, while two short sequences are scored."""
    calls: dict[str, _Call] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(name, _Call(name, module, args, dict(kwargs)))

        return hook

    with ExitStack() as stack, torch.no_grad():
        for name, module in policy.causal_lm.named_modules():
            handle = module.register_forward_pre_hook(keep(name), with_kwargs=True)
            stack.callback(handle.remove)
        functional_call(policy.scorer, _converted(policy.scorer, dtype), _arguments(policy, batch))
    return list(calls.values())


def _of_module(call: _Call, dtype: torch.dtype) -> Function:
    """All a module returns, as its inputs and parameters move in a random direction."""
    tensors = _converted(call.module, dtype)

    def moved(x: Any, e: Tensor) -> Any:
        finite = isinstance(x, Tensor) and x.is_floating_point() and float(x.abs().max()) < MASKED
        return moved_along(x, _noise(x), e) if finite else x

    def output(e: Tensor) -> Tensor:
        parameters = {n: moved(x, e) for n, x in tensors.items()}
        args, kwargs = tree_map(partial(moved, e=e), (call.args, call.kwargs))
        leaves = tree_leaves(functional_call(call.module, parameters, args, kwargs))
        return torch.cat([x.flatten() for x in leaves if torch.is_floating_point(x)])

    return output
