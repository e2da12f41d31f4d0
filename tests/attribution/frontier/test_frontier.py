"""The frontier of a step, against enumerated gradients."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import isentrope as ise
from isentrope import EstimatorOptions
from isentrope.nouns.vectors import zeros
from isentrope.oracle.plain import gradients
from isentrope.update.step import compute_step
from tests import cases
from tests.attribution.pairs import by_turns
from tests.estimators.test_paired import batch, rewards_of

LENGTH = 3
"""Tokens of the longest response of a small policy."""


def flat(vector, theta):
    return torch.cat([vector[name].flatten().double() for name in theta])


@cache
def enumerated(name, per):
    """g_J and g_H of a small policy, each flat, by differences."""
    exact = cases.small_exact(name)
    rewards = rewards_of(exact.rollouts).double() / exact.n_prompts
    theta = exact.policy.theta
    reward = gradients(lambda params: (exact.probabilities(params) @ rewards)[None], theta)[0]
    return reward, flat(exact.entropy_gradient(per), theta)


def step_of(exact, size, seed=1):
    """A step of AdamW with momentum on draws of the policy, with the advantage r − J."""
    policy = exact.policy
    U = batch(exact, size, seed)
    rewards = rewards_of(exact.rollouts).double()
    mean = float(exact.probabilities() @ rewards) / exact.n_prompts
    U = U.with_columns(advantages=U.rewards - mean)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    generator = torch.Generator().manual_seed(2)
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = 0.02 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    optimizer.step()
    with torch.no_grad():
        for p, value in zip(parameters, before, strict=True):
            p.copy_(value)
            p.grad = None
    return U, compute_step(policy, U, optimizer, max_response_length=LENGTH)


def found(exact, step, prompts, per="token"):
    return ise.frontier(exact.policy, batch(exact, prompts, 5), step, EstimatorOptions(per))


@pytest.mark.parametrize(("name", "per"), by_turns(["table", "qwen2"]))
def test_every_number_is_the_enumerated_one_within_its_error(name, per):
    exact = cases.small_exact(name)
    _, step = step_of(exact, 16)
    edge = found(exact, step, 3000, per)
    theta = exact.policy.theta
    rows = torch.stack(enumerated(name, per))
    P = flat(step.preconditioner, theta)
    free = flat(step.components["gradient"], theta)
    radius = float((free.square() / P).sum())
    (a, s), (_, b) = (rows @ (P[:, None] * rows.T)).tolist()
    fixed_reward, fixed_entropy = (rows @ flat(step.baseline, theta)).tolist()
    reward, entropy = (rows @ free).tolist()
    angle = math.acos(s / math.sqrt(a * b))
    turn = math.acos(-fixed_entropy / math.sqrt(b * radius))
    best = math.sqrt(a * radius) * (1.0 if turn > angle else math.cos(angle - turn))
    share = (b * reward**2 - 2 * s * reward * entropy + a * entropy**2) / (a * b - s * s) / radius
    truth = {
        "reward_reach": math.sqrt(a * radius),
        "entropy_reach": math.sqrt(b * radius),
        "cosine": math.cos(angle),
        "centre_reward": fixed_reward,
        "centre_entropy": fixed_entropy,
        "reward": reward + fixed_reward,
        "entropy": entropy + fixed_entropy,
        "best": best + fixed_reward,
        "reached": math.sqrt(share),
    }
    for number, value in truth.items():
        estimate = getattr(edge, number)
        assert abs(estimate.value - value) <= 4 * estimate.se, number
        assert estimate.ci_low < estimate.ci_high, number
    assert edge.length == pytest.approx(math.sqrt(radius))
    assert edge.missing == ()


def test_a_shrunk_step_reaches_the_same_share_and_a_step_along_the_gradient_all():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    half = {name: 0.5 * x for name, x in step.components["gradient"].items()}
    shrunk = replace(step, components=step.components | {"gradient": half})
    whole = found(exact, step, 400)
    assert found(exact, shrunk, 400).reached.value == pytest.approx(whole.reached.value)
    assert 0 < whole.reached.value < 1
    reward, _ = enumerated("qwen2", "token")
    along = {}
    for name, p in exact.policy.theta.items():
        part, reward = reward[: p.numel()], reward[p.numel() :]
        along[name] = step.preconditioner[name] * part.view(p.shape)
    exact_step = replace(step, components=step.components | {"gradient": along})
    best = found(exact, exact_step, 3000).reached
    assert best.value == pytest.approx(1.0, abs=4 * best.se)


def test_a_batch_that_is_too_small_says_how_many_prompts_would_do():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    edge = found(exact, step, 16)
    (sentence,) = edge.missing
    assert "no frontier from 16 prompts" in sentence
    assert math.isnan(edge.best.ci_low)
    assert math.isnan(edge.reached.ci_low)
    assert math.isfinite(edge.entropy.ci_low)


def test_no_step_keeps_entropy_where_momentum_loses_more_than_the_length_gives_back():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    _, entropy = enumerated("qwen2", "token")
    against = {}
    for name, p in exact.policy.theta.items():
        part, entropy = entropy[: p.numel()], entropy[p.numel() :]
        against[name] = -100.0 * part.view(p.shape)
    losing = replace(step, components=step.components | {"momentum": against})
    edge = found(exact, losing, 3000)
    assert math.isnan(edge.best.value)
    assert "No step of this length keeps entropy" in edge.missing[0]


def test_a_step_with_the_P_of_another_is_refused():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    with pytest.raises(ValueError, match="P of another step"):
        found(exact, replace(step, preconditioner=zeros(exact.policy.theta)), 64)
