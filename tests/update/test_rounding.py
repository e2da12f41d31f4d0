"""The step of weights in 16 bits is what torch's optimizer does to them."""

import copy

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from isentrope import Step
from isentrope.nouns.vectors import axpy, norm
from isentrope.update.optimizer_rules import short_types
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.rounding import rounded_step
from isentrope.update.step import follow_rule
from tests.update.plain import build_policy, relative_error

OPTIMIZERS = {
    "adamw": lambda p: AdamW(p, lr=1e-3, weight_decay=0.1),
    "adamw-fused": lambda p: AdamW(p, lr=1e-3, weight_decay=0.1, fused=True),
    "adam-l2": lambda p: Adam(p, lr=1e-3, weight_decay=0.1),
    "sgd": lambda p: SGD(p, lr=1e-3),
    "sgd-momentum": lambda p: SGD(p, lr=1e-3, momentum=0.9),
    "rmsprop": lambda p: RMSprop(p, lr=1e-3),
}


def gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        g = 0.01 * torch.randn(parameter.shape, generator=generator)
        parameter.grad = g.to(parameter.dtype)


def trained(make, kind=torch.bfloat16, steps=2):
    """A policy with the weights of a model in 16 bits, that model, and its optimizer."""
    policy = build_policy("full")
    model = copy.deepcopy(policy.model).to(kind)
    optimizer = make(list(model.parameters()))
    for seed in range(steps):
        gradients(model, seed)
        optimizer.step()
    with torch.no_grad():
        for p, q in zip(policy.model.parameters(), model.parameters(), strict=True):
            p.copy_(q)
    return policy, model, optimizer


def as_step(policy, state, gradient, clip=1.0):
    """The step of a gradient, as optimizer_step makes it."""
    components, P = follow_rule(policy, state, gradient, clip)
    v = axpy(1.0, components["momentum"], axpy(1.0, components["decay"], components["gradient"]))
    rest = {"token_weights": torch.ones(1, 1), "batch": "", "matched_by": "identity"}
    return Step(v, P, components, **rest, learning_rate=1e-3, gradient_norm=1.0, clip_factor=clip)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, torch.bfloat16) for name in OPTIMIZERS), ("sgd-momentum", torch.float16)],
)
def test_the_rounded_step_is_the_real_one(name, kind):
    policy, model, optimizer = trained(OPTIMIZERS[name], kind)
    state = load_optimizer_state(policy, copy.deepcopy(optimizer.state_dict()))
    gradients(model, 9)
    names = [n for n, _ in policy.model.named_parameters()]
    gradient = {n: p.grad.double() for n, p in zip(names, model.parameters(), strict=True)}
    step = as_step(policy, state, gradient)
    types = short_types(policy, state.types, dict.fromkeys(names, kind))
    found = rounded_step(policy, state, step, types, 1e-3)
    before = policy.theta
    optimizer.step()
    real = {
        n: (p.detach().double() - before[n]) / 1e-3
        for n, p in zip(names, model.parameters(), strict=True)
    }
    assert relative_error(found.direction, real) < 1e-9
    assert found.error == pytest.approx(norm(axpy(-1.0, real, step.direction)) / norm(real))
    assert 0 < found.moved < 1


def test_a_small_step_is_lost_and_a_large_one_is_not():
    policy, _, optimizer = trained(OPTIMIZERS["adamw"])
    state = load_optimizer_state(policy, optimizer.state_dict())
    gradient = {n: torch.ones_like(p) for n, p in policy.theta.items()}
    step = as_step(policy, state, gradient)
    types = short_types(policy, state.types, {})
    small, large = (rounded_step(policy, state, step, types, eta) for eta in (1e-9, 1.0))
    assert small.moved < 0.01
    assert small.error > 1
    assert large.moved > 0.99
    assert large.error < 0.05


def test_a_step_that_overflows_is_refused():
    policy, _, optimizer = trained(OPTIMIZERS["adamw"], steps=0)
    state = load_optimizer_state(policy, optimizer.state_dict())
    step = as_step(policy, state, {n: torch.zeros_like(p) for n, p in policy.theta.items()})
    with pytest.raises(ValueError, match=r"float16 .*master_weights=true"):
        rounded_step(policy, state, step, dict.fromkeys(policy.names, torch.float16), 1e-3)


def test_groups_with_other_rates_are_rounded_at_their_own():
    policy, _, optimizer = trained(OPTIMIZERS["sgd"])
    saved = optimizer.state_dict()
    group = saved["param_groups"][0]
    half = len(group["params"]) // 2
    saved["param_groups"] = [
        group | {"params": group["params"][:half]},
        group | {"params": group["params"][half:], "lr": 0.0},
    ]
    state = load_optimizer_state(policy, saved, names=policy.names)
    step = as_step(policy, state, {n: torch.ones_like(p) for n, p in policy.theta.items()})
    types = short_types(policy, state.types, dict.fromkeys(policy.names, torch.bfloat16))
    found = rounded_step(policy, state, step, types, 1.0)
    assert all(bool(found.direction[n].any()) for n in policy.names[:half])
    assert not any(bool(found.direction[n].any()) for n in policy.names[half:])


def test_only_parameters_that_training_kept_in_16_bits_are_rounded():
    policy, _, optimizer = trained(OPTIMIZERS["adamw"])
    state = load_optimizer_state(policy, optimizer.state_dict())
    bfloat16 = dict.fromkeys(policy.names, torch.bfloat16)
    assert short_types(policy, state.types, {}) == bfloat16  # by its moments, whatever is on disk
    saved = copy.deepcopy(optimizer.state_dict())
    for entry in saved["state"].values():
        entry["exp_avg"] = entry["exp_avg"].float()
    master = load_optimizer_state(policy, saved)
    assert short_types(policy, master.types, bfloat16) == {}
    plain, _, stateless = trained(OPTIMIZERS["sgd"])
    state = load_optimizer_state(plain, stateless.state_dict())
    assert short_types(plain, state.types, bfloat16) == bfloat16  # by the files
    first = plain.names[0]
    with torch.no_grad():
        plain.model.get_parameter(first).add_(1e-9)
    assert first not in short_types(plain, state.types, bfloat16)  # not a number of 16 bits
