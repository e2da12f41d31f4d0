"""Means of gradients, and the projection that leaves the mean reward unchanged."""

import numpy as np
import pytest
import torch

from isentrope.control.averages import BLOCKS, BlockMean, GradientMeans


def named(x):
    x = torch.as_tensor(x, dtype=torch.float64)
    return {"first": x[..., :2].clone(), "second": x[..., 2:].clone()}


def flat(x):
    return torch.cat([y.flatten() for y in x.values()]).numpy()


@pytest.mark.parametrize("window", [1, 2, 7])
def test_a_mean_weights_the_past_by_its_age(window):
    rng = np.random.default_rng(0)
    vectors, mean = rng.normal(size=(9, 5)), BlockMean(window)
    for vector in vectors:
        mean.add(named(vector))
    weights = (1 - 1 / window) ** np.arange(9)[::-1]
    np.testing.assert_allclose(flat(mean.value), np.average(vectors, axis=0, weights=weights))


def draws(count, groups=2):
    """Entropy gradients of two halves by groups, as many times."""
    rng = np.random.default_rng(count)
    return [[named(rng.normal(size=(groups, 6))) for _ in "ab"] for _ in range(count)]


def summed(groups):
    return {n: x.sum(0) for n, x in groups.items()}


def test_the_halves_of_a_draw_have_the_past_before_it_and_not_the_draw():
    means, (first, second) = GradientMeans(4), draws(2)
    means.observe(*first)
    assert means.halves().past_a is None
    means.observe(*second)
    halves = means.halves()
    np.testing.assert_array_equal(flat(halves.a), flat(second[0]))
    np.testing.assert_allclose(flat(halves.past_a), flat(summed(first[0])))
    np.testing.assert_allclose(flat(halves.past_b), flat(summed(first[1])))
    assert halves.share == pytest.approx(0.25 / (1 - 0.75**2))


def test_a_draw_that_serves_many_steps_counts_once():
    means, (first, second, third) = GradientMeans(4), draws(3)
    for draw, steps in ((first, 3), (second, 2), (third, 1)):
        means.observe(*draw)
        for _ in range(steps):
            halves = means.halves()
    expected = (0.75 * flat(summed(first[0])) + flat(summed(second[0]))) / 1.75
    np.testing.assert_allclose(flat(halves.past_a), expected)


def filled(noise, steps=40, seed=0):
    """Means of reward gradients around (1, ..., 6) / 6, and their truth."""
    rng, truth = np.random.default_rng(seed), np.arange(1, 7) / 6
    means = GradientMeans(1, reward_average=steps)
    for step in range(steps):
        means.add_reward(step, named(truth + noise * rng.normal(size=6)))
    return means, truth


def test_without_noise_the_projection_takes_out_exactly_the_part_along_reward():
    means, truth = filled(noise=0.0)
    P, x = np.linspace(0.5, 2, 6), np.random.default_rng(3).normal(size=6)
    project = means.reward_projection(named(P))
    expected = x - P * truth * (truth @ x) / (truth @ (P * truth))
    np.testing.assert_allclose(flat(project(named(x))), expected)
    assert truth @ flat(project(named(x))) == pytest.approx(0)


def test_with_noise_it_changes_reward_by_nothing_on_average():
    P, x = named(np.ones(6)), np.random.default_rng(4).normal(size=6)
    left = []
    for seed in range(200):
        means, truth = filled(noise=0.3, seed=seed)
        project = means.reward_projection(P)
        left.append(truth @ flat(project(named(x))))
    assert abs(np.mean(left)) < 3 * np.std(left) / np.sqrt(200)
    assert abs(np.mean(left)) < 0.05 * abs(truth @ x)


def test_noise_alone_and_too_few_steps_give_no_projection():
    rng, means = np.random.default_rng(0), GradientMeans(1, reward_average=8)
    P, none = named(np.ones(6)), 0
    for step in range(BLOCKS - 1):
        means.add_reward(step, named(np.ones(6)))
        assert means.reward_projection(P) is None
    for _ in range(100):
        means = GradientMeans(1, reward_average=8)
        for step in range(8):
            means.add_reward(step, named(rng.normal(size=6)))
        none += means.reward_projection(P) is None
    assert none > 85  # a false alarm above two errors, with the tail of three degrees of freedom


def test_saved_means_resume_identically_and_an_incomplete_state_is_another():
    rng, means = np.random.default_rng(1), GradientMeans(3, reward_average=6)
    for step, draw in enumerate(draws(5)):
        means.observe(*draw)
        means.add_reward(step, named(rng.normal(size=6)))
    again = GradientMeans(3, reward_average=6)
    again.load(means.state_dict(), means.tensors())
    new = named(rng.normal(size=6))
    for each in (means, again):
        each.observe(*draws(1)[0])
        each.add_reward(5, new)
    assert means.tensors().keys() == again.tensors().keys()
    for name, x in means.tensors().items():
        assert torch.equal(x, again.tensors()[name])
    for missing in ("a/", "reward_2/", "kept_b/"):
        left = {n: x for n, x in means.tensors().items() if not n.startswith(missing)}
        again.load(means.state_dict(), left)
        assert again.state_dict() != means.state_dict()
