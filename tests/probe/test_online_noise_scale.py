import json

import numpy as np
import pytest
import torch

from isentrope.probe.online_noise_scale import (
    NoiseScaleMonitor,
    OnlineNoiseScale,
    micro_batch_moments,
)


def gradients(rng, n, b=1, d=50, noise=1.0):
    """n micro-batch gradients of b groups each: |G|² = d, tr Σ = d noise²."""
    return 1 + noise * rng.normal(size=(n, b, d)).mean(1)


def moments(g, b, seen=None):
    squares = (g**2).sum(1)
    return micro_batch_moments(squares[:seen].mean(), (g.mean(0) ** 2).sum(), len(g), b)


def test_with_groups_of_one_it_is_t8():
    g = gradients(np.random.default_rng(0), 8)
    n, mean = len(g), g.mean(0)
    trace = ((g**2).sum() - n * mean @ mean) / (n - 1)
    square = (n**2 * mean @ mean - (g**2).sum()) / (n * (n - 1))
    assert moments(g, 1) == pytest.approx((trace, square), rel=1e-12)


@pytest.mark.parametrize("seen", [None, 3])
def test_it_is_unbiased_also_when_some_micro_batches_are_not_seen_alone(seen):
    rng = np.random.default_rng(1)
    found = np.array([moments(gradients(rng, 4, b=3, noise=2.0), 3, seen) for _ in range(4000)])
    z = (found.mean(0) - [50 * 4.0, 50.0]) / (found.std(0) / len(found) ** 0.5)
    assert np.abs(z).max() < 4


def after(rng, memory, steps, noise):
    scale = OnlineNoiseScale(memory)
    for _ in range(steps):
        scale.update(*moments(gradients(rng, 4, noise=noise), 1))
    return scale.estimate()


@pytest.mark.parametrize("memory", [pytest.param(0.9, marks=pytest.mark.slow), 0.95])
def test_the_interval_of_the_running_ratio_covers_as_stated(memory):
    rng = np.random.default_rng(2)
    covered = sum(after(rng, memory, 80, 2.0).covers(4.0) for _ in range(300))
    assert 0.92 <= covered / 300 <= 0.99


def test_of_a_gradient_that_noise_all_but_hides_the_intervals_given_are_seldom_wrong():
    rng = np.random.default_rng(5)
    found = [after(rng, 0.95, 80, 8.0) for _ in range(300)]
    given = [e for e in found if np.isfinite(e.ci_high)]
    wrong = sum(not e.covers(64.0) for e in given)
    assert 1 <= len(given) <= 40  # |G|² is seldom four of its errors from zero
    assert wrong <= 0.05 * 300  # R ± t SE misses in 26 to 38 of these runs


def test_a_short_memory_has_no_interval():
    found = after(np.random.default_rng(8), 0.8, 60, 1.0)
    assert np.isnan([found.ci_low, found.ci_high]).all()


@pytest.mark.slow
def test_heavy_tailed_gradients_are_covered_too():
    """Norms times exp(N(0, 1)), micro-batches of four groups: .80 with f − 1 degrees of freedom."""
    rng, covered = np.random.default_rng(6), 0
    for _ in range(150):
        scale = OnlineNoiseScale(0.95)
        norms = np.exp(rng.normal(size=(80, 2, 4)) - 1)
        spread = (2.0 * (norms**2).mean(2, keepdims=True)) ** 0.5
        for g in 1 + spread * rng.normal(size=(80, 2, 50)):
            scale.update(*moments(g, 4))
        covered += scale.estimate().covers(8.0) or np.isnan(scale.estimate().ci_low)
    assert covered / 150 >= 0.92


def test_a_state_without_recent_steps_has_no_interval_until_it_has_them():
    rng, scale = np.random.default_rng(7), OnlineNoiseScale(0.9)
    for _ in range(60):
        scale.update(*moments(gradients(rng, 4), 1))
    old = {k: v for k, v in scale.state_dict().items() if k != "recent"}
    again = OnlineNoiseScale(0.9)
    again.load_state_dict(old)
    assert np.isnan(again.estimate().ci_low)
    assert again.estimate().value == scale.estimate().value
    for _ in range(40):
        again.update(*moments(gradients(rng, 4), 1))
    assert np.isfinite(again.estimate().ci_low)


def test_a_gradient_lost_in_noise_has_no_interval():
    rng, open_ended = np.random.default_rng(3), 0
    for _ in range(50):
        scale = OnlineNoiseScale(0.9)
        for _ in range(60):
            scale.update(*moments(gradients(rng, 4, noise=2.0) - 1, 1))
        found = scale.estimate()
        open_ended += not np.isfinite(found.ci_high)
    assert open_ended >= 40


@pytest.mark.parametrize(("trace", "square"), [(4.0, -1.0), (-1.0, 4.0), (4.0, 0.0)])
def test_a_scale_that_chance_made_negative_is_in_no_log(trace, square):
    scale = OnlineNoiseScale(0.9)
    for step in range(40):
        scale.update(trace * (1 + step % 3), square)
    found = scale.latest()
    assert np.isnan([x for name, x in found.items() if "b_simple" in name]).all()
    assert found["noise_scale/gradient_square"] == pytest.approx(square)
    scale.update(1e4, 1e4)
    assert scale.latest()["noise_scale/b_simple"] > 0


def test_the_monitor_sees_each_micro_batch_in_the_accumulated_gradient():
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(3, 4)), torch.nn.Parameter(torch.zeros(5))]
    own = [torch.randn(17) for _ in range(3)]
    monitor = NoiseScaleMonitor(parameters, accumulation=3, processes=1, groups=2, decay=0.9)
    for _ in range(3):
        for p in parameters:
            p.grad = None
        for m, g in enumerate(own):
            pieces = (g / 3).split([12, 5])
            sum(
                (p * x.view_as(p)).sum() for p, x in zip(parameters, pieces, strict=True)
            ).backward()
            monitor.after_backward(last=m == 2)
    trace, square = moments(torch.stack(own).double().numpy(), 2)
    found = monitor.latest()
    assert found["noise_scale/trace"] == pytest.approx(trace, rel=1e-5)
    assert found["noise_scale/gradient_square"] == pytest.approx(square, rel=1e-5)


def test_a_restored_scale_goes_on_to_the_bit():
    rng, scale = np.random.default_rng(4), OnlineNoiseScale(0.9)
    for _ in range(5):
        scale.update(*moments(gradients(rng, 4), 1))
    again = OnlineNoiseScale(0.9)
    again.load_state_dict(json.loads(json.dumps(scale.state_dict())))
    for one in (scale, again):
        one.update(2.0, 1.0)
    assert again.latest() == scale.latest()
