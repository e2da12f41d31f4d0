import copy
import math

import pytest
import torch

import isentrope as ise
from isentrope import Policy, entropy_change, score
from isentrope.checks import check_sampler
from isentrope.estimators.sampler_match import match_sampler, noise_of
from isentrope.policy.at_temperature import logprobs_at
from isentrope.policy.chi_square import RowSampler
from tests import cases


def drawn(sampler):
    return cases.drawn_by(sampler, 128)


def match(batch):
    policy = cases.policy("qwen2")
    return match_sampler(policy, batch, score(policy, batch))


@pytest.mark.parametrize("temperature", [0.98, 0.85, 1.4])
def test_a_temperature_is_found(temperature):
    found = match(drawn(cases.policy("qwen2", temperature=temperature)))
    assert not found.agrees
    assert found.sampler.temperature == pytest.approx(temperature, abs=1e-3)


def test_nothing_kept_and_rounding_agree():
    batch = drawn(cases.policy("qwen2"))
    noisy = batch.with_columns(sampler_logprobs=[s + 5e-4 for s in batch.sampler_logprobs])
    for same in (batch, noisy, batch.with_columns(sampler_logprobs=None)):
        assert match(same).agrees
        assert match(same).warnings == ()


@pytest.mark.parametrize("cause", ["other weights", "an offset", "a filter"])
def test_measure_and_check_agree_that_an_unknown_sampler_leaves_no_interval(cause):
    policy = cases.policy("qwen2")
    batch = drawn(cases.policy("qwen2", seed=1) if cause == "other weights" else policy)
    if cause != "other weights":
        shift = 0.003 if cause == "an offset" else 0.2
        batch = batch.with_columns(sampler_logprobs=[s + shift for s in batch.sampler_logprobs])
    v = cases.direction(policy)
    sweep = entropy_change(policy, batch, v, [1e-4])
    for found in (sweep.entropy, sweep.first_order, sweep.points[0].change):
        assert math.isnan(found.ci_low)
        assert any("draws at another temperature explain it" in x for x in found.warnings)
    agreement = next(f for f in check_sampler(policy, batch, v) if f.name == "sampler = scorer")
    assert agreement.passed is False


@cases.built_once
def in_bfloat16():
    """The same weights as a sampler in bfloat16 would hold them."""
    model = copy.deepcopy(cases.model("qwen2"))
    return Policy(model.bfloat16().double(), eos_token_id=0, pad_token_id=0)


def test_rounding_of_a_sampler_is_weighted_away():
    policy, batch = cases.policy("qwen2"), drawn(in_bfloat16())
    found = match(batch)
    assert not found.agrees
    assert 1e-3 < found.difference < 0.1
    factors = score(policy, batch).logprobs - batch.padded("sampler_logprobs")
    factors = factors[batch.mask].expm1()
    expected = float(factors.square().mean()), float(factors.pow(4).mean())
    assert found.sampler is not None
    assert found.sampler.noise == pytest.approx(expected)
    v = cases.direction(policy)
    sweep = entropy_change(policy, batch, v, [1e-3])
    for estimate in (sweep.entropy, sweep.first_order, sweep.points[0].change):
        assert math.isfinite(estimate.ci_low)
    assert "reweighted by those that the sampler kept" in sweep.entropy.warnings[0]
    agreement = next(f for f in check_sampler(policy, batch, v) if f.name == "sampler = scorer")
    assert agreement.passed is False
    assert "the importance weights undo that" in agreement.advice


def test_noise_is_told_from_an_offset_a_filter_and_other_weights():
    generator = torch.Generator().manual_seed(0)
    z = 0.01 * torch.randn(4000, generator=generator, dtype=torch.float64)
    unbiased = z - z.exp().mean().log()
    assert noise_of(unbiased) is not None
    assert noise_of(unbiased + 2e-3) is None
    assert noise_of(unbiased + math.log(0.995)) is None  # what a filter keeps is renormalised
    assert noise_of(15 * z - (15 * z).exp().mean().log()) is None


def test_noise_adds_to_the_moments_by_the_triangle_inequality():
    jumps, mask = (
        torch.tensor([[[0.04, 0.0016], [0.0, 0.0]]]).double(),
        torch.tensor([[True, False]]),
    )
    bound = RowSampler(1.0, (0.01, 1e-4)).farther(jumps, mask)
    torch.testing.assert_close(bound[0, 0], torch.tensor([0.09, 0.3**4]).double())
    assert not bound[0, 1].any()
    assert RowSampler(0.9).farther(jumps, mask) is jumps


def test_a_known_temperature_is_judged_over_the_vocabulary():
    near, far = (drawn(cases.policy("qwen2", temperature=t)) for t in (0.95, 0.5))
    policy = cases.policy("qwen2")
    sweeps = [entropy_change(policy, e, cases.direction(policy), [], order=1) for e in (near, far)]
    assert [math.isfinite(s.first_order.ci_low) for s in sweeps] == [True, False]
    assert sweeps[0].sample.trust.verdict == "trust"
    assert sweeps[0].sample.sampler.temperature == pytest.approx(0.95, abs=1e-3)
    assert cases.array_sample().sampler is None
    assert "drawn at temperature 0.95" in sweeps[0].entropy.warnings[0]


def test_raw_values_of_draws_below_temperature_1_leave_no_interval():
    """They are those of temperature 1, and the responses are not."""
    policy = cases.policy("qwen2", 40, temperature=0.6)
    batch = ise.sample(policy, [[1, 2], [3]], 64, max_new_tokens=12, seed=0)
    raw = batch.with_columns(sampler_logprobs=batch.ragged(logprobs_at(policy, batch, 1.0)))
    assert math.isfinite(ise.entropy(policy, batch).ci_low)
    assert math.isnan(ise.entropy(policy, raw).ci_low)
    assert match_sampler(policy, raw, score(policy, raw)).sampler is None
