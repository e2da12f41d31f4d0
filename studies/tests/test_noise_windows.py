"""Windows of a run: what noise and drift leave in each, by hand."""

import pytest
import torch

from studies import noise_windows


def contents(gradients, trace):
    """What the recorder keeps of a run with these (steps, d) gradients of 4 prompts."""
    gram = gradients @ gradients.T
    return {"gram_4": gram, "traces": torch.full((len(gradients),), trace, dtype=torch.float64)}


def test_a_gradient_that_turns_by_one_per_step_has_the_variance_of_its_steps_in_each_window():
    steps = torch.arange(noise_windows.STEPS, dtype=torch.float64)
    run = contents(torch.stack([steps, torch.ones_like(steps)], 1), 0.0)
    for width in noise_windows.WINDOWS:
        found = noise_windows.windows_of([run, run], 4, width)
        expected = torch.arange(width).double().var()
        assert found.variance.tolist() == pytest.approx([float(expected)] * (2 * 32 // width))


def test_without_motion_the_variance_is_the_noise_in_every_window_on_average():
    generator = torch.Generator().manual_seed(0)
    d, trace = 2_000, 12.0
    noise = torch.randn(noise_windows.STEPS, d, generator=generator, dtype=torch.float64)
    run = contents(1 + noise * (trace / 4 / d) ** 0.5, trace)
    found = noise_windows.windows_of([run], 4, 8)
    assert found.noise.tolist() == pytest.approx([3.0] * 4)
    assert float(found.variance.mean()) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(2.1, 3.9, "broken"), (3.3, 4.8, "stands"), (3.1, 4.2, "not decided")],
)
def test_the_verdict_follows_the_rule_that_was_fixed(low, high, words):
    assert noise_windows.verdict(low, high) == words


def test_two_windows_have_no_interval():
    assert noise_windows.verdict(*noise_windows.ratio(torch.ones(2), torch.ones(2))[1:]) == (
        "not decided"
    )
