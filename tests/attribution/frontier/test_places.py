"""Where other free parts of one length stand, against enumerated gradients."""

import math

import pytest
import torch

from isentrope.attribution.frontier.edge import Edge
from isentrope.attribution.frontier.ellipse import Ellipse
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.frontier.places import place_part
from isentrope.estimators.sample import score_batch
from isentrope.nouns.vectors import axpy, multiply
from tests import cases
from tests.attribution.frontier.test_frontier import (
    along_entropy,
    batch,
    enumerated,
    flat,
    measured_pair,
    step_of,
)
from tests.attribution.pairs import by_turns

DIRECTIONS = 10_000


def edge_of(exact, step, prompts=3000):
    E = batch(exact, prompts, 5)
    sample = score_batch(exact.policy, E)
    return Edge.of_step(
        GradientPair.on_batch(exact.policy, E, sample, step.preconditioner, 16), step
    )


@pytest.mark.parametrize(("name", "per"), by_turns(["table", "qwen2"]))
def test_no_free_part_of_the_length_lies_outside_of_the_enumerated_ellipse(name, per):
    exact = cases.small_exact(name)
    _, step = step_of(exact, 16)
    rows = torch.stack(enumerated(name, per))
    P = flat(step.preconditioner, exact.policy.theta)
    free = flat(step.components["gradient"], exact.policy.theta)
    length = float((free.square() / P).sum().sqrt())
    ellipse = Ellipse(rows @ (P[:, None] * rows.T), length)
    generator = torch.Generator().manual_seed(3)
    random = torch.randn(DIRECTIONS, len(P), generator=generator, dtype=torch.float64)
    angles = torch.linspace(0, 2 * math.pi, 100, dtype=torch.float64)
    mixtures = torch.stack((angles.cos(), angles.sin()), 1) @ rows * P
    for parts, nearest in ((random * P.sqrt(), 0.0), (mixtures, 1.0)):
        parts = length * parts / (parts.square() / P).sum(1, keepdim=True).sqrt()
        points = parts @ rows.T
        shares = ellipse.share(points[:, :, None] * points[:, None, :])
        assert float(shares.max()) <= 1 + 1e-9
        assert float(shares.min()) >= nearest - 1e-9
        assert not bool((points[:, 0] > ellipse.best(points[:, 1]) + 1e-6).any())


def test_the_size_of_a_free_part_does_not_change_its_place():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    edge = edge_of(exact, step)
    plain = step.components["gradient"]
    along = edge.gradients.along(plain)
    shrunk = axpy(-0.75, plain, plain)
    place = place_part(edge, shrunk, along)
    assert place.length == pytest.approx(0.25)
    assert place.reached_over_plain.value == pytest.approx(0.0, abs=1e-12)
    assert place.lost_over_plain.value == pytest.approx(0.0, abs=1e-12)
    assert math.isfinite(place.reached.ci_low)


def test_the_best_at_the_entropy_of_a_part_is_its_reward_and_what_it_loses():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    edge = edge_of(exact, step, prompts=400)
    numbers = edge.place(edge.gradients.along(step.components["gradient"]))
    reward, lost, best = (numbers[name].values for name in ("reward", "lost", "best_at_step"))
    torch.testing.assert_close(best, reward + lost)
    assert float(reward.abs().min()) > 0


def test_a_part_along_a_gradient_is_nearer_to_the_edge_than_a_step_of_a_small_batch():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    edge = edge_of(exact, step)
    theta = exact.policy.theta
    reward, _ = enumerated("qwen2", "token")
    gradient = {}
    for name, p in theta.items():
        head, reward = reward[: p.numel()], reward[p.numel() :]
        gradient[name] = head.view(p.shape)
    along = edge.gradients.along(step.components["gradient"])
    place = place_part(edge, multiply(step.preconditioner, gradient), along)
    assert abs(place.reached.value - 1) <= 4 * place.reached.se
    assert place.reached_over_plain.ci_low > 0
    assert place.lost_over_plain.ci_high < 0
    assert (
        place.reached_over_plain.se
        < place.reached.se + edge.place(along)["reached"].variance ** 0.5
    )


def test_rewards_without_spread_have_no_frontier():
    exact = cases.small_exact("table")
    _, step = step_of(exact, 16)
    E = batch(exact, 64, 5)
    E = E.with_columns(rewards=torch.ones(len(E)))
    sample = score_batch(exact.policy, E)
    gradients = GradientPair.on_batch(exact.policy, E, sample, step.preconditioner, 16)
    edge = Edge.of_step(gradients, step)
    assert "earn the same reward" in edge.missing[0]


def test_from_few_prompts_the_changes_of_a_place_have_no_interval():
    exact = cases.small_exact("qwen2")
    _, step = step_of(exact, 16)
    plain = step.components["gradient"]
    for prompts, has_interval in ((112, False), (128, True)):
        edge = edge_of(exact, step, prompts)
        place = place_part(edge, plain, edge.gradients.along(plain))
        assert math.isfinite(place.reward.ci_low) == has_interval
        assert math.isfinite(place.entropy.ci_low) == has_interval


def test_a_part_that_brings_nearly_the_most_entropy_has_no_interval_of_what_it_loses():
    pair, step = measured_pair()
    plain = step.components["gradient"]
    edge = Edge.of_step(pair, step)
    assert edge.missing == ()
    for part, has_interval in ((plain, True), (axpy(0.008, plain, along_entropy(1.0)), False)):
        place = place_part(edge, part, pair.along(plain))
        assert math.isfinite(place.lost.value)
        assert math.isfinite(place.lost.ci_low) == has_interval
        assert math.isfinite(place.reached.ci_low)
