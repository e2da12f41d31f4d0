"""What a step spends and earns at each class of positions, against enumerations cut short."""

import math

import pytest
import torch

from isentrope import EstimatorOptions, score
from isentrope.estimators.functional import Functionals
from isentrope.estimators.importance import diagnose
from isentrope.estimators.price import price_of_step, price_statistics
from isentrope.estimators.reward_change import RewardMean
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.oracle import enumerate_policy
from isentrope.oracle.plain import derivatives
from isentrope.policy.scoring import score_along
from tests import cases
from tests.estimators.test_paired import batch, expected_reward, rewards_of

ETA, STEP = 0.05, 0.3


def prompts_of(exact):
    places = exact.rollouts.prompt_index.unique(return_inverse=True)[1]
    return [
        exact.rollouts.prompt_ids[int((places == p).nonzero()[0])] for p in range(exact.n_prompts)
    ]


def cut(exact, length):
    """The same policy, with responses that are cut after so many tokens."""
    return enumerate_policy(exact.policy, prompts_of(exact), length)


def all_responses(exact, functional="per_sequence"):
    """Every response as a batch of one, to be weighted with its probability."""
    series = score_along(exact.policy, exact.rollouts, cases.direction(exact.policy), 1)
    f = Functionals(functional, "sequence", series[0].mask.double())
    return ScoredBatch(f, series[0].logprobs, tuple(series), exact.rollouts.prompt_index)


def statistics(exact, mask, functional="per_sequence"):
    """F_c, ηδF_c, ΔF_c, ηδJ_c, −ηδF_c, ΔJ of a class, without sampling noise."""
    policy, E = exact.policy, exact.rollouts
    after = score(policy, E, policy.parameters_along(cases.direction(policy), ETA))
    sample, omega = all_responses(exact, functional), exact.probabilities() / exact.n_prompts
    reward = RewardMean.of(sample, rewards_of(E))
    return price_statistics(omega, mask, sample, ETA, reward, after).tolist()


def before(exact, length):
    """(n, t) the tokens of a place before `length`."""
    mask = exact.rollouts.mask
    return mask & (torch.arange(mask.shape[1]) < length)


@pytest.mark.parametrize("name", cases.POLICIES)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_entropy_of_the_first_places_is_that_of_responses_cut_there(name, length):
    exact, v = cases.small_exact(name), cases.direction(cases.small_exact(name).policy)
    short = cut(exact, length)
    value, first, change, *_ = statistics(exact, before(exact, length))
    assert value == pytest.approx(short.entropy("sequence"), rel=1e-10)
    assert first == pytest.approx(ETA * short.derivatives(v, "sequence")[0], rel=1e-7)
    assert change == pytest.approx(short.entropy_change(v, ETA, "sequence"), rel=1e-7)


def test_reward_at_the_first_place_is_what_its_probabilities_alone_bring():
    exact = cases.exact("qwen2")
    policy, v = exact.policy, cases.direction(exact.policy)
    first = cut(exact, 1)
    rows = {
        (tuple(p.tolist()), int(r[0])): k
        for k, (p, r) in enumerate(
            zip(first.rollouts.prompt_ids, first.rollouts.response_ids, strict=True)
        )
    }
    pairs = zip(exact.rollouts.prompt_ids, exact.rollouts.response_ids, strict=True)
    place = torch.tensor([rows[tuple(p.tolist()), int(r[0])] for p, r in pairs])
    start, rewards = exact.probabilities(), rewards_of(exact.rollouts).double()

    def mixed(eta):
        moved = first.probabilities({n: p + eta * v[n] for n, p in policy.theta.items()})
        return float(start * (moved / first.probabilities())[place] @ rewards) / exact.n_prompts

    assert statistics(exact, before(exact, 1))[3] == pytest.approx(
        ETA * derivatives(mixed, STEP)[0], rel=1e-7
    )
    whole = statistics(exact, exact.rollouts.mask)
    change = expected_reward(exact, v, ETA) - expected_reward(exact, v, 0.0)
    assert whole[3] == pytest.approx(
        ETA * derivatives(lambda eta: expected_reward(exact, v, eta), STEP)[0], rel=1e-7
    )
    assert whole[5] == pytest.approx(change, rel=1e-7)


