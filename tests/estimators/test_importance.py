import math

import pytest
import torch

from isentrope.estimators.importance import diagnose, effective_sample_size, pareto_khat


def normal(n: int, scale: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, generator=generator, dtype=torch.float64)


def test_effective_sample_size_is_n_for_even_weights_and_one_for_a_single_weight():
    assert float(effective_sample_size(torch.full((9,), -700.0))) == pytest.approx(9)
    assert float(effective_sample_size(torch.tensor([0.0, -900.0]))) == pytest.approx(1)


def test_khat_finds_the_tail_of_a_pareto_distribution():
    exponential = -torch.rand(20_000, generator=torch.Generator().manual_seed(0)).double().log()
    for k in (0.3, 0.7, 1.0):  # weights e^{kE} have P(W > w) = w^{-1/k}
        assert pareto_khat(k * exponential) == pytest.approx(k, abs=0.1)


def test_khat_of_equal_or_few_weights_is_unknown():
    assert math.isnan(pareto_khat(torch.zeros(100)))
    assert math.isnan(pareto_khat(normal(20, 1.0)))
    assert math.isnan(pareto_khat(torch.full((100,), math.nan)))


def test_verdicts_go_from_trust_to_resample_as_weights_spread():
    verdicts = [
        diagnose(normal(400, scale)[:, None], torch.ones(400, 1)).verdict
        for scale in (1e-6, 0.3, 1.0, 3.0)
    ]
    assert verdicts == ["trust", "trust", "smooth", "resample"]


def test_first_position_has_no_weight_yet():
    ratios = normal(400, 1.0).reshape(100, 4)
    trust = diagnose(ratios, torch.ones(100, 4))
    assert float(trust.ess_by_position[0]) == pytest.approx(100)
    assert trust.ess_whole < float(trust.ess_by_position[-1]) < 100


def test_even_weights_that_are_all_tiny_mean_the_support_was_left():
    trust = diagnose(normal(200, 0.1)[:, None] - 20, torch.ones(200, 1))
    assert trust.ess_whole > 190
    assert trust.verdict == "resample"


def test_of_two_sets_of_weights_the_worse_verdict_holds_and_is_said():
    even, uneven = (diagnose(normal(400, s)[:, None], torch.ones(400, 1)) for s in (0.01, 3.0))
    assert even.or_worse(uneven) is uneven.or_worse(even) is uneven
    assert even.warnings == ()
    assert "collapsed" in uneven.warnings[0]


def test_weights_that_overflow_are_not_trusted():
    shifted = torch.full((32, 1), 800.0, dtype=torch.float64)
    assert diagnose(shifted, torch.ones(32, 1)).verdict == "resample"
