"""The ellipse of first-order changes, against random directions of its length."""

import math

import pytest
import torch

from isentrope.attribution.frontier.ellipse import Ellipse

LENGTH = 0.7


def pair(cosine, seed=0, dimension=6):
    """P^½ times two gradients with a cosine, and their ellipse."""
    generator = torch.Generator().manual_seed(seed)
    first, other = torch.randn(2, dimension, generator=generator, dtype=torch.float64)
    other = other - (other @ first) / (first @ first) * first
    second = cosine * first / first.norm() + math.sqrt(1 - cosine**2) * other / other.norm()
    rows = torch.stack((first, 3.0 * second))
    return rows, Ellipse(rows @ rows.T, LENGTH)


def changes(rows, count, seed=1):
    """(count, 2) changes of random directions of the length."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(count, rows.shape[1], generator=generator, dtype=torch.float64)
    return LENGTH * directions / directions.norm(dim=1, keepdim=True) @ rows.T


COSINES = (-0.95, -0.4, 0.0, 0.6)


@pytest.mark.parametrize("cosine", COSINES)
def test_no_direction_of_the_length_lies_outside(cosine):
    rows, ellipse = pair(cosine)
    points = changes(rows, 10_000)
    shares = ellipse.share(points[:, :, None] * points[:, None, :])
    assert float(shares.max()) <= 1 + 1e-12
    assert bool((points[:, 0] <= ellipse.best(points[:, 1]) + 1e-12).all())


@pytest.mark.parametrize("cosine", COSINES)
def test_combinations_of_both_gradients_reach_every_point_of_the_edge(cosine):
    rows, ellipse = pair(cosine)
    angles = torch.linspace(0, 2 * math.pi, 400, dtype=torch.float64)
    mixtures = torch.stack((angles.cos(), angles.sin()), 1) @ rows
    points = LENGTH * mixtures / mixtures.norm(dim=1, keepdim=True) @ rows.T
    shares = ellipse.share(points[:, :, None] * points[:, None, :])
    assert shares.tolist() == pytest.approx([1.0] * len(shares), abs=1e-12)
    upper = points[points[:, 1] >= points[points[:, 0].argmax(), 1]]
    upper = upper[upper[:, 0] * rows[1].norm() >= upper[:, 1] * cosine * rows[0].norm()]
    assert ellipse.best(upper[:, 1]).tolist() == pytest.approx(upper[:, 0].tolist(), abs=1e-6)


def test_a_step_may_keep_entropy_for_nothing_or_at_a_price():
    _, aligned = pair(0.6)
    assert float(aligned.best(torch.tensor(0.0))) == float(aligned.reach[0])
    assert float(aligned.reward_for_a_nat(torch.tensor(0.0))) == 0.0
    _, opposed = pair(-0.4)
    share = math.sqrt(1 - 0.4**2)
    assert float(opposed.best(torch.tensor(0.0))) == pytest.approx(share * float(opposed.reach[0]))
    assert math.isnan(opposed.best(1.01 * opposed.reach[1]))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_the_price_of_a_nat_is_the_slope_of_the_edge(part):
    _, ellipse = pair(-0.4)
    entropy = part * ellipse.reach[1]
    small = 1e-6 * ellipse.reach[1]
    slope = (ellipse.best(entropy + small) - ellipse.best(entropy - small)) / (2 * small)
    assert float(ellipse.reward_for_a_nat(entropy)) == pytest.approx(-float(slope), rel=1e-6)
