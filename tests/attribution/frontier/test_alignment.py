"""The angle of the gradients of reward and entropy, against enumerated gradients."""

import math

import pytest
import torch

from isentrope import EstimatorOptions
from isentrope.attribution.frontier.gradient_products import GradientPair, alignment
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.estimators.sample import score_batch
from isentrope.nouns.vectors import dot, multiply
from isentrope.oracle.plain import gradients
from tests import cases
from tests.estimators.test_paired import batch, rewards_of


def exact_cosine(exact, per, P):
    rewards = rewards_of(exact.rollouts).double()
    theta = exact.policy.theta
    of_reward = gradients(lambda params: (exact.probabilities(params) @ rewards)[None], theta)[0]
    of_entropy = torch.cat([x.flatten() for x in exact.entropy_gradient(per).values()])
    P = torch.cat([P[name].flatten() for name in theta])
    jj, jh, hh = (
        float(a @ (P * b))
        for a, b in [(of_reward, of_reward), (of_reward, of_entropy), (of_entropy, of_entropy)]
    )
    return jh / math.sqrt(jj * hh)


def positive(policy):
    return {name: x.abs() + 0.1 for name, x in cases.direction(policy, 5).items()}


@pytest.mark.parametrize("per", cases.PERS)
def test_it_is_the_enumerated_angle_within_its_error(per):
    exact = cases.small_exact("qwen2")
    policy, E = exact.policy, batch(exact, 3000, 2)
    P = positive(policy)
    sample = score_batch(policy, E, EstimatorOptions(per))
    found = alignment(GradientPair.on_batch(policy, E, sample, P, 8))
    truth = exact_cosine(exact, per, P)
    assert 0 < found.se < 0.1
    assert abs(found.value - truth) < 4 * found.se


def _groups(parts):
    n = len(parts)
    held = HeldVectors(parts[0], n)
    for g, part in enumerate(parts):
        held.add(g, part)
    return GradientGroups(held, torch.arange(n), cases.array_sample(n))


def test_noise_is_not_taken_for_length():
    torch.manual_seed(0)
    d, G = 400, 8
    a, b = torch.randn(2, d, dtype=torch.float64)
    truth = float(a @ b / a.norm() / b.norm())
    cosines, plain = [], []
    for _ in range(200):
        sides = []
        for mean in (a, b):
            parts = [{"x": (mean + 2 * torch.randn(d, dtype=torch.float64)) / G} for _ in range(G)]
            sides.append(_groups(parts))
        found = alignment(GradientPair(*sides, {"x": torch.ones(d, dtype=torch.float64)}))
        cosines.append((found.value, found.ci_low <= truth <= found.ci_high))
        one, other = (side.total for side in sides)
        plain.append(dot(one, other) / math.sqrt(dot(one, one) * dot(other, other)))
    values, covered = map(torch.tensor, zip(*cosines, strict=True))
    assert float(values.mean()) == pytest.approx(truth, abs=0.01)
    assert covered.double().mean() > 0.9
    assert abs(sum(plain) / 200 - truth) > 0.2 * abs(truth)


def test_a_gradient_that_is_noise_has_no_direction():
    torch.manual_seed(1)
    G = 8
    sides = []
    for mean in (0.0, 5.0):
        parts = [{"x": torch.randn(50, dtype=torch.float64) + mean} for _ in range(G)]
        sides.append(_groups(parts))
    P = multiply(
        {"x": torch.ones(50, dtype=torch.float64)}, {"x": torch.ones(50, dtype=torch.float64)}
    )
    found = alignment(GradientPair(*sides, P))
    assert math.isnan(found.ci_low)
    assert "gradient of reward is not distinguishable" in found.warnings[0]
    few = [_groups([side.parts[0], side.parts[1]]) for side in sides]
    with pytest.raises(ValueError, match="three or more"):
        alignment(GradientPair(*few, P))
