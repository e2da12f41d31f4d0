import math
from dataclasses import replace

import pytest
import torch

import isentrope as ise
from isentrope import entropy
from isentrope.estimators.identities import (
    identities_verdict,
    in_words,
    martingale_z,
    p_value,
    score_identity_z,
    studentised,
)
from isentrope.estimators.sample import score_batch
from tests import cases


@pytest.mark.parametrize("per", cases.PERS)
@pytest.mark.parametrize("name", cases.POLICIES)
def test_both_estimators_find_the_entropy(name, per):
    exact = cases.exact(name)
    batch, truth = exact.sample(2000, 0), exact.entropy(per)
    rao_blackwell = entropy(exact.policy, batch, per=per)
    surprisal = ise.surprisal_entropy(exact.policy, batch, per=per)
    assert abs(rao_blackwell.value - truth) < 4 * rao_blackwell.se
    assert abs(surprisal.value - truth) < 4 * surprisal.se
    assert rao_blackwell.se < surprisal.se
    assert per in rao_blackwell.unit


@pytest.mark.parametrize("estimator", [entropy, ise.surprisal_entropy])
def test_a_declared_sampler_is_weighted_away_or_leaves_no_interval(estimator):
    exact = cases.exact("qwen2")
    truth, found = exact.entropy("sequence"), {}
    for temperature, n in ((0.85, 4000), (0.25, 1000)):
        batch = cases.drawn_by(cases.policy("qwen2", temperature=temperature), n)
        found[temperature] = estimator(exact.policy, batch, per="sequence")
        silent = batch.with_columns(sampler_logprobs=None)
        undeclared = estimator(exact.policy, silent, per="sequence")
        assert abs(undeclared.value - truth) > 4 * undeclared.se
    assert abs(found[0.85].value - truth) < 4 * found[0.85].se
    assert found[0.85].ci_low < truth < found[0.85].ci_high
    assert math.isnan(found[0.25].ci_low)
    assert "importance weights" in found[0.25].warnings[0]


def identities(exact, batch):
    sample = score_batch(
        exact.policy,
        batch,
        direction=cases.direction(exact.policy),
        order=1,
    )
    return abs(martingale_z(sample)), abs(score_identity_z(sample))


@pytest.mark.parametrize("name", cases.POLICIES)
def test_identities_hold_for_samples_of_the_policy_itself(name):
    exact = cases.exact(name)
    assert max(identities(exact, exact.sample(1500, 1))) < 3.5


def test_no_few_tokens_make_a_large_z():
    usual, rare = torch.tensor([1e-9, 1e-9]), torch.tensor([9.0, 1e-9])
    variances = torch.full((2,), 81e-4)  # of a term that is 9 once in 10,000
    assert abs(studentised(rare, variances)) < 3**0.5
    assert abs(studentised(usual, variances)) < 1e-6
    assert math.isnan(studentised(torch.zeros(2), torch.zeros(2)))


def test_z_is_the_sum_over_its_conditional_deviation():
    exact = cases.exact("qwen2")
    batch = exact.sample(200, 3)
    sample = score_batch(exact.policy, batch)
    terms = sample.series[0].logprobs + sample.entropies
    square = terms.square().sum() / 3 + 2 * sample.series[0].variances.sum() / 3
    assert martingale_z(sample) == pytest.approx(float(terms.sum() / square.sqrt()), rel=1e-12)
    groups = replace(sample, prompt_index=torch.zeros(200, dtype=torch.int64))
    assert martingale_z(groups) == martingale_z(sample)


@pytest.mark.parametrize("order", [0, 1])
def test_the_terms_have_mean_zero_and_the_conditional_variance(order):
    """Exact moments of z's numerator over all responses: mean zero and the variance it is given."""
    exact = cases.exact("qwen2")
    sample = score_batch(
        exact.policy,
        exact.rollouts,
        direction=cases.direction(exact.policy),
        order=1,
    )
    scores = sample.series[order]
    terms = scores.logprobs + (sample.entropies if order == 0 else 0)
    p = exact.probabilities()
    assert abs(float((p * terms.sum(1)).sum())) < 1e-10
    variance = float((p * scores.variances.sum(1)).sum())
    assert float((p * terms.sum(1).square()).sum()) == pytest.approx(variance, rel=1e-9)


def test_p_values_come_with_a_verdict():
    assert p_value(1.96) == pytest.approx(0.05, abs=1e-3)
    assert in_words(p_value(0.5), 2) == "sound, p = 1"
    assert in_words(p_value(3.13), 2) == (
        "sound, although only 1 in 286 sound batches lies as far out"
    )
    assert in_words(p_value(4.5), 2).startswith("not sound, p = 1")
    assert [identities_verdict(p_value(z)) for z in (3.99, 4.01, None)] == [
        "sound",
        "not sound",
        "not tested",
    ]


def test_identities_fail_for_a_sampler_that_drops_unlikely_responses():
    exact = cases.exact("qwen2")
    probabilities = exact.probabilities()
    kept = probabilities * (probabilities > probabilities.median())
    kept = kept.reshape(exact.n_prompts, -1)
    drawn = exact.draw(4000, 1, (kept / kept.sum(1, keepdim=True)).flatten())
    batch = exact.rollouts.select(drawn).with_columns(prompt_index=torch.arange(4000))
    assert max(identities(exact, batch)) > 4
