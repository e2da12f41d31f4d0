"""The library's projections keep inner products on average."""

import torch

import isentrope as ise
from isentrope.attribution.gradients.sketch import Projection
from tests import cases


def test_projected_products_are_right_on_average_over_seeds():
    policy = cases.policy("table")
    (name,) = policy.theta
    generator = torch.Generator().manual_seed(0)
    shape = policy.theta[name].shape
    G = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    P = {name: torch.rand(shape, generator=generator, dtype=torch.float64)}
    exact = float((G[0] * P[name] * G[1]).sum())
    draws = []
    for seed in range(500):
        projected = Projection(policy, ise.Sketch(3, seed), P).of(name, G)
        assert max(projected.shape[1:]) <= 3
        draws.append(float((projected[0] * projected[1]).sum()))
    spread = torch.tensor(draws, dtype=torch.float64)
    assert abs(float(spread.mean()) - exact) < 4 * float(spread.std()) / len(draws) ** 0.5
