"""Means of gradients over readings."""

import numpy as np
import pytest
import torch

from isentrope.control.averages import GradientMeans


def named(x):
    x = torch.as_tensor(x, dtype=torch.float64)
    return {"first": x[..., :2].clone(), "second": x[..., 2:].clone()}


def flat(x):
    return torch.cat([y.flatten() for y in x.values()]).numpy()


def readings(count, groups=2):
    """Entropy gradients of two halves by groups, as many times."""
    return np.random.default_rng(count).normal(size=(count, 2, groups, 6))


@pytest.mark.parametrize("window", [1, 2, 7])
def test_a_mean_weights_the_past_by_its_age(window):
    drawn, means = readings(9), GradientMeans(window)
    for a, b in drawn:
        means.add(means.halves(named(a), named(b)))
    weights = (1 - 1 / window) ** np.arange(9)[::-1]
    whole = drawn.sum(2).mean(1)
    np.testing.assert_allclose(flat(means.mean), np.average(whole, axis=0, weights=weights))


def test_the_halves_of_a_reading_have_the_past_before_it_and_not_the_reading():
    means, (first, second) = GradientMeans(4), readings(2)
    one = means.halves(*map(named, first))
    assert one.past_a is None
    means.add(one)
    halves = means.halves(*map(named, second))
    np.testing.assert_array_equal(flat(halves.a), flat(named(second[0])))
    np.testing.assert_allclose(flat(halves.past_a), flat(named(first[0].sum(0))))
    np.testing.assert_allclose(flat(halves.past_b), flat(named(first[1].sum(0))))
    assert halves.share == pytest.approx(0.25 / (1 - 0.75**2))


def test_saved_means_resume_identically():
    means, again, (*drawn, last) = GradientMeans(3), GradientMeans(3), readings(5)
    for a, b in drawn:
        means.add(means.halves(named(a), named(b)))
    again.count = means.count
    again.load(means.tensors())
    for each in (means, again):
        each.add(each.halves(*map(named, last)))
    assert means.tensors().keys() == again.tensors().keys()
    for name, x in means.tensors().items():
        assert torch.equal(x, again.tensors()[name])
