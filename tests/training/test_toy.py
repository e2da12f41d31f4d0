import pytest
import torch

from isentrope import score
from isentrope.sampling.tasks.addition import Addition
from isentrope.training.demonstrations import demonstration_rollouts
from isentrope.training.models import build_toy_policy
from tests.adapters import with_lora
from tests.training.conftest import small_policy
from tests.training.plain_fine_tuning import fine_tune, mean_surprisal


def test_the_toy_is_seeded_and_has_the_size_it_says():
    state = torch.get_rng_state()
    first, again, other = (build_toy_policy(seed).theta for seed in (0, 0, 1))
    assert sum(p.numel() for p in first.values()) == pytest.approx(0.79e6, rel=0.02)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_adapter_changes_nothing_until_it_is_trained():
    policy = build_toy_policy(0)
    rollouts = demonstration_rollouts(policy, Addition().demonstrations(4, seed=0))
    before = score(policy, rollouts).logprobs
    adapted = with_lora(policy, rank=4, seed=0)
    assert torch.equal(score(adapted, rollouts).logprobs, before)
    assert len(adapted.names) == 2 * 7 * 4
    adapted.require_no_dropout()


def test_mean_surprisal_is_over_all_response_tokens():
    policy = small_policy()
    rollouts = demonstration_rollouts(policy, Addition().demonstrations(5, seed=0))
    assert all(int(r[-1]) == policy.eos_token_id for r in rollouts.response_ids)
    expected = -score(policy, rollouts).logprobs.sum() / rollouts.lengths.sum()
    assert float(mean_surprisal(policy, rollouts).detach()) == pytest.approx(float(expected))


def test_fine_tuning_lowers_the_loss():
    policy = small_policy()
    options = {"steps": 40, "batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 5}
    losses = fine_tune(policy, Addition(), seed=0, **options)
    assert losses[-1] < 0.9 * losses[0]
