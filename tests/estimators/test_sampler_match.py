import math

import pytest
import torch

from isentrope.checks import check_sampler
from isentrope.estimators.entropy_change import entropy_change
from isentrope.estimators.sampler_match import match_sampler
from isentrope.policy.scoring import score
from tests import cases


def drawn(sampler, n=128):
    """An E-batch of another policy, with the log-probabilities that it drew them with."""
    exact = cases.exact("qwen2")
    scores = score(sampler, exact.rollouts)
    index = exact.draw(n, 0, scores.logprobs.sum(1).exp())
    kept = [s[m] for s, m in zip(scores.logprobs[index], scores.mask[index], strict=True)]
    batch = exact.rollouts.select(index)
    return batch.with_columns(prompt_index=torch.arange(n), sampler_logprobs=kept)


def match(batch):
    policy = cases.policy("qwen2")
    return match_sampler(policy, batch, score(policy, batch))


@pytest.mark.parametrize("temperature", [0.98, 0.85, 1.4])
def test_a_temperature_is_found(temperature):
    found = match(drawn(cases.policy("qwen2", temperature=temperature)))
    assert not found.agrees
    assert found.temperature == pytest.approx(temperature, abs=1e-3)


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
        assert any("no temperature explains it" in x for x in found.warnings)
    agreement = next(f for f in check_sampler(policy, batch, v) if f.name == "sampler = scorer")
    assert agreement.passed is False


def test_a_known_temperature_is_judged_over_the_vocabulary():
    near, far = (drawn(cases.policy("qwen2", temperature=t)) for t in (0.95, 0.5))
    policy = cases.policy("qwen2")
    sweeps = [entropy_change(policy, e, cases.direction(policy), [], order=1) for e in (near, far)]
    assert [math.isfinite(s.first_order.ci_low) for s in sweeps] == [True, False]
    assert sweeps[0].sample.trust.verdict == "trust"
    assert sweeps[0].sample.sampler_temperature == pytest.approx(0.95, abs=1e-3)
    assert cases.array_sample().sampler_temperature is None
    assert "drawn at temperature 0.95" in sweeps[0].entropy.warnings[0]
