import pytest
import torch

from isentrope.sampling.batches import Groups, update_batch
from isentrope.sampling.generate import sample
from isentrope.sampling.prompts import name_prompts
from tests.sampling.conftest import PROMPTS

OPTIONS = {"max_new_tokens": 4, "seed": 0}


def starts_low(rollouts):
    return [float(r[0] < 6) for r in rollouts.response_ids]


def test_an_evaluation_batch_has_one_unfiltered_response_a_draw(policy):
    batch = sample(policy, PROMPTS, 10, **OPTIONS)
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

    first = [drawn(1, seed)[0] for seed in range(400)]
    assert set(first) == set(keys[:2])
    assert first.count(keys[1]) == pytest.approx(300, abs=5 * (400 * 3 / 16) ** 0.5)
    assert set(drawn(2, 0)) == set(keys[:2])  # none twice in a pass


def test_a_seed_gives_the_same_update_batch(policy):
    first, _ = update_batch(policy, PROMPTS, starts_low, Groups(5, 3, 4, "grpo"), seed=0)
    again, _ = update_batch(
        policy, PROMPTS, starts_low, Groups(5, 3, 4, "grpo"), batch_size=2, seed=0
    )
    assert first.prompt_keys == again.prompt_keys
    assert torch.equal(first.advantages, again.advantages)


def test_when_no_group_has_an_advantage_the_limit_is_an_error(policy):
    def wrong(rollouts):
        return torch.zeros(len(rollouts))

    with pytest.raises(ValueError, match=r"3 redraws .*0 of 2 .* 8 "):
        update_batch(policy, PROMPTS, wrong, Groups(2, 2, 4, "dr_grpo", 3), seed=0)


def test_impossible_sizes_are_refused(policy):
    with pytest.raises(ValueError, match="got n=0"):
        sample(policy, PROMPTS, 0, **OPTIONS)
