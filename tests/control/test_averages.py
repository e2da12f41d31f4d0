"""Means of gradients over readings."""

import numpy as np
import pytest
import torch

from isentrope.control.gradient_means import GradientMeans, mean_of


def named(x):
    x = torch.as_tensor(x, dtype=torch.float64)
    return {"first": x[..., :2].clone(), "second": x[..., 2:].clone()}


def flat(x):
    return torch.cat([y.flatten() for y in x.values()]).numpy()


ONES = named(np.ones(6))


def readings(count, groups=2):
    """Entropy gradients of two halves by groups, as many times."""
    return np.random.default_rng(count).normal(size=(count, 2, groups, 6))


@pytest.mark.parametrize("window", [1, 2, 7])
def test_a_mean_weights_the_past_by_its_age(window):
    drawn, means = readings(9), GradientMeans(window)
    for count, (a, b) in enumerate(drawn, start=1):
        means.add((named(a), named(b)), count)
    weights = (1 - 1 / window) ** np.arange(9)[::-1]
    whole = drawn.sum(2).mean(1)
    np.testing.assert_allclose(
        flat(mean_of(means.conditioned(ONES))), np.average(whole, axis=0, weights=weights)
    )


def test_saved_means_resume_identically():
    means, again, (*drawn, last) = GradientMeans(3), GradientMeans(3), readings(5)
    for count, (a, b) in enumerate(drawn, start=1):
        means.add((named(a), named(b)), count)
    again.tensors = dict(means.tensors)
    for each in (means, again):
        each.add(tuple(map(named, last)), 5)
    assert means.tensors.keys() == again.tensors.keys()
    for name, x in means.tensors.items():
        assert torch.equal(x, again.tensors[name])
