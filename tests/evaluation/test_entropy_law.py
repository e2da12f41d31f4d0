"""The law R = −a exp(h) + b, on runs that obey it and on runs that cannot fix it."""

import numpy as np
import pytest

from isentrope import fit_entropy_law


def noisy_run(rng, n=60, memory=0.5):
    """Entropy falls from 1.5 to .3; the noise of reward resembles that of the step before."""
    h = np.linspace(1.5, 0.3, n) + 0.05 * rng.normal(size=n)
    noise = rng.normal(size=n)  # stationary
    for i in range(1, n):
        noise[i] = memory * noise[i - 1] + (1 - memory**2) ** 0.5 * rng.normal()
    return h, 1 - 0.2 * np.exp(h) + 0.05 * noise


SLOWLY = [(40, 0.8), (60, 0.8), (60, 0.95), (200, 0.95)]


@pytest.mark.parametrize(
    ("steps", "memory"),
    [(40, 0.95), (200, 0.8), *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOWLY)],
)
def test_noise_that_is_alike_for_long_leaves_wide_intervals_that_cover(steps, memory):
    """Without the inflation intervals at φ = .95 and 40 steps cover .74."""
    rng = np.random.default_rng(1)
    laws = [fit_entropy_law(*noisy_run(rng, steps, memory=memory)) for _ in range(150)]
    assert np.mean([law.a.covers(0.2) for law in laws]) >= 0.88
    assert np.mean([law.ceiling.covers(0.8) for law in laws]) >= 0.88


def test_a_run_of_fewer_than_40_steps_has_no_interval_and_says_why():
    law = fit_entropy_law(*noisy_run(np.random.default_rng(0), 39))
    assert np.isnan(law.a.ci_low)
    assert np.isnan(law.ceiling.ci_high)
    assert "39 steps" in law.warnings[0]
    assert law.a.warnings == law.warnings


@pytest.mark.parametrize(("bend", "share"), [(0.0, (0.0, 0.08)), (0.2, (0.9, 1.0))])
def test_a_reward_that_turns_over_is_said_not_to_follow_the_law(bend, share):
    rng, misfits = np.random.default_rng(2), []
    for _ in range(100):
        h, reward = noisy_run(rng, 60, memory=0.0)
        law = fit_entropy_law(h, reward - bend * (np.exp(h) - 2.6) ** 2)
        misfits.append(law.misfits)
        assert law.misfits == ("does not describe this run" in "".join(law.warnings))
    assert share[0] <= np.mean(misfits) <= share[1]


def test_its_errors_have_one_degree_of_freedom_less_than_blocks():
    law = fit_entropy_law(*noisy_run(np.random.default_rng(3)))
    assert (law.a.n, law.a.degrees_of_freedom) == (60, 4)


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
    laws = [fit_entropy_law(*noisy_run(rng, 120)) for _ in range(400)]
    given = [law for law in laws if np.isfinite(law.a.ci_low)]
    assert len(given) > 390
    for name, value in truth.items():
        assert 0.92 <= np.mean([getattr(law, name).covers(value) for law in given]) <= 0.98


@pytest.mark.parametrize(
    ("entropy", "reward", "words"),
    [
        ([1.0] * 12, [0.5] * 12, "same"),
        ([1.0, 0.9], [0.5, 0.6], "10 steps"),
        (np.linspace(1, 0, 12), [float("nan")] * 12, "finite"),
    ],
)
def test_a_run_that_cannot_fix_it_is_refused_in_a_sentence(entropy, reward, words):
    with pytest.raises(ValueError, match=words):
        fit_entropy_law(entropy, reward)
