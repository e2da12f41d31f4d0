"""Compares a policy's derivatives with finite differences, once per way to take them.

Scores of two short sequences at θ + e d, with d a fixed random direction as large as θ, are
differentiated by e in the mode that will be used, and compared (`differences`): an operation
without a rule for a mode has a derivative of 0 there, without an error. The model is evaluated in
float64, on a copy of its tensors; the model itself is not changed. Where that is impossible (no
memory, an operation that has no float64, or a base that is spread over processes), a float32 policy
is compared as it is, which finds errors of some per cent. A shorter one is then not compared at
all.
"""

import logging
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isentrope.models.architecture import derivative_of_scores, name_of
from isentrope.models.batching import MicroBatch, micro_batches
from isentrope.models.precision import Precision
from isentrope.models.sharding import Parameters, SpreadPoint, layers_at, moved_along
from isentrope.nouns.differences import Function, Mode, derivative_gap
from isentrope.nouns.rollouts import Rollouts
from isentrope.parallel.sharded import is_sharded, local_part, sharded_like, total
from isentrope.policy.head import Scorer
from isentrope.policy.language_model import Policy
from isentrope.system.memory import free_memory, mapped_blocks

_log = logging.getLogger("isentrope")

SEQUENCES_COMPARED = 2
"""Sequences of which derivatives are compared."""

TOKENS_COMPARED = 4
"""Prompt tokens and response tokens that are kept of each."""

_FIRST_ORDER = "Ask for the first order only (order=1; estimator.order=1). "
_NO_ORDER = "ΔH(η) at finite η needs no derivative: ask for it alone (order=0; estimator.order=0)."


class DerivativeError(ValueError):
    """torch differentiates a part of the model wrongly.

    Attributes:
        cause: The error without what can be done.
    """

    def __init__(self, cause: str, advice: str = "") -> None:
        super().__init__(cause, advice)
        self.cause = cause
        self._advice = advice

    def __str__(self) -> str:
        return f"{self.cause} {self._advice}".rstrip()


def require_derivatives(policy: Policy, rollouts: Rollouts, mode: Mode = "forward") -> None:
    """Refuse a policy whose derivatives are wrong. Later calls with the policy cost nothing.

    Args:
        policy: The policy, whose layers may be spread over processes.
        rollouts: The first two sequences are used, cut short.
        mode: How derivatives are about to be computed.

    Raises:
        DerivativeError: If they are wrong.
        RuntimeError: What torch raised, where layers are spread over processes.
    """
    dtype_of_theta = next(iter(policy.theta.values())).dtype
    compared = {way for way, dtype in policy.compared_derivatives if dtype == dtype_of_theta}
    # forward over forward compares the first derivative on its way
    if mode in compared or (mode == "forward" and "forward over forward" in compared):
        return
    policy.require_no_dropout()
    n = min(SEQUENCES_COMPARED, len(rollouts))
    short = Rollouts(
        [p[-TOKENS_COMPARED:] for p in rollouts.prompt_ids[:n]],
        [r[:TOKENS_COMPARED] for r in rollouts.response_ids[:n]],
        torch.arange(n),
    )
    tokens = 4 * TOKENS_COMPARED**2  # of one micro-batch, whatever the padding
    (batch,) = micro_batches(short, tokens, padding=tokens)
    for dtype in _list_types(policy, mode):
        precision = Precision("float64" if dtype == torch.float64 else "float32")
        # a small process becomes a large one by the copy, which is given back whole
        with mapped_blocks(small=0), precision.active(), derivative_of_scores(policy.model):
            try:
                gap = derivative_gap(  # which alone holds the copy
                    _move_randomly(policy, batch.to(policy.device), dtype), mode=mode, dtype=dtype
                )
            except RuntimeError:  # an operation that has no such type, or no memory
                if policy.sharded:  # the other processes go on, and would wait for this one
                    raise
                continue
        if gap.wrong:
            reason, advice = _explain(policy, mode)
            raise DerivativeError(
                f"The derivatives of {name_of(policy.causal_lm)} are wrong: {mode}, on two short "
                f"sequences, they are {gap.error:.2g} of the largest one from differences{reason}",
                advice,
            )
        break
    else:
        _log.warning(
            "Derivatives (%s) of %s are not compared with finite differences: that takes a copy in "
            "float64, or a model in float32.",
            mode,
            name_of(policy.causal_lm),
        )
    policy.compared_derivatives.add((mode, dtype_of_theta))


