"""One parameter's part of an optimizer step, as torch.optim takes it (T5).

With g the (clipped) gradient of the loss, θ the parameter, λ the weight decay, primes on what
this step updates, and τ the count of steps including this one:

    AdamW     q' = β₂q + (1−β₂)g²,   D = (1−β₁^τ)(√(q'/(1−β₂^τ)) + ε)
              v = −β₁m/D − λθ − P g,            P = (1−β₁)/D
    Adam      the same with g + λθ in place of g everywhere, and decay −Pλθ
    SGD       b' = μb + a(g + λθ),   a = 1 − dampening, but 1 on the first step;   v = −b'
              Nesterov:  v = −(g + λθ + μb'),   P = 1 + μa
    RMSprop   q' = αq + (1−α)(g+λθ)²,   D = √q' + ε   (centred: √(q' − ḡ'²) + ε)
              b' = μb + (g + λθ)/D,   v = −b',   P = 1/D

Each rule is split as v = momentum + decay − P g, where P is held at this step's value. An empty
state is a fresh optimizer (moments 0, τ = 1). All arithmetic is float64.

With preconditioning="previous_step", D has the second moments as they were before the step: q with
1−β₂^(τ−1) in Adam, q and ḡ in RMSprop. P then does not depend on g; a fresh optimizer has none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isentrope.nouns.choices import Preconditioning
from isentrope.parallel.sharded import total
from isentrope.policy.language_model import Policy

ParameterState = Mapping[str, Any]
"""What an optimizer remembers of one parameter."""
ParamGroup = Mapping[str, Any]
"""A param group: its hyper-parameters."""

SHORT_MOMENTS = (
    "The optimizer's moments are of 16 bits, so training rounds its steps and takes another one "
    "than v: isentrope.update.rounding computes it."
)
_SHORT_TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ParameterStep:
    """One parameter's update direction, split as v = momentum + decay − preconditioner · g.

    Attributes:
        momentum: What past gradients add; the parameter's shape, float64, per unit learning rate.
        decay: What weight decay adds.
        preconditioner: Diagonal factor of the clipped gradient g.
    """

    momentum: Tensor
    decay: Tensor
    preconditioner: Tensor


def adam(
    theta: Tensor,
    gradient: Tensor,
    state: ParameterState,
    group: ParamGroup,
    preconditioning: Preconditioning = "this_step",
    *,
    decoupled: bool = False,
) -> ParameterStep:
    """Adam, its weight decay inside the gradient (Kingma & Ba, arXiv 1412.6980) or decoupled.

    Args:
        theta: The parameter, float64.
        gradient: Clipped gradient of the loss, float64.
        state: `step`, `exp_avg`, `exp_avg_sq` before this step, or nothing.
        group: `betas`, `eps`, `weight_decay`.
        preconditioning: Which second moments P has.
        decoupled: Whether it is AdamW (Loshchilov & Hutter, arXiv 1711.05101).

    Returns:
        The pieces of v.
    """
    penalty = float(group["weight_decay"]) * theta
    total = gradient if decoupled else gradient + penalty
    beta1, beta2 = (float(beta) for beta in group["betas"])
    tau = float(state.get("step", 0)) + 1  # the number of this step, from 1
    second = _read_moment(state, "exp_avg_sq", total)
    averaged = tau - 1
    if preconditioning == "this_step":
        second = beta2 * second + (1 - beta2) * total**2
        averaged = tau
    # bias corrections: by the gradients that are in each moment
    root = (second / (1 - beta2**averaged)).sqrt() + float(group["eps"])
    scale = 1 / ((1 - beta1**tau) * root)
    momentum = -beta1 * scale * _read_moment(state, "exp_avg", total)
    P = (1 - beta1) * scale
    return ParameterStep(momentum, -penalty if decoupled else -P * penalty, P)


adamw = partial(adam, decoupled=True)


def sgd(
    theta: Tensor,
    gradient: Tensor,
    state: ParameterState,
    group: ParamGroup,
    preconditioning: Preconditioning = "this_step",
) -> ParameterStep:
    """Stochastic gradient descent, with or without (Nesterov) momentum, as torch defines it.

    Args:
        theta: The parameter, float64.
        gradient: Clipped gradient of the loss, float64.
        state: `momentum_buffer` before this step; nothing on the first step.
        group: `momentum`, `dampening`, `nesterov`, `weight_decay`.
        preconditioning: No difference here.

    Returns:
        The pieces of v.
    """
    mu = float(group["momentum"])
    first = state.get("momentum_buffer") is None
    # a: share of g in the new buffer, which torch begins with g itself, not dampened
    fresh = 1.0 if first else 1 - float(group["dampening"])
    if mu == 0:
        past = 0.0
        factor = 1.0
    elif group["nesterov"]:
        past = mu**2
        factor = 1 + mu * fresh
    else:
        past = mu
        factor = fresh
    return ParameterStep(
        momentum=-past * _read_moment(state, "momentum_buffer", gradient),
        decay=-factor * float(group["weight_decay"]) * theta,
        preconditioner=torch.full_like(gradient, factor),
    )


def rmsprop(
    theta: Tensor,
    gradient: Tensor,
    state: ParameterState,
    group: ParamGroup,
    preconditioning: Preconditioning = "this_step",
) -> ParameterStep:
    """RMSprop, plain or centred, with or without momentum, as torch defines it.

    Args:
        theta: The parameter, float64.
        gradient: Clipped gradient of the loss, float64.
        state: `square_avg`, and `grad_avg` and `momentum_buffer` where used, or nothing.
        group: `alpha`, `eps`, `centered`, `momentum`, `weight_decay`.
        preconditioning: Which second moments P has.

    Returns:
        The pieces of v.
    """
    alpha = float(group["alpha"])
    penalty = float(group["weight_decay"]) * theta
    total = gradient + penalty
    second, mean = (_read_moment(state, key, gradient) for key in ("square_avg", "grad_avg"))
    if preconditioning == "this_step":
        second = alpha * second + (1 - alpha) * total**2
        mean = alpha * mean + (1 - alpha) * total
    if group["centered"]:
        second = second - mean**2  # a variance in place of the second moment
    preconditioner = 1 / (second.sqrt() + float(group["eps"]))
    mu = float(group["momentum"])
    past = -mu * _read_moment(state, "momentum_buffer", gradient)
    return ParameterStep(past, -preconditioner * penalty, preconditioner)


def _read_moment(state: ParameterState, name: str, like: Tensor) -> Tensor:
    value = state.get(name)
    return torch.zeros_like(like) if value is None else value.to(like)


RULES: dict[
    str, Callable[[Tensor, Tensor, ParameterState, ParamGroup, Preconditioning], ParameterStep]
] = {
    "adamw": adamw,
    "adam": adam,
    "sgd": sgd,
    "rmsprop": rmsprop,
}
_HYPERPARAMETERS = {  # what a param group of each rule must hold
    "adamw": ("betas", "eps", "weight_decay"),
    "adam": ("betas", "eps", "weight_decay"),
    "sgd": ("momentum", "dampening", "nesterov", "weight_decay"),
    "rmsprop": ("alpha", "eps", "centered", "momentum", "weight_decay"),
}


def state_keys(rule: str, group: ParamGroup) -> tuple[str, ...]:
    """What a rule remembers of each parameter between steps.

    Args:
        rule: One of `RULES`.
        group: Hyper-parameters.

    Returns:
        Keys of the parameter's state that the next step reads; none for SGD without momentum.
    """
    if rule in ("adamw", "adam"):
        return ("step", "exp_avg", "exp_avg_sq")
    buffer = ("momentum_buffer",) if group["momentum"] else ()
    if rule == "sgd":
        return buffer
    return ("square_avg", *(("grad_avg",) if group["centered"] else ()), *buffer)


def choose_rule(groups: Sequence[ParamGroup], rule: str | None = None) -> str:
    """Which rule these param groups belong to, and whether it can be followed exactly.

    Args:
        groups: The optimizer's param_groups.
        rule: One of `RULES` where the caller knows it; None infers it from the groups' keys.

    Returns:
        One of `RULES`.

    Raises:
        ValueError: If the rule is unknown, cannot be inferred, contradicts the groups, or uses
            an option that is not supported.
    """
    if rule is None:
        rule = _infer_rule(groups)
    elif rule not in RULES:
        nearest = get_close_matches(str(rule).lower(), RULES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown rule={rule!r}: the nearest is {nearest!r}; choose one of {', '.join(RULES)}."
        )
    for i, group in enumerate(groups):
        for key, value in (("amsgrad", True), ("maximize", True), ("bias_correction", False)):
            if group.get(key, not value) == value:
                raise ValueError(
                    f"Param group {i} has {key}={value}, a rule that is not followed here: its "
                    "step cannot be computed."
                )
        if missing := [key for key in _HYPERPARAMETERS[rule] if key not in group]:
            raise ValueError(
                f"Param group {i} has no {missing[0]!r}, so it is not one of {rule!r}: all groups "
                "must be of one optimizer of torch.optim."
            )
        decoupled = group.get("decoupled_weight_decay")
        if decoupled is not None and group["weight_decay"] and decoupled != (rule == "adamw"):
            raise ValueError(
                f"rule={rule!r}, but param group {i} has decoupled_weight_decay={decoupled}."
            )
    return rule


def _infer_rule(groups: Sequence[ParamGroup]) -> str:
    keys = set[str].intersection(*(set(group) for group in groups))
    fitting = [rule for rule, needed in _HYPERPARAMETERS.items() if keys.issuperset(needed)]
    if "adamw" in fitting and "amsgrad" in keys and "momentum_decay" not in keys:
        decoupled = {g.get("decoupled_weight_decay") for g in groups if g["weight_decay"]}
        if len(decoupled) > 1 or None in decoupled:
            raise ValueError(
                "The param groups do not say whether their weight decay is decoupled: in Python, "
                "pass rule='adamw' or rule='adam'; in a file, write decoupled_weight_decay=True "
                "(AdamW) or False (Adam) into each group."
            )
        return "adam" if decoupled == {False} else "adamw"
    if fitting in (["sgd"], ["rmsprop"]):
        return fitting[0]
    raise ValueError(
        "No step can be computed: the param groups are of another optimizer (keys "
        f"{sorted(keys - {'params'})}) than those that are followed exactly: {', '.join(RULES)} of "
        "torch.optim."
    )


def short_types(
    policy: Policy, moments: Mapping[str, torch.dtype], stored: Mapping[str, torch.dtype]
) -> dict[str, torch.dtype]:
    """Parameters that training keeps in 16 bits.

    Args:
        policy: The policy at θ.
        moments: Type of each parameter's stored moments (`OptimizerState.types`).
        stored: Type of each parameter on disk (`models.adapter`).

    Returns:
        bfloat16 or float16 by name; empty where training rounds nothing that is kept.
    """
    types = {**stored, **moments}
    parts = policy.parts
    short = {n: kind for n in policy.names if (kind := types.get(n)) in _SHORT_TYPES}
    differ = {
        n: (parts[n].to(kind).to(parts[n].dtype) != parts[n]).sum() for n, kind in short.items()
    }
    entries = zip(short.items(), total(differ, policy.theta), strict=True)
    return {name: kind for (name, kind), n in entries if n == 0}
