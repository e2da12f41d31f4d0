from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod

import pytest
import torch
from scipy.stats import chisquare

import isentrope as ise
from isentrope.sampling.batches import Filling, Groups, update_batch
from isentrope.sampling.prompt import name_prompts
from isentrope.system.progress import Progress
from tests.sampling.conftest import PROMPTS


def starts_low(rollouts):
    return [float(r[0] < 6) for r in rollouts.response_ids]


def test_an_evaluation_batch_has_one_unfiltered_response_a_draw(policy):
    batch = ise.sample(policy, PROMPTS, 10, max_new_tokens=4, seed=0)
    assert len(batch) == batch.n_prompts == 10
    assert batch.rewards is None


def test_an_update_batch_holds_only_groups_with_an_advantage(policy):
    batch, report = update_batch(policy, PROMPTS, starts_low, Groups(12, 2, 4, "dr_grpo"), seed=0)
    assert batch.advantages.view(12, 2).abs().amin() > 0
    assert batch.n_prompts == 12
    assert len(batch) == 24
    assert report.rejected == report.drawn - 12 == report.all_right + report.all_wrong > 0


def test_a_pass_over_the_prompts_repeats_none(policy):
    batch, report = update_batch(policy, PROMPTS, _ranks, Groups(4, 2, 4, "dr_grpo"), seed=0)
    assert report.drawn == 4
    assert len(set(batch.prompt_keys)) == 4


def _ranks(rollouts):
    return torch.arange(len(rollouts))


def test_weighted_prompts_are_drawn_as_often_as_their_weights_say(policy):
    weights = [1.0, 3.0, *[1e-9] * (len(PROMPTS) - 2)]
    keys = [p.key for p in name_prompts(PROMPTS)]

    def drawn(n, seed):
        batch, _ = update_batch(
            policy, PROMPTS, _ranks, Groups(n, 2, 1), seed=seed, weights=weights
        )
        return batch.prompt_keys

    first = [drawn(1, seed)[0] for seed in range(40)]
    assert set(first) == set(keys[:2])
    assert first.count(keys[1]) == pytest.approx(30, abs=4 * (40 * 3 / 16) ** 0.5)
    assert set(drawn(2, 0)) == set(keys[:2])  # none twice in a pass


@pytest.mark.parametrize("weights", [None, [1.0 + i for i in range(len(PROMPTS))]])
def test_a_seed_gives_one_batch_whatever_the_sequences_of_a_round(policy, weights):
    groups = Groups(2 * len(PROMPTS), 2, 4, "dr_grpo")  # several passes over the prompts
    made = [
        update_batch(
            policy, PROMPTS, starts_low, groups, seed=3, weights=weights, batch_size=batch_size
        )
        for batch_size in (1, 7, 64, 600)
    ]
    batches = [batch.fingerprint for batch, _ in made]
    reports = [replace(report, left_over=0, entropy_drawn=None) for _, report in made]
    assert batches == batches[:1] * 4
    assert reports == reports[:1] * 4
    assert made[0][1].left_over < made[3][1].left_over


KINDS = {"useless": 0.5, "a": 0.3, "b": 0.2}
"""Probability of a group by its kind."""


def rollouts_of_kinds(kinds):
    """Groups of two responses; those of "useless" have equal rewards."""
    tokens = [torch.tensor([list(KINDS).index(kind)]) for kind in kinds for _ in range(2)]
    rewards = torch.tensor([[0.0, 0.0 if kind == "useless" else 1.0] for kind in kinds])
    index = torch.arange(len(kinds)).repeat_interleave(2)
    return ise.Rollouts(tokens, tokens, index, rewards=rewards.flatten().double())


def kinds_kept(kinds, n, batch_size, rounds):
    """Kinds of the groups in a batch that draws these in turn; None where it is not filled."""
    queue = iter(kinds)
    filling = Filling(Groups(n, 2, 1, redraw_limit=rounds - 1), batch_size, warn=lambda _: None)
    try:
        batch, report = filling.fill(lambda k: rollouts_of_kinds([next(queue) for _ in range(k)]))
    except ValueError:
        return None
    useful = [kind for kind in kinds if kind != "useless"]
    assert report.drawn - report.rejected == n <= n + report.left_over <= len(useful)
    return tuple(list(KINDS)[int(x)] for x in batch.response_ids[::2])


def test_rounds_are_logged_once_in_ten_seconds_and_the_forecast_always(caplog):
    caplog.set_level("INFO", logger="isentrope")
    clock = [0]
    with Progress(clock=lambda: clock[0]):
        for seconds in (0, 10):
            clock[0] = seconds
            queue = iter([["useless"]] * 11 + [["a"]])
            filling = Filling(Groups(1, 2, 1, redraw_limit=11), 2)
            filling.fill(lambda k, queue=queue: rollouts_of_kinds(next(queue)))
    lines = [message.split()[0] for message in caplog.messages]
    assert Counter(lines) == {"Round": 2, "The": 2}