def _explain(policy: Policy, mode: Mode) -> tuple[str, str]:
    """What makes derivatives wrong, as far as that is known, and what can be done."""
    adapters = getattr(policy.model, "peft_config", {}).values()
    if any(getattr(adapter, "use_dora", False) for adapter in adapters):
        return (
            ". DoRA detaches the norm, so autograd's derivative, by which training takes its "
            "steps, is not the function's.",
            _NO_ORDER,
        )
    first = _FIRST_ORDER if " over " in mode else ""
    return (
        ": a part of the model is detached, or has a kernel of its own.",
        f"{first}{_NO_ORDER} For derivatives, write its own kernels in elementary operations of "
        "torch, or load the model without them.",
    )


VECTORS_MOVED = {1: 3.0, 2: 4.5}
"""Vectors in float64 of the trained parameters by the order of the derivative: a direction, θ moved
along it, and its tangent; at the second order another tangent, and half a vector at its most."""


def bytes_to_compare(model: nn.Module, free: int, order: int) -> tuple[int, int]:
    """Bytes of a copy of a model in float64, and of what moves in it.

    Args:
        model: On any device.
        free: Bytes that are free beside it.
        order: Of the derivative.

    Returns:
        Bytes of the copy, 0 where it is float64 or both would take half of what is free; and of
        what moves.
    """
    tensors = [p for p in model.parameters() if p.is_floating_point()]
    copied_bytes = sum(8 * p.numel() for p in tensors if p.dtype != torch.float64)
    trained_bytes = sum(8 * p.numel() for p in tensors if p.requires_grad)
    moved_bytes = int(VECTORS_MOVED[order] * trained_bytes)
    return copied_bytes if copied_bytes + moved_bytes < free / 2 else 0, moved_bytes


def _list_types(policy: Policy, mode: Mode) -> list[torch.dtype]:
    """float64 where there is room for a copy, then float32 where that is the policy's."""
    types = {p.dtype for p in policy.model.parameters() if p.is_floating_point()}
    # the layers of a sharded base are exchanged in their own type
    free = 0 if policy.sharded else free_memory(policy.device)
    copied, _ = bytes_to_compare(policy.model, free, 2 if " over " in mode else 1)
    in_float64 = [torch.float64] if copied or types == {torch.float64} else []
    return in_float64 + ([torch.float32] if types == {torch.float32} else [])


def _move_randomly(policy: Policy, batch: MicroBatch, dtype: torch.dtype) -> Function:
    """The scores (2, m), as the parameters move in the random direction."""
    scorer = policy.scorer
    names = scorer.inner_names
    theta = policy.theta
    named_tensors = chain(scorer.named_parameters(), scorer.named_buffers())
    tensors = {n: x.detach().to(dtype) for n, x in named_tensors if x.is_floating_point()}
    squares = total({n: local_part(x).double().square().sum() for n, x in theta.items()}, theta)
    pairs = zip(theta.values(), squares, strict=True)
    sizes = [(square / max(1, x.numel())) ** 0.5 for x, square in pairs]
    along: dict[str, Tensor] = {}
    for k, (n, x) in enumerate(theta.items()):
        generator = torch.Generator().manual_seed(k)
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        size = sizes[k] or max(sizes)  # a parameter that is 0 moves as the largest does
        along[n] = sharded_like(size * noise, x)

    def scores(e: Tensor) -> Tensor:
        point: Parameters = {
            n: SpreadPoint(v, e) if is_sharded(theta[n]) else moved_along(tensors[names[n]], v, e)
            for n, v in along.items()
        }
        parameters = {names[n]: x for n, x in point.items() if isinstance(x, Tensor)}
        arguments = (Scorer.scores, batch, policy.softmax)
        with layers_at(policy.model, point):
            return torch.stack(functional_call(scorer, tensors | parameters, arguments))

    return scores
