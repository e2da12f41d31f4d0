import pytest
import torch

from isentrope.sampling.batches import evaluation_batch, update_batch
from isentrope.sampling.prompts import name_prompts
from tests.sampling.conftest import PROMPTS

OPTIONS = {"max_new_tokens": 4, "seed": 0}


def starts_low(rollouts):
    return [float(r[0] < 6) for r in rollouts.response_ids]


def test_an_evaluation_batch_has_one_unfiltered_response_a_draw(policy):
    batch = evaluation_batch(policy, PROMPTS, 10, **OPTIONS)
    assert len(batch) == batch.n_prompts == 10
    assert batch.rewards is None


def test_an_update_batch_holds_only_groups_with_an_advantage(policy):
    batch, report = update_batch(policy, PROMPTS, starts_low, 12, 2, "dr_grpo", **OPTIONS)
    assert batch.advantages.view(12, 2).abs().amin() > 0
    assert batch.n_prompts == 12
    assert len(batch) == 24
    assert report.rejected == report.drawn - 12 == report.all_right + report.all_wrong > 0


def test_a_pass_over_the_prompts_repeats_none(policy):
    batch, report = update_batch(policy, PROMPTS, _ranks, 4, 2, "dr_grpo", **OPTIONS)
    assert report.drawn == 4
    assert len(set(batch.prompt_keys)) == 4


def _ranks(rollouts):
    return torch.arange(len(rollouts))


def test_excluded_prompts_are_in_neither_batch(policy):
    first = name_prompts(PROMPTS)[0].key
    e = evaluation_batch(policy, PROMPTS, 20, exclude_keys=[first], **OPTIONS)
    u, _ = update_batch(policy, PROMPTS, _ranks, 6, 2, "rloo", exclude_keys=[first], **OPTIONS)
    assert first not in {*e.prompt_keys, *u.prompt_keys}


def test_weighted_prompts_are_drawn_as_often_as_their_weights_say(policy):
    weights = [1.0, 3.0, *[1e-9] * (len(PROMPTS) - 2)]
    keys = [p.key for p in name_prompts(PROMPTS)]
    options = {"max_new_tokens": 1, "weights": weights}
    first = [
        update_batch(policy, PROMPTS, _ranks, 1, 2, "dr_grpo", seed=k, **options)[0].prompt_keys[0]
        for k in range(400)
    ]
    assert set(first) == set(keys[:2])
    assert first.count(keys[1]) == pytest.approx(300, abs=5 * (400 * 3 / 16) ** 0.5)
    both, _ = update_batch(policy, PROMPTS, _ranks, 2, 2, "dr_grpo", seed=0, **options)
    assert set(both.prompt_keys) == set(keys[:2])  # none twice in a pass


@pytest.mark.parametrize("weights", [[1.0], [0.0] * len(PROMPTS), [float("nan")] * len(PROMPTS)])
def test_weights_that_mean_nothing_are_refused(policy, weights):
    with pytest.raises(ValueError, match=f"for each of the {len(PROMPTS)} prompts"):
        update_batch(policy, PROMPTS, _ranks, 1, 2, "dr_grpo", weights=weights, **OPTIONS)


def test_a_seed_gives_the_same_update_batch(policy):
    first, _ = update_batch(policy, PROMPTS, starts_low, 5, 3, "grpo", **OPTIONS)
    again, _ = update_batch(policy, PROMPTS, starts_low, 5, 3, "grpo", batch_size=2, **OPTIONS)
    assert first.prompt_keys == again.prompt_keys
    assert torch.equal(first.advantages, again.advantages)


def test_when_no_group_has_an_advantage_the_limit_is_an_error(policy):
    def wrong(rollouts):
        return torch.zeros(len(rollouts))

    with pytest.raises(ValueError, match=r"3 redraws .*0 of 2 .* 8 "):
        update_batch(policy, PROMPTS, wrong, 2, 2, "dr_grpo", redraw_limit=3, **OPTIONS)


def test_impossible_sizes_are_refused(policy):
    with pytest.raises(ValueError, match="got n=0"):
        evaluation_batch(policy, PROMPTS, 0, **OPTIONS)
    with pytest.raises(ValueError, match=r"got n=0 \(B_U\)"):
        update_batch(policy, PROMPTS, starts_low, 0, 2, "dr_grpo", **OPTIONS)
    with pytest.raises(ValueError, match="group_size >= 2"):
        update_batch(policy, PROMPTS, starts_low, 2, 1, "dr_grpo", **OPTIONS)
