"""The toy learns by the reference loop, and pays with entropy."""

import pytest

from examples.reference_loop import reference_loop
from isentrope.policy.scoring import score
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.generate import sample
from isentrope.sampling.tasks.addition import Addition, longest_response
from isentrope.training.models import build_toy_policy
from tests.adapters import save_base_model, with_lora
from tests.training.plain_fine_tuning import fine_tune


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_toy_learns_to_add_and_pays_with_entropy(seed, tmp_path):
    policy, test = build_toy_policy(seed), Addition("test")
    fine_tune(policy, Addition("train"), seed=seed)
    save_base_model(policy, tmp_path / "base_model")
    policy = with_lora(policy, seed=seed)
    pass_1, pass_8, entropy = _measure(policy, test)
    assert 0.40 < pass_1 < 0.58
    assert pass_8 > 0.96
    options = {"max_new_tokens": longest_response(2), "seed": seed}
    reference_loop(policy, Addition("train"), tmp_path, steps=40, **options)
    after_1, _, after_entropy = _measure(policy, test)
    assert after_1 > pass_1 + 0.12
    assert after_entropy < 0.7 * entropy


def _measure(policy, task):
    drawn = sample(policy, task.prompts, 256, 8, max_new_tokens=longest_response(2), seed=9)
    right = with_rewards(drawn, task).rewards.view(256, 8)
    entropy = float(score(policy, drawn).entropies.sum(1).mean())
    return float(right.mean()), float(right.amax(1).mean()), entropy
