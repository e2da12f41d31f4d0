"""F at the exact weights is the truth: every method, both functionals, to rounding."""

from functools import cache

import pytest
import torch

from isentrope import score
from isentrope.estimators.functional import Functionals, along
from isentrope.policy.scoring import score_along
from tests import cases


def prefix_baseline(exact, mask):
    """Any function of (p, t_<k) will do: here, a hash of the prefix."""
    ids = torch.zeros(mask.shape)
    ids[mask] = torch.cat(exact.rollouts.response_ids).float() + 1
    powers = torch.arange(1, mask.shape[1] + 1)
    prefix = (ids * powers**2).cumsum(1) - ids * powers**2 + exact.rollouts.prompt_index[:, None]
    return torch.sin(prefix.double()) * mask


@cache
def derivatives_of_scores(name):
    exact = cases.small_exact(name)
    return score_along(exact.policy, exact.rollouts, cases.direction(exact.policy), 2)


@cache
def scores_after(name, eta):
    exact = cases.small_exact(name)
    moved = exact.policy.parameters_along(cases.direction(exact.policy), eta)
    return score(exact.policy, exact.rollouts, moved)


@cache
def truth_by_differences(name, per):
    exact = cases.small_exact(name)
    return exact.derivatives(cases.direction(exact.policy), per)


def functional_of(exact, per, method, base):
    baseline = prefix_baseline(exact, base.mask) if method == "doubly-robust" else None
    kept = base.logprobs if method == "surprisal" else None
    return Functionals(f"per_{per}", method, base.mask.double(), baseline, kept)


@pytest.mark.parametrize(("name", "method", "per"), cases.pairwise(cases.ARCHITECTURES))
def test_at_exact_weights_the_value_is_exact_at_any_step(name, method, per):
    exact = cases.small_exact(name)
    v, omega = cases.direction(exact.policy), exact.probabilities()
    base = scores_after(name, 0.0)
    f = functional_of(exact, per, method, base)
    for eta in (0.0, 1e-2, 0.3):
        moved = scores_after(name, eta)
        value = f(omega, moved.logprobs - base.logprobs, moved.entropies)
        truth = exact.entropy(per, direction=v, eta=eta)
        assert float(value) == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize(("name", "method", "per"), cases.pairwise(cases.ARCHITECTURES))
def test_at_exact_weights_the_derivatives_are_exact(name, method, per):
    exact = cases.small_exact(name)
    series = derivatives_of_scores(name)
    f = functional_of(exact, per, method, series[0])
    none = torch.zeros_like(series[0].logprobs)
    ratios = (none, series[1].logprobs, series[2].logprobs)
    _, first, second = along(f, exact.probabilities(), ratios, tuple(s.entropies for s in series))
    truth = truth_by_differences(name, per)  # right to 1e-12 and 1e-10
    assert float(first) == pytest.approx(truth[0], rel=1e-10)
    assert float(second) / 2 == pytest.approx(truth[1], rel=1e-9)


def test_prefix_method_is_the_formula_written_as_loops():
    sample = cases.array_sample(n=5, t=4, functional="per_sequence")
    r, h, m = sample.series[1].logprobs, sample.entropies, sample.functional.tokens
    omega = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    total = 0.0
    for k in range(4):
        weights = [float(omega[i] * r[i, :k].sum().exp()) for i in range(5)]
        total += sum(w * float(m[i, k] * h[i, k]) for i, w in enumerate(weights)) / sum(weights)
    assert float(sample.functional(omega, r, h)) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("method", cases.METHODS)
def test_the_scale_of_the_weights_does_not_matter(method):
    sample = cases.array_sample(method=method)
    omega = torch.rand(40, dtype=torch.float64) + 0.1
    f, r, h = sample.functional, sample.series[1].logprobs, sample.entropies
    expected = pytest.approx(float(f(omega, r, h)), rel=1e-9)
    assert float(f(7 * omega, r, h)) == expected
    if method == "sequence":  # a factor of every whole sequence, which no float64 can hold
        far = r.clone()
        far[:, 0] += 800
        assert float(f(omega, far, h)) == expected


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="per_token"):
        Functionals("per_word", "prefix", torch.ones(1, 1))
    with pytest.raises(ValueError, match="prefix"):
        Functionals("per_token", "postfix", torch.ones(1, 1))
