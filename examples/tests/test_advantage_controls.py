"""Controls of whole responses: W-REINFORCE, Entrocraft, pass@k, QAE."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest
import torch

from examples.controls.entrocraft import Entrocraft
from examples.controls.pass_at_k import PassAtK, advantages
from examples.controls.qae import QuantileAdvantage
from examples.controls.w_reinforce import WReinforce
from tests.control.batches import batch, padded, places


def mixed(tokens, wanted, x):
    """c' of advantages `wanted`, by sequence, at strength x."""
    rows = places(tokens)
    return padded(tokens, {r[:2]: r[5] * ((1 - x) * r[2] + x * wanted[r[0]]) for r in rows})


def close(found, expected):
    torch.testing.assert_close(found.weights, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("x", [1.0, 0.25])
@pytest.mark.parametrize("positive", [0.0, 0.1])
def test_w_reinforce(x, positive):
    tokens = batch()
    wanted = [positive if reward == 1 else -1 for reward in tokens.rewards.tolist()]
    close(WReinforce(positive=positive).rewrite(tokens, x), mixed(tokens, wanted, x))


def test_w_reinforce_with_another_least_reward():
    tokens = batch()
    graded = replace(tokens, rewards=0.6 * tokens.rewards)
    wanted = [0.1 if reward >= 0.5 else -1 for reward in graded.rewards.tolist()]
    close(WReinforce(right=0.5).rewrite(graded, 1.0), mixed(graded, wanted, 1.0))


@pytest.mark.parametrize("x", [1.0, 0.5, -0.5, -1.0])
def test_entrocraft_leaves_out_the_sign_that_drives_entropy_away(x):
    tokens = batch()
    left_out = (lambda A: A > 0) if x > 0 else (lambda A: A < 0)
    expected = {r[:2]: r[6] * (1 - abs(x) if left_out(r[2]) else 1) for r in places(tokens)}
    close(Entrocraft().rewrite(tokens, x), padded(tokens, expected))


@pytest.mark.parametrize(("n", "k"), [(4, 2), (6, 3)])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_responses(n, k):
    """A choice has the reward of its best response, a response the mean over its choices."""
    for correct in range(n + 1):
        right = [1] * correct + [0] * (n - correct)
        choices = list(itertools.combinations(range(n), k))
        rewards = {choice: max(right[i] for i in choice) for choice in choices}
        mean, sigma = statistics.fmean(rewards.values()), statistics.pstdev(rewards.values())
        of_correct, of_incorrect = advantages(n, correct, k)
        for i in range(n):
            own = statistics.fmean(rewards[choice] for choice in choices if i in choice)
            expected = (own - mean) / sigma if sigma else 0.0
            assert (of_correct if right[i] else of_incorrect) == pytest.approx(expected)


def test_pass_at_k_of_a_batch():
    tokens = batch()
    wanted = []
    for group in tokens.rewards.view(-1, 4).tolist():
        pair = advantages(4, int(sum(group)), 2)
        wanted += [pair[0] if reward else pair[1] for reward in group]
    close(PassAtK(k=2).rewrite(tokens, 0.5), mixed(tokens, wanted, 0.5))


def test_pass_at_k_of_groups_that_are_too_small():
    with pytest.raises(ValueError, match=r"5 responses.* 4"):
        PassAtK(k=5).rewrite(batch(), 1.0)


@pytest.mark.parametrize("quantile", [0.25, 0.4, 0.5, 0.75, 1.0])
def test_qae(quantile):
    tokens = batch()
    wanted = []
    for group in tokens.rewards.view(-1, 4).tolist():
        least = min(r for r in group if sum(x <= r for x in group) / 4 >= quantile)
        wanted += [reward - least for reward in group]
    close(QuantileAdvantage(quantile=quantile).rewrite(tokens, 1.0), mixed(tokens, wanted, 1.0))


def test_qae_teaches_hard_prompts_by_their_correct_responses_alone():
    tokens = batch()
    made = QuantileAdvantage().rewrite(tokens, 1.0).weights
    for group, rewards in enumerate(tokens.rewards.view(-1, 4)):
        rows = slice(4 * group, 4 * group + 4)
        hard = float(rewards.mean()) <= 1 - 0.4
        taught = made[rows][:, 0] != 0
        assert torch.equal(taught, rewards == (1 if hard else 0))
        assert math.isfinite(float(made[rows].sum()))


def test_pass_at_k_is_refused_where_no_group_has_an_advantage():
    assert PassAtK(k=4).refusal(8) == ""
    assert "k=4" in PassAtK(k=4).refusal(4)
