"""Noise and drift of a run, against every sequence of batches of a small one."""

import itertools

import numpy as np
import pytest
import torch

from isentrope.nouns.vectors import axpy
from isentrope.oracle.plain import Tree, gradients
from isentrope.policy.gradient import weighted_gradient
from studies.drift import separate_drift
from tests import cases

SOME = torch.tensor([3, 12, 20])
X = torch.tensor([1.0, -0.7, 0.4], dtype=torch.float64)


def run_of(name):
    """(T, 3, d) gradients x ∂S of three groups at four points of a run, by autograd, and the true
    mean gradient of each, (T, d) by differences."""
    exact = cases.small_exact(name)
    policy, U = exact.policy, exact.rollouts.select(SOME)
    start, v = policy.theta, cases.direction(exact.policy, seed=3)
    tree, by_autograd, truth = Tree(policy, U), [], []
    for eta in (0.0, 0.2, 0.3, 0.7):
        theta = axpy(eta, v, start)
        with policy.shifted(v, eta):
            rows = [
                weighted_gradient(policy, U.select([i]), X[i] * U.select([i]).mask.double())
                for i in range(3)
            ]
        by_autograd.append(torch.stack([torch.cat([g[n].flatten() for n in start]) for g in rows]))
        scores = gradients(lambda params: tree(params)[0], theta)
        truth.append((X[:, None] * scores).mean(0))
    return torch.stack(by_autograd), torch.stack(truth)


@pytest.mark.parametrize("name", ["table", "llama"])
def test_over_every_sequence_of_batches_the_drift_is_that_of_the_true_gradient(name):
    """Two groups per step, drawn independently with replacement: 6 batches at each of 4 points."""
    g, truth = run_of(name)
    batches = list(itertools.combinations_with_replacement(range(3), 2))
    weight = torch.tensor([1.0 if i == j else 2.0 for i, j in batches]).double() / 9
    means = torch.stack([g[:, list(b)].mean(1) for b in batches], 1)  # (T, 6, d)
    traces = torch.stack([g[:, list(b)].var(1).sum(-1) for b in batches], 1)  # unbiased, (T, 6)
    flat = means.flatten(0, 1)
    inner = (flat @ flat.T).view(4, 6, 4, 6)
    found, k = torch.zeros(2, dtype=torch.float64), torch.arange(4)
    for choice in itertools.product(range(6), repeat=4):
        pick = torch.tensor(choice)
        split = separate_drift(inner[k, pick][:, k, pick], traces[k, pick], 2, blocks=2)
        parts = torch.tensor([split.drift.value, split.signal.value], dtype=torch.float64)
        found += weight[pick].prod() * parts
    centre = truth.mean(0)
    exact = (float((truth - centre).square().sum() / 3), float(centre.square().sum()))
    np.testing.assert_allclose(found, exact, rtol=1e-9)


def test_noise_falls_with_the_batch_and_drift_does_not():
    rng = torch.Generator().manual_seed(0)
    steps, d = 400, 30
    angle = torch.linspace(0, 3, steps).double()
    G = torch.zeros(steps, d, dtype=torch.float64)
    G[:, 0], G[:, 1] = angle.cos(), angle.sin()
    drift = float((G - G.mean(0)).square().sum() / (steps - 1))
    for B in (4, 64):
        noise = torch.randn(steps, d, generator=rng, dtype=torch.float64) / B**0.5
        g = G + noise
        traces = torch.full((steps,), float(d))
        split = separate_drift(g @ g.T, traces, B)
        assert split.noise.value == pytest.approx(d / B)
        assert split.drift.degrees_of_freedom == split.drift.n - 1
        assert split.drift.value == pytest.approx(
            drift, abs=0.05 + 3 * d / B * (2 / steps / d) ** 0.5
        )


@pytest.mark.slow
def test_the_intervals_of_noise_and_drift_cover_a_turning_gradient():
    steps, d, B = 40, 30, 4
    angle = torch.linspace(0, 3, steps).double()
    G = torch.zeros(steps, d, dtype=torch.float64)
    G[:, 0], G[:, 1] = angle.cos(), angle.sin()
    drift = float((G - G.mean(0)).square().sum() / (steps - 1))
    rng, covered = torch.Generator().manual_seed(1), []
    for _ in range(300):
        g = G + torch.randn(steps, d, generator=rng).double() / B**0.5
        traces = d * (1 + 0.1 * torch.randn(steps, generator=rng).double())
        split = separate_drift(g @ g.T, traces, B)
        covered.append((split.noise.covers(d / B), split.drift.covers(drift)))
    rates = np.mean(covered, 0)
    assert np.all((rates >= 0.92) & (rates <= 1)), rates


def test_what_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match="4 steps"):
        separate_drift(torch.eye(4), torch.ones(4), 2)
    with pytest.raises(ValueError, match="shape"):
        separate_drift(torch.eye(4), torch.ones(20), 2)
    with pytest.raises(ValueError, match="at least one"):
        separate_drift(torch.eye(20), torch.ones(20), 0)
