import pytest
import torch

import isentrope as ise
from isentrope import Rollouts, with_advantages


def rollouts(rewards=None, groups=(0, 0, 0, 1, 1, 1)):
    return Rollouts([[g + 2] for g in groups], [[3]] * len(groups), groups, rewards=rewards)


class Length:
    prompts = ()

    def reward(self, response_text, reference):
        return float(response_text == reference)


def test_a_task_rewards_each_text_against_its_reference():
    told = rollouts().with_columns(response_texts=list("abcdef"), references=list("abxxef"))
    assert ise.with_rewards(told, Length()).rewards.tolist() == [1, 1, 0, 0, 1, 1]


def test_a_function_rewards_the_rollouts_as_a_whole():
    assert ise.with_rewards(rollouts(), lambda r: r.lengths).rewards.tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda r: [1.0], r"shape \(1,\) for 6 responses"),
        (lambda r: [1, 2, float("nan"), 3, 4, 5], "Response 2 has no reward"),
        (lambda r: [1, float("inf"), 1, 1, 1, 1], "reward of response 1 is inf"),
        (lambda r: [1, 1e300, 1, 1, 1, 1], "reward of response 1 is 1e\\+300"),
        (Length(), "rollouts"),
    ],
)
def test_rewards_that_are_not_n_finite_numbers_are_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        ise.with_rewards(rollouts(), answer)


def test_advantages_are_the_formulas():
    r = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    given = rollouts(torch.cat((r, 2 * r)))
    centred = r - r.mean()
    others = torch.stack([r[i] - (r.sum() - r[i]) / 2 for i in range(3)])
    expected = {"dr_grpo": centred, "rloo": others, "grpo": centred / (r.std() + 1e-4)}
    for rule, values in expected.items():
        assert torch.allclose(with_advantages(given, rule).advantages[:3], values, atol=1e-15)
    assert torch.allclose(
        with_advantages(given, "grpo").advantages[3:], 2 * centred / (2 * r.std() + 1e-4)
    )


@pytest.mark.parametrize("rule", ["dr_grpo", "grpo", "rloo"])
def test_equal_rewards_have_no_advantage_at_all(rule):
    given = rollouts([0.1] * 3 + [0.7] * 3)
    assert with_advantages(given, rule).advantages.tolist() == [0.0] * 6


def test_groups_need_not_lie_together():
    mixed = rollouts([1.0, 2.0, 0.0, 4.0], groups=(5, 2, 5, 2))
    assert with_advantages(mixed, "dr_grpo").advantages.tolist() == [0.5, -1.0, -0.5, 1.0]


def test_what_cannot_have_advantages_is_refused():
    with pytest.raises(ValueError, match="Unknown advantages 'ppo'"):
        with_advantages(rollouts([1.0] * 6), "ppo")
    with pytest.raises(ValueError, match="call with_rewards first"):
        with_advantages(rollouts(), "grpo")
    with pytest.raises(ValueError, match="Prompt draw 1 "):
        with_advantages(rollouts([1.0, 0.0, 1.0], groups=(0, 0, 1)), "rloo")


def test_a_reward_function_of_responses_is_told_what_makes_a_task_of_it():
    def graded(prompts, completions, **kwargs):
        return [1.0 for _ in completions]

    with pytest.raises(TypeError) as refusal:
        ise.with_rewards(rollouts(), graded)
    assert "graded(prompts, completions, **kwargs)" in str(refusal.value)
    assert "load_task" in str(refusal.value)
    assert ise.with_rewards(rollouts(), lambda batch: [1.0] * len(batch)).rewards.sum() == 6
