"""The mean of δH₂ over batches, against every batch of an enumerable policy."""

from itertools import combinations

import numpy as np
import pytest
import torch

from isentrope.nouns.vectors import axpy, multiply
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from studies.batch_curvature import batch_curvature
from tests import cases

GROUPS = ([0, 9], [3, 22], [12, 20], [28, 5], [17, 26])


def setting(name):
    """(exact policy, q by forward mode with exact weights, u_p of five groups)."""
    exact = cases.small_exact(name)
    policy, omega = exact.policy, exact.probabilities() / exact.n_prompts
    P = {n: v.abs() + 0.1 for n, v in cases.direction(policy, seed=4).items()}
    base = cases.direction(policy, seed=5)

    def q(v):
        s, first, second = (x.logprobs.sum(1) for x in score_along(policy, exact.rollouts, v, 2))
        centred = s - omega @ s
        return float(-(omega @ (first**2 + centred * (second + first**2))) / 2)

    directions = []
    for k, rows in enumerate(GROUPS):
        U = exact.rollouts.select(torch.tensor(rows))
        weights = torch.tensor([1.0, -0.5 + 0.3 * k])[:, None] * U.mask
        directions.append(axpy(1, base, multiply(P, weighted_gradient(policy, U, weights))))
    return exact, q, directions


def mean(vectors):
    return {n: torch.stack([v[n] for v in vectors]).mean(0) for n in vectors[0]}


@pytest.mark.parametrize("name", ["table", "qwen2"])
def test_it_is_the_mean_of_the_oracles_second_order_over_every_batch(name):
    exact, q, directions = setting(name)
    found = batch_curvature(q, directions)
    for B in (1, 2, 4):
        every = [
            exact.derivatives(mean([directions[i] for i in chosen]), "sequence")[1]
            for chosen in combinations(range(5), B)
        ]
        assert found.at(B).value == pytest.approx(np.mean(every), rel=1e-9), B


def quadratic(H):
    return lambda v: float(v["x"] @ H @ v["x"]) / 2


def test_parts_and_errors_are_those_of_the_dense_form():
    rng = torch.Generator().manual_seed(0)
    H = torch.randn(4, 4, generator=rng, dtype=torch.float64)
    u = torch.randn(9, 4, generator=rng, dtype=torch.float64) + 1
    H = H + H.T
    found = batch_curvature(quadratic(H), [{"x": x} for x in u])

    def parts(u):
        Q = (u @ H @ u.T).numpy() / 2
        n = len(u)
        return (Q.sum() - Q.trace()) / (n * (n - 1)), Q.trace() / n

    D, A = parts(u)
    assert (found.mean_step.value, found.noise.value) == pytest.approx((D, A - D), rel=1e-12)
    deleted = np.array([parts(u[torch.arange(9) != p]) for p in range(9)])

    def se(x):
        return (8 / 9 * ((x - x.mean()) ** 2).sum()) ** 0.5

    assert found.mean_step.se == pytest.approx(se(deleted[:, 0]), rel=1e-9)
    assert found.noise.se == pytest.approx(se(deleted[:, 1] - deleted[:, 0]), rel=1e-9)
    at_4 = deleted[:, 0] + (deleted[:, 1] - deleted[:, 0]) / 4
    assert found.at(4).se == pytest.approx(se(at_4), rel=1e-9)


def test_the_noise_is_the_trace_of_the_covariance_on_average():
    """½ tr(H Σ) and ½ ḡᵀHḡ of known gradients, over many batches of groups."""
    H = torch.diag(torch.tensor([1.0, -2.0, 0.5])).double()
    sd, centre = torch.tensor([1.0, 0.5, 2.0]), torch.tensor([0.3, 1.0, -0.2])
    rng = torch.Generator().manual_seed(1)
    found = []
    for _ in range(300):
        u = (centre + sd * torch.randn(12, 3, generator=rng)).double()
        result = batch_curvature(quadratic(H), [{"x": x} for x in u])
        found.append((result.mean_step.value, result.noise.value))
    truth = ((H.diagonal() @ centre.double() ** 2) / 2, (H.diagonal() @ sd.double() ** 2) / 2)
    values = np.array(found)
    error = values.std(0) / 300**0.5
    assert np.all(abs(values.mean(0) - np.array([float(x) for x in truth])) < 4 * error)


@pytest.mark.slow
def test_the_intervals_cover_as_stated():
    H = torch.diag(torch.tensor([1.0, -2.0, 0.5])).double()
    sd, centre = torch.tensor([1.0, 0.5, 2.0]).double(), torch.tensor([0.3, 1.0, -0.2]).double()
    truth = [float(H.diagonal() @ x**2) / 2 for x in (centre, sd)]
    rng, covered = torch.Generator().manual_seed(1), []
    for _ in range(400):
        u = centre + sd * torch.randn(32, 3, generator=rng).double()
        found = batch_curvature(quadratic(H), [{"x": x} for x in u])
        at_4 = found.at(4).covers(truth[0] + truth[1] / 4)
        parts = (found.mean_step.covers(truth[0]), found.noise.covers(truth[1]))
        covered.append((*parts, at_4))
    rates = np.mean(covered, 0)
    assert np.all((rates >= 0.92) & (rates <= 0.98)), rates


def test_too_few_groups_are_refused():
    with pytest.raises(ValueError, match="three prompt groups"):
        batch_curvature(quadratic(torch.eye(1)), [{"x": torch.ones(1)}] * 2)
    three = batch_curvature(quadratic(torch.eye(1).double()), [{"x": torch.ones(1).double()}] * 3)
    with pytest.raises(ValueError, match="at least one"):
        three.at(0)
