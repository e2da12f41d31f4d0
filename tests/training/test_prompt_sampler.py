import json

import numpy as np
import pytest

from isentrope.training.prompt_sampler import FLOOR, PromptSampler, difficulty_weights

KEYS = [f"set/{i}" for i in range(10)]


def sampler(weighting="uniform", seed=0, keys=KEYS, **options):
    return PromptSampler(keys, seed=seed, weighting=weighting, **options)


@pytest.mark.parametrize("weighting", ["uniform", "difficulty"])
def test_no_prompt_is_drawn_twice_in_a_step_redraws_included(weighting):
    s = sampler(weighting)
    for step in range(1, 30):
        drawn = s.draw(5, step) + s.draw(3, step) + s.draw(2, step)
        assert sorted(drawn) == list(range(10))


def test_every_prompt_is_drawn_once_a_pass_in_a_new_order():
    s = sampler()
    passes = [s.draw(5, 2 * k + 1) + s.draw(5, 2 * k + 2) for k in range(4)]
    assert all(sorted(p) == list(range(10)) for p in passes)
    assert len({tuple(p) for p in passes}) == 4


def test_no_prompt_is_more_than_one_draw_ahead_where_steps_do_not_divide_the_set():
    s, counts = sampler(), np.zeros(10)
    for step in range(1, 40):
        drawn = s.draw(4, step) + s.draw(3, step)  # two rounds, 7 of 10
        assert len(set(drawn)) == 7
        counts[drawn] += 1
        assert counts.max() - counts.min() <= 1


def test_the_parts_of_a_draw_that_processes_take_are_disjoint():
    ranks = [sampler("difficulty", seed=5) for _ in range(2)]  # each process has its own copy
    for step in range(1, 10):
        shares = [s.draw(8, step)[4 * r : 4 * r + 4] for r, s in enumerate(ranks)]
        assert not set(shares[0]) & set(shares[1])
        for s in ranks:
            s.update(sorted(shares[0] + shares[1]), [0.25] * 8)


def test_a_seed_fixes_the_draws_and_another_changes_them():
    assert sampler(seed=3).draw(6, 1) == sampler(seed=3).draw(6, 1) != sampler(seed=4).draw(6, 1)


def test_prompts_are_drawn_in_proportion_to_the_variance_of_their_rewards():
    s = sampler("difficulty", memory=0.99)
    for _ in range(400):
        s.update([0, 1, 2], [0.5, 1.0, 0.9])
        s.update(list(range(3, 10)), [0.0] * 7)
    rates = np.array([1 - s.difficulty(i) for i in range(10)])
    weights = 4 * rates * (1 - rates) + FLOOR
    counts = np.bincount([s.draw(1, step)[0] for step in range(1, 4001)], minlength=10)
    expected = 4000 * weights / weights.sum()
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.7  # chi-square, 9 df, 99 %
    assert rates[0] == pytest.approx(0.5)
    assert rates[1] > 0.99
    assert rates[3] < 0.01


def test_a_pass_rate_is_a_running_mean_with_half_a_pass_in_one_as_prior():
    s = sampler(memory=0.5)
    assert s.difficulty(4) == 0.5
    s.update([4], [1.0])
    assert s.difficulty(4) == pytest.approx(1 - 1.5 / 2)
    s.update([4], [0.0])
    assert s.difficulty(4) == pytest.approx(1 - (0.5 + 0.5) / (1.5 + 1))


@pytest.mark.parametrize("weighting", ["uniform", "difficulty"])
def test_a_restored_sampler_draws_the_same_though_its_set_is_in_another_order(weighting):
    s = sampler(weighting)
    for step in range(1, 5):
        s.update(s.draw(7, step), [0.1, 0.9, 0.5, 1.0, 0.0, 0.2, 0.7])
    state = json.loads(json.dumps(s.state_dict()))
    again, reordered = sampler(weighting), sampler(weighting, keys=KEYS[::-1])
    again.update([0, 1], [1.0, 1.0])  # what it knew before is forgotten
    again.load_state_dict(state)
    reordered.load_state_dict(state)
    for step in range(5, 12):
        drawn = s.draw(7, step)
        assert again.draw(7, step) == drawn
        assert [9 - i for i in reordered.draw(7, step)] == drawn
    assert [reordered.difficulty(9 - i) for i in range(10)] == [s.difficulty(i) for i in range(10)]


def test_what_cannot_be_drawn_or_restored_is_said_in_a_sentence():
    s = sampler()
    with pytest.raises(ValueError, match=r"11 prompts .*training set .* 10"):
        s.draw(11, 1)
    s.draw(8, 1)
    with pytest.raises(ValueError, match=r"3 prompts .* 10, 8 "):
        s.draw(3, 1)
    with pytest.raises(ValueError, match="'set/0'"):
        sampler(keys=["set/0", "set/0"])
    s.update([0], [1.0])
    with pytest.raises(KeyError, match="set/0"):
        sampler(keys=["other"]).load_state_dict(s.state_dict())
    for other in (sampler(seed=1), sampler(keys=[*KEYS, "other"])):
        other.load_state_dict(s.state_dict())
        assert other.state_dict() != s.state_dict()


def test_rewards_that_pass_rates_cannot_be_learnt_from_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        sampler().update([0], [float("inf")])


def test_a_checkpoints_pass_rates_give_the_weights_that_training_draws_with(tmp_path):
    s = sampler("difficulty", memory=0.5)
    s.update([0, 1], [1.0, 0.5])
    s.update([0], [0.0])
    (tmp_path / "isentrope_state.json").write_text(json.dumps({"prompt_sampler": s.state_dict()}))
    found = difficulty_weights(tmp_path, [KEYS[1], "another", KEYS[0]])
    by_hand = [(0.5 + 0.5) / 2, 0.5, (0.5 * 1.0 + 0.0 + 0.5) / (0.5 * 1 + 1 + 1)]
    assert found == pytest.approx([4 * p * (1 - p) + FLOOR for p in by_hand])
    with pytest.raises(ValueError, match="none of U's prompts"):
        difficulty_weights(tmp_path, ["another"])
    with pytest.raises(ValueError, match=r"no isentrope_state\.json .*U_weighting=uniform"):
        difficulty_weights(tmp_path / "elsewhere", KEYS)