@pytest.mark.parametrize(("at_once", "rounds"), [(16, [8]), (6, [6, 6])])
def test_eight_groups_without_any_reward_are_the_last_and_name_the_function(at_once, rounds):
    drawn = []

    def draw(number):
        drawn.append(number)
        batch = rollouts_of_kinds(["a"] * number)
        return batch.with_columns(rewards=torch.full_like(batch.rewards, float("nan")))

    with pytest.raises(ValueError) as refused:  # noqa: PT011 — its words are below
        Filling(Groups(4, 2, 1), at_once, reward="mine.py:silent").fill(draw)
    assert "mine.py:silent returned None for every one" in str(refused.value)
    assert drawn == rounds


@pytest.mark.parametrize(("batch_size", "rounds"), [(6, 2), (12, 1)])
def test_the_groups_of_a_batch_are_independent_draws_of_useful_ones(batch_size, rounds):
    """Every outcome of six draws, in one round or two."""
    kept = Counter()
    for kinds in product(KINDS, repeat=6):
        probability = prod(KINDS[kind] for kind in kinds)
        kept[kinds_kept(kinds, 2, batch_size, rounds)] += probability
    unfilled = 0.5**6 + 6 * 0.5**6
    assert kept.pop(None) == pytest.approx(unfilled, abs=1e-12)
    for first, second in product("ab", repeat=2):
        expected = KINDS[first] * KINDS[second] / 0.25 * (1 - unfilled)
        assert kept[first, second] == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_full_rounds_keep_the_responses_that_groups_with_an_advantage_have(policy):
    """χ² of the first group against all useful groups, drawn without any redraw."""
    pairs = ise.sample(policy, PROMPTS, 2400, 2, max_new_tokens=1, seed=9)
    low = torch.tensor(starts_low(pairs)).view(-1, 2)
    ids = torch.cat(pairs.response_ids).view(-1, 2)
    useful = Counter(map(tuple, ids[low[:, 0] != low[:, 1]].sort(1).values.tolist()))
    kept = Counter()
    for seed in range(120):
        batch, _ = update_batch(
            policy, PROMPTS, starts_low, Groups(2, 2, 1), seed=seed, batch_size=24
        )
        first = torch.cat(batch.response_ids).view(-1, 2)
        kept.update(map(tuple, first.sort(1).values.tolist()))
    cells = [pair for pair, count in useful.items() if 240 * count / useful.total() >= 5]
    observed = [kept[pair] for pair in cells]
    expected = [useful[pair] for pair in cells]
    expected = [sum(observed) * x / sum(expected) for x in expected]
    assert len(cells) > 4
    # the expected counts are sampled too, from ten times as many
    assert chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize(
    ("useful", "batch_size", "at_once", "expected"),
    [
        ([True, True, True, False], 8, 0, [4, 2]),  # 1 missing of a rate of 3/4: 2, and not 4
        ([True, False, False, False], 8, 0, [4, 4]),  # 3 of 1/4 would be 18: no more than a round
        ([True, False, False, False], 8, 24, [4, 12]),  # where a device holds more of them
        ([True, False, False, False], 8, 80, [4, 18]),
        ([False, False, False, False], 8, 24, [4, 12]),
    ],
)
def test_a_later_round_draws_what_is_expected_to_be_enough(useful, batch_size, at_once, expected):
    drawn = []

    def draw(number):
        drawn.append(number)
        kinds = useful if len(drawn) == 1 else [True] * number
        return rollouts_of_kinds(["a" if x else "useless" for x in kinds])

    Filling(Groups(4, 2, 1), batch_size, at_once, warn=lambda _: None).fill(draw)
    assert drawn == expected


def test_many_rounds_are_forecast_after_the_first(policy, caplog):
    def seldom(rollouts):
        return [float(i == 0) for i in range(len(rollouts))]

    update_batch(policy, PROMPTS, seldom, Groups(6, 2, 1), seed=0, batch_size=12)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "drew 6 groups of 2 responses, of which 1 have an advantage, and 6 are" in warnings[0]
    assert "about 5 more rounds" in warnings[0]
    assert "batch_config.G" in warnings[0]


@pytest.mark.parametrize(
    ("reward", "words"),
    [(1.0, "6 are all correct and 0 all"), (0.0, "0 are all correct and 6 all")],
)
def test_a_pass_rate_of_0_or_1_is_said_after_the_first_round(policy, caplog, reward, words):
    rounds = []

    def constant(rollouts):
        rounds.append(len(caplog.records))
        return [reward] * len(rollouts)

    with suppress(ValueError):  # the batch stays empty; what is said before that is the claim
        update_batch(policy, PROMPTS, constant, Groups(6, 2, 1), seed=0, batch_size=12)
    assert rounds[0] == 0 < rounds[1]
    assert words in caplog.text


def test_when_no_group_has_an_advantage_the_limit_is_an_error(policy):
    def wrong(rollouts):
        return torch.zeros(len(rollouts))

    with pytest.raises(ValueError, match=r"3 redraws .*0 of 2 .* 8 "):
        update_batch(policy, PROMPTS, wrong, Groups(2, 2, 4, "dr_grpo", 3), seed=0, batch_size=4)
