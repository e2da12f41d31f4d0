"""ΔJ(η) against sums over every response, and what is said of the best rate."""

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from isentrope import EstimatorOptions, Scores, entropy_change
from isentrope.estimators.functional import along
from isentrope.estimators.reward_change import RewardMean, reward_change
from isentrope.oracle.plain import derivatives
from isentrope.policy.scoring import score_along
from tests import cases
from tests.estimators.test_paired import batch, expected_reward, rewards_of

ETAS = [2e-3, 1e-3, 5e-4, 2.5e-4]


def sweep(exact, etas, n=64, seed=3, method="prefix"):
    E = batch(exact, n, seed)
    change = entropy_change(
        exact.policy, E, cases.direction(exact.policy), etas, EstimatorOptions(method=method)
    )
    return reward_change(change, E.rewards)


@pytest.mark.parametrize("name", cases.POLICIES)
def test_with_exact_weights_both_orders_are_derivatives_of_the_enumerated_reward(name):
    exact = cases.exact(name)
    v, rewards = cases.direction(exact.policy), rewards_of(exact.rollouts)
    series = score_along(exact.policy, exact.rollouts, v, 2)
    f = RewardMean("per_sequence", "sequence", series[0].mask.double(), rewards=rewards.double())
    ratios = (torch.zeros_like(series[0].logprobs), *(s.logprobs for s in series[1:]))
    found = along(f, exact.probabilities(), ratios, tuple(s.entropies for s in series))
    first, second = derivatives(lambda eta: expected_reward(exact, v, eta), 0.3)
    value = expected_reward(exact, v, 0.0)
    assert [float(x) for x in found] == pytest.approx([value, first, second], rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("name", cases.POLICIES)
def test_remainder_falls_eightfold_when_eta_halves(name):
    residuals = [point.residual.value for point in sweep(cases.exact(name), ETAS).points]
    for longer, shorter in itertools.pairwise(residuals):
        assert longer / shorter == pytest.approx(8, abs=0.6)


@pytest.mark.parametrize("method", ["prefix", "doubly-robust"])
def test_it_does_not_depend_on_the_estimator_of_entropy(method):
    exact = cases.exact("qwen2")
    one, other = (sweep(exact, [0.02], method=m).points[0].change for m in ("sequence", method))
    assert (one.value, one.se, one.unit) == (other.value, other.se, "reward")


@cache
def change_of_64():
    """ΔH of a step, from 64 responses."""
    exact = cases.exact("qwen2")
    return entropy_change(exact.policy, exact.sample(64, 0), cases.direction(exact.policy), [0.05])


def test_a_constant_reward_never_changes():
    found = reward_change(change_of_64(), torch.full((64,), 3.0))
    assert found.reward.value == pytest.approx(3)
    numbers = [found.first_order, found.second_order, found.points[0].change]
    assert [x.value for x in numbers] == pytest.approx([0, 0, 0], abs=1e-12)
    assert found.top is None
    for number in (*numbers, found.reward):
        assert number.se == 0
        assert math.isnan(number.ci_low)
        assert "0 of 64 responses have another reward" in number.warnings[0]


@pytest.mark.parametrize("rewarded", [0, 1, 9])
@pytest.mark.parametrize("common", [0.0, 1.0])
def test_changes_of_a_rare_reward_have_no_interval_and_the_reward_a_bounded_one(rewarded, common):
    rewards = torch.full((64,), common)
    rewards[:rewarded] = 1 - common
    found = reward_change(change_of_64(), rewards)
    for number in (found.first_order, found.second_order, found.points[0].change):
        assert math.isfinite(number.se)
        assert math.isnan(number.ci_low)
        assert f"{rewarded} of 64 responses have another reward" in number.warnings[0]
        assert not any("weights" in sentence for sentence in number.warnings)
    assert found.points[0].verdict != "trust"
    assert 0 <= found.reward.ci_low < found.reward.ci_high <= 1
    assert found.reward.covers(abs(common - rewarded / 64))


def test_ten_responses_with_another_reward_have_an_interval():
    found = reward_change(change_of_64(), (torch.arange(64) < 10).double())
    assert math.isfinite(found.first_order.ci_low)
    assert math.isfinite(found.points[0].change.ci_low)


def test_prompts_and_not_responses_are_the_units_of_its_error():
    exact = cases.exact("qwen2")
    E = batch(exact, 64, 0)
    double = E.select([*range(64), *range(64)])
    double = double.with_columns(prompt_index=torch.arange(64).repeat(2))
    v = cases.direction(exact.policy)
    one, two = (
        reward_change(entropy_change(exact.policy, b, v, [0.02]), b.rewards) for b in (E, double)
    )
    for a, b in ((one.first_order, two.first_order), (one.points[0].change, two.points[0].change)):
        assert (a.value, a.se, a.n) == pytest.approx((b.value, b.se, b.n), rel=1e-9)


def two_rewards(slope, curvature, n=400, noise=0.02, third=0.0):
    """A sweep of ΔH whose responses of one token have r(η) = a η + b η²/2 + c η³."""
    generator = torch.Generator().manual_seed(0)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)[:, None]
    wobble = noise * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    first, second = sign * slope / 2 + wobble, sign * curvature / 2 - (slope / 2) ** 2
    made = cases.array_sample(n, 1)
    mask = torch.ones(n, 1, dtype=torch.bool)
    series = tuple(Scores(x, 0 * x + 1, mask) for x in (0 * sign, first, second))
    functional = replace(made.functional, tokens=mask.double())
    sample = replace(
        made, functional=functional, series=series, sampler_logprobs=0 * sign, match=None
    )
    etas = [0.02, 0.05]
    moved = [
        Scores(first * e + second * e * e / 2 + third * sign * e**3, 0 * sign + 1, mask)
        for e in etas
    ]
    return sample, etas, moved, 1.0 * (sign[:, 0] > 0)