@pytest.mark.parametrize("per", cases.PERS)
@pytest.mark.parametrize("method", ["prefix", "sequence"])
def test_the_parts_of_all_positions_sum_to_the_whole(per, method):
    exact = cases.exact("llama")
    policy, v, E = exact.policy, cases.direction(exact.policy), batch(exact, 300, 0)
    sample = score_batch(policy, E, EstimatorOptions(per, method), direction=v, order=1)
    after = score(policy, E, policy.parameters_along(v, ETA))
    places = torch.arange(E.mask.shape[1]).expand(E.mask.shape)
    classes = {str(k): places == k for k in range(E.mask.shape[1])}
    trust = diagnose(after.logprobs - sample.sampler_logprobs, sample.functional.tokens)
    found = price_of_step(sample, ETA, classes, E.rewards, after=(after, trust))
    for name in ("entropy", "first_order", "change", "reward"):
        parts = [getattr(part, name).value for part in found.at.values()]
        assert sum(parts) == pytest.approx(getattr(found.whole, name).value, rel=1e-10)
    assert sum(part.share.value for part in found.at.values()) == pytest.approx(1)
    assert sum(part.tokens for part in found.at.values()) == pytest.approx(1)
    whole = found.whole
    assert whole.reward_for_a_nat.value == pytest.approx(
        -whole.reward.value / whole.first_order.value
    )


def test_a_batch_is_near_the_enumeration_by_its_own_errors():
    exact = cases.exact("qwen2")
    policy, v, E = exact.policy, cases.direction(exact.policy), batch(exact, 2000, 4)
    sample = score_batch(policy, E, EstimatorOptions("sequence"), direction=v, order=1)
    first = torch.zeros_like(E.mask)
    first[:, 0] = True
    found = price_of_step(sample, ETA, {"first": first}, E.rewards)
    truth = statistics(exact, before(exact, 1))
    part = found.at["first"]
    for estimate, value in [
        (part.entropy, truth[0]),
        (part.first_order, truth[1]),
        (part.reward, truth[3]),
    ]:
        assert 0 < abs(estimate.value - value) <= 4 * estimate.se
    assert part.change is None
    assert found.reward_change is None
    assert price_of_step(sample, ETA, {}).whole.reward is None


def test_what_cannot_have_a_price_is_refused():
    sample = cases.array_sample(method="doubly-robust")
    with pytest.raises(ValueError, match="'prefix' or 'sequence'"):
        price_of_step(sample, ETA, {})
    sample = cases.array_sample()
    with pytest.raises(ValueError, match="shape"):
        price_of_step(sample, ETA, {"first": torch.ones(2, 2, dtype=torch.bool)})


def test_few_different_rewards_leave_values_without_intervals():
    sample = cases.array_sample()
    rewards = torch.zeros(len(sample.prompt_index))
    rewards[0] = 1.0
    found = price_of_step(sample, ETA, {}, rewards).whole
    assert found.first_order.ci_low < found.first_order.ci_high
    for estimate in (found.reward, found.reward_for_a_nat):
        assert math.isnan(estimate.ci_low)


def test_a_class_in_responses_to_one_prompt_has_no_interval_and_says_so():
    sample = cases.array_sample()
    one = (sample.prompt_index == sample.prompt_index[0])[:, None] & sample.series[0].mask
    part = price_of_step(sample, ETA, {"one": one, "others": ~one}).at
    for estimate in (part["one"].entropy, part["one"].first_order, part["one"].share):
        assert math.isnan(estimate.ci_low)
        assert any("fewer than two prompts" in sentence for sentence in estimate.warnings)
    assert math.isfinite(part["others"].first_order.ci_low)


def test_a_class_without_a_position_says_so():
    sample = cases.array_sample()
    rewards = torch.arange(len(sample.prompt_index)) % 3.0
    none = torch.zeros_like(sample.series[0].mask)
    part = price_of_step(sample, ETA, {"none": none}, rewards).at["none"]
    assert part.tokens == 0
    for estimate in (part.entropy, part.share, part.reward, part.reward_for_a_nat):
        assert math.isnan(estimate.ci_low)
        assert any("No position of E" in sentence for sentence in estimate.warnings)


def test_a_ratio_without_an_interval_is_no_number_in_a_log():
    sample = cases.array_sample()
    rewards = torch.zeros(len(sample.prompt_index))
    rewards[0] = 1.0
    price = price_of_step(sample, ETA, {"first": first_tokens(sample)}, rewards)
    flat = price.to_dict()
    assert math.isfinite(price.whole.reward_for_a_nat.value)
    for place in ("price", "price/at_first"):
        assert math.isnan(flat[f"{place}/reward_for_a_nat"])
        assert math.isnan(flat[f"{place}/reward_for_a_nat_se"])
        assert math.isfinite(flat[f"{place}/reward"])


def first_tokens(sample):
    first = torch.zeros_like(sample.series[0].mask)
    first[:, 0] = True
    return first
