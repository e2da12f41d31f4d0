"""The law R = −a exp(h) + b, on runs that obey it and on runs that cannot fix it."""

import numpy as np
import pytest

from isentrope.evaluation.entropy_law import fit_entropy_law


def noisy_run(rng, n=60, memory=0.5):
    """Entropy falls from 1.5 to .3; the noise of reward resembles that of the step before."""
    h = np.linspace(1.5, 0.3, n) + 0.05 * rng.normal(size=n)
    noise = np.zeros(n)
    for i in range(1, n):
        noise[i] = memory * noise[i - 1] + (1 - memory**2) ** 0.5 * rng.normal()
    return h, 1 - 0.2 * np.exp(h) + 0.05 * noise


def test_a_run_that_obeys_the_law_gives_it_back():
    h = np.linspace(1.0, 0.2, 12)
    law = fit_entropy_law(h, 0.9 - 0.3 * np.exp(h))
    assert law.a.value == pytest.approx(0.3, rel=1e-9)
    assert law.b.value == pytest.approx(0.9, rel=1e-9)
    assert law.ceiling.value == pytest.approx(0.6, rel=1e-9)
    assert law(0.5) == pytest.approx(0.9 - 0.3 * np.exp(0.5), rel=1e-9)
    assert law.r_squared == pytest.approx(1.0)


def test_its_intervals_cover_under_autocorrelated_noise():
    rng, truth = np.random.default_rng(0), {"a": 0.2, "b": 1.0, "ceiling": 0.8}
    laws = [fit_entropy_law(*noisy_run(rng)) for _ in range(500)]
    for name, value in truth.items():
        assert 0.92 <= np.mean([getattr(law, name).covers(value) for law in laws]) <= 0.98


@pytest.mark.parametrize(
    ("entropy", "reward", "words"),
    [
        ([1.0] * 12, [0.5] * 12, "the same at every step"),
        ([1.0, 0.9], [0.5, 0.6], "10 steps or more"),
        (np.linspace(1, 0, 12), [float("nan")] * 12, "finite"),
    ],
)
def test_a_run_that_cannot_fix_it_is_refused_in_a_sentence(entropy, reward, words):
    with pytest.raises(ValueError, match=words):
        fit_entropy_law(entropy, reward)