def top_of(**options):
    from isentrope.estimators.entropy_change import change_of_sample
    from isentrope.policy.chi_square import Divergence

    sample, etas, moved, rewards = two_rewards(**options)
    flat = Divergence(torch.zeros(len(rewards), 1, 2), torch.zeros(len(rewards), 1, 2))
    change = change_of_sample(sample, etas, [(scores, flat) for scores in moved])
    return reward_change(change, rewards)


def test_the_top_is_where_the_parabola_is_highest():
    found = top_of(slope=1.0, curvature=-5.0)
    assert found.top.value == pytest.approx(
        -found.first_order.value / (2 * found.second_order.value)
    )
    assert found.top.ci_low < found.top.value < found.top.ci_high < math.inf
    assert found.no_top is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slope": 1.0, "curvature": 5.0}, "δJ₂ is not 4 of its errors below zero"),
        ({"slope": 1.0, "curvature": 0.0, "noise": 0.5}, "δJ₂ is not 4 of its errors below zero"),
        ({"slope": 1.0, "curvature": -5.0, "third": 300.0}, "At η = 0.02"),
    ],
)
def test_a_parabola_without_a_top_gives_a_sentence_and_no_number(options, words):
    found = top_of(**options)
    assert found.top is None
    assert words in found.no_top


@pytest.mark.parametrize("slope", [-1.0, 0.0])
def test_whether_a_top_is_given_does_not_depend_on_what_the_step_earns(slope):
    """Where it did, the batches that earn by chance were those with a top."""
    found = top_of(slope=slope, curvature=-5.0)
    earned = found.first_order
    assert found.top.covers(0.0) == earned.covers(0.0)
    assert found.top.value * earned.value >= 0


RATES = (1e-3, 0.01, 0.03, 0.06, 0.1)
CASES = 1000


@pytest.mark.slow
def test_both_changes_of_a_step_agree_with_fresh_evaluation():
    """With sums over every response, and with fresh ones of θ + ηv, in 92 % of the intervals."""
    n, hits, printed = 512, torch.zeros(4), 0
    for seed in range(CASES):
        exact, eta = cases.exact(cases.POLICIES[seed % 3]), RATES[seed % 5]
        v, E = cases.direction(exact.policy, seed), batch(exact, n, 10**5 + seed)
        change = entropy_change(exact.policy, E, v, [eta], order=0)
        of_H, of_J = change.points[0].change, reward_change(change, E.rewards).points[0].change
        if not (math.isfinite(of_H.ci_low) and math.isfinite(of_J.ci_low)):
            continue
        printed += 1
        truths = (
            exact.entropy_change(v, eta, "token"),
            expected_reward(exact, v, eta) - expected_reward(exact, v, 0.0),
        )
        fresh = fresh_change(exact, v, eta, 20 * n, seed)
        for k, (estimate, truth, (value, error)) in enumerate(
            zip((of_H, of_J), truths, fresh, strict=True)
        ):
            hits[k] += estimate.covers(truth)
            half = (estimate.ci_high - estimate.ci_low) / 2
            hits[k + 2] += abs(estimate.value - value) <= math.hypot(half, 1.96 * error)
    share = {"exact": hits[:2] / printed, "fresh": hits[2:] / printed}
    print(printed, share)
    assert printed >= 0.9 * CASES
    assert all(hit / printed >= 0.92 for hit in hits.tolist()), hits / printed


def fresh_change(exact, v, eta, n, seed):
    """ΔH and ΔJ with errors, from n responses each of θ and of θ + ηv, and no weights."""
    params = {k: p + eta * v[k] for k, p in exact.policy.theta.items()}
    numbers = []
    for k, theta in enumerate((exact.policy.theta, params)):
        entropies, lengths = exact._score(theta)[1], exact._score.lengths
        index = exact.draw(n, 7919 * seed + k, exact.probabilities(theta))
        H, T = entropies[index], lengths[index].double()
        h = float(H.sum() / T.sum())
        of_H = float(((H - h * T) / T.mean()).std()) / n**0.5
        R = rewards_of(exact.rollouts)[index].double()
        numbers.append(((h, of_H), (float(R.mean()), float(R.std()) / n**0.5)))
    here, there = numbers
    return [(b[0] - a[0], math.hypot(a[1], b[1])) for a, b in zip(here, there, strict=True)]
