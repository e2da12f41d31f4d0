"""The frontier of a step, against enumerated gradients."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import isentrope as ise
from isentrope import EstimatorOptions
from isentrope.attribution.frontier.edge import Edge
from isentrope.attribution.frontier.frontier import frontier_of_step
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.estimators.sample import score_batch
from isentrope.nouns.vectors import axpy, zeros
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
    assert "no frontier from 16 prompts" in edge.missing[0]
    assert math.isnan(edge.best.ci_low)
    assert math.isnan(edge.reached.ci_low)


@pytest.mark.parametrize(("prompts", "has_interval"), [(112, False), (128, True)])
def test_changes_have_intervals_from_128_prompts_on_and_a_sentence_says_so(prompts, has_interval):
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    edge = found(exact, step, prompts)
    for number in (edge.reward, edge.entropy, edge.centre_reward, edge.centre_entropy):
        assert math.isfinite(number.ci_low) == has_interval
    assert any("128 would do" in sentence for sentence in edge.missing) != has_interval


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


@cache
def measured_pair():
    """Both gradients of a batch in the metric of a step, and the step."""
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    E = batch(exact, 3000, 5)
    sample = score_batch(exact.policy, E)
    return GradientPair.on_batch(exact.policy, E, sample, step.preconditioner, 16), step


def frontier_with(**parts):
    """That of the step with other parts."""
    pair, step = measured_pair()
    other = replace(step, components=step.components | parts)
    return frontier_of_step(Edge.of_step(pair, other), other)


def along_entropy(share):
    """P g_H with a share of the length of the step's free part."""
    exact = cases.small_exact("qwen2")
    _, step = measured_pair()
    theta = exact.policy.theta
    _, entropy = enumerated("qwen2", "token")
    P = flat(step.preconditioner, theta)
    length = float((flat(step.components["gradient"], theta).square() / P).sum().sqrt())
    rest = share * length * P * entropy / float((P * entropy.square()).sum().sqrt())
    parts = {}
    for name, p in theta.items():
        part, rest = rest[: p.numel()], rest[p.numel() :]
        parts[name] = part.view(p.shape)
    return parts


def momentum_that_loses(share):
    """Such a part of the most entropy that the free part could bring, and what changes none."""
    _, step = measured_pair()
    theta = cases.small_exact("qwen2").policy.theta
    along = along_entropy(1.0)
    _, entropy = enumerated("qwen2", "token")
    other = cases.direction(cases.small_exact("qwen2").policy, 3)
    change = float(flat(other, theta) @ entropy / (flat(along, theta) @ entropy))
    size = float(flat(step.components["gradient"], theta).norm() / flat(other, theta).norm())
    other = axpy(-change, along, other)
    return axpy(-share, along, axpy(size, other, zeros(theta)))


def test_whether_a_step_keeps_entropy_is_said_where_it_is_known_alone():
    known = frontier_with(momentum=momentum_that_loses(0.5))
    assert known.missing == ()
    assert math.isfinite(known.best.ci_low)
    unknown = frontier_with(momentum=momentum_that_loses(1.0))
    assert "is not known from 3000 prompts" in unknown.missing[0]
    assert not unknown.none_keeps_entropy
    assert math.isnan(unknown.best.ci_low)
    none = frontier_with(momentum=momentum_that_loses(1.5))
    assert none.none_keeps_entropy
    assert math.isnan(none.best.ci_low)


def test_a_step_at_the_end_of_the_edge_has_no_interval_of_what_it_loses():
    edge = frontier_with(gradient=along_entropy(1.0))
    assert any("nearly as much entropy as its length can" in x for x in edge.missing)
    for number in (edge.lost, edge.best_at_step, edge.reward_for_a_nat):
        assert math.isnan(number.ci_low)
    assert math.isfinite(edge.reached.ci_low)


def test_fewer_prompts_than_groups_and_a_step_without_a_free_part_are_said_in_a_sentence():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        found(exact, step, 12)
    assert "got 16 groups and 12 prompt draws" in str(refusal.value)
    still = replace(step, components=step.components | {"gradient": zeros(exact.policy.theta)})
    assert found(exact, still, 128).missing == (
        "There is no frontier: the batch of the step moves nothing.",
    )


def test_eight_groups_have_a_frontier_and_seven_are_refused():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    E = batch(exact, 128, 5)
    assert math.isfinite(ise.frontier(exact.policy, E, step, groups=8).reward.ci_low)
    with pytest.raises(ValueError, match="8 groups of E's prompts or more"):
        ise.frontier(exact.policy, E, step, groups=7)


def test_a_step_with_the_P_of_another_is_refused():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    with pytest.raises(ValueError, match="P of another step"):
        found(exact, replace(step, preconditioner=zeros(exact.policy.theta)), 64)
