import inspect

import pytest
import torch

from isentrope import Rollouts
from isentrope.config.estimator import EstimatorConfig
from isentrope.control.base import Rewritten, Tokens, touched
from isentrope.control.trial import (
    OutOfReachError,
    controlled_batch,
    on_policy,
    strength_for,
)
from isentrope.nouns.choices import OBJECTIVES
from isentrope.update.objective import sequence_weights, token_weights
from isentrope.update.off_policy import ImportanceRatios
from isentrope.update.step import compute_step
from tests import cases


class Damped:
    """A control of the tests: every weight of a negative advantage times 1 − strength."""

    on_policy, two_sided, strength = True, False, 0.5

    def rewrite(self, tokens: Tokens, strength: float) -> Rewritten:
        factor = torch.where(tokens.token_advantages < 0, 1 - strength, 1.0)
        return Rewritten(tokens.weights * factor)


@pytest.fixture(scope="module")
def batch():
    policy = cases.policy("qwen2")
    U = cases.ragged(8).with_columns(
        prompt_index=torch.arange(8),
        rewards=torch.arange(8).double() % 2,
        advantages=torch.tensor([0.5, -0.5] * 4),
        max_new_tokens=9,
    )
    return policy, U, torch.optim.SGD(policy.theta.values(), lr=0.1)


def tried(batch, strength, **options):
    """The step under the control, and what it touched."""
    policy, U, optimizer = batch
    tokens = Tokens.of(on_policy(policy, U), sequence_weights(U), step=1)
    made = Damped().rewrite(tokens, strength)
    step = compute_step(
        policy, controlled_batch(U, made), optimizer, objective="recorded", **options
    )
    return step, touched(tokens, made)


def test_strength_0_is_the_plain_step(batch):
    policy, U, optimizer = batch
    step, numbers = tried(batch, 0.0)
    plain = compute_step(policy, U, optimizer)
    for name, part in plain.direction.items():
        assert torch.allclose(step.direction[name], part, rtol=1e-10, atol=1e-14)
    assert numbers["touched"] == numbers["changed"] == 0


def test_a_trial_is_the_step_of_the_rewritten_advantages(batch):
    policy, U, optimizer = batch
    step, numbers = tried(batch, 0.5, max_grad_norm=0.01)
    halved = U.advantages.clamp(max=0) / 2 + U.advantages.clamp(min=0)
    plain = compute_step(policy, U.with_columns(advantages=halved), optimizer, max_grad_norm=0.01)
    for name, part in plain.direction.items():
        assert torch.allclose(step.direction[name], part, rtol=1e-10, atol=1e-14)
    assert numbers["touched_negative"] == 1.0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_control_sees_the_weights_of_the_step(batch, objective):
    policy, U, _ = batch
    options = EstimatorConfig(objective=objective, clip=0.3, micro_batch=2).weighting(9)
    weights = sequence_weights(U, objective, **options)
    tokens = Tokens.of(on_policy(policy, U), weights, step=1)
    assert torch.equal(tokens.weights, token_weights(U, objective, **options))


WEIGHING = (sequence_weights, token_weights, compute_step)


@pytest.mark.parametrize("function", [*WEIGHING, ImportanceRatios.weighted])
def test_what_weighs_sequences_takes_every_setting_of_the_weights(function):
    given = EstimatorConfig().weighting(9).keys()
    own = inspect.signature(sequence_weights).parameters.keys() - {"rollouts", "objective"}
    assert own == given <= inspect.signature(function).parameters.keys()


def test_rows_are_as_long_as_their_responses():
    rollouts = Rollouts([[1], [1]], [[1, 2, 3], [1]], [0, 1])
    rows = rollouts.ragged(torch.arange(6.0).view(2, 3))
    assert [r.tolist() for r in rows] == [[0.0, 1.0, 2.0], [3.0]]


@pytest.mark.parametrize("wanted", [0.0, 0.3, -0.7])
def test_the_strength_of_a_wanted_change_is_found(wanted):
    strength, at = strength_for(wanted, lambda s: -1 + 1.5 * s**2, 1.2)
    assert at == pytest.approx(wanted, rel=0.02, abs=1e-3)
    assert -1 + 1.5 * strength**2 == at


def test_steps_of_a_rule_that_selects_are_met_as_nearly_as_they_can():
    strength, at = strength_for(-0.55, lambda s: -1 + round(4 * s) / 4, 1.0)
    assert at == -0.5
    assert 0.375 <= strength <= 0.625


def test_a_change_out_of_reach_is_refused_with_what_can_be_had():
    with pytest.raises(ValueError, match=r"between 0 and 2 .*entropy by 1 .* -1 to 0"):
        strength_for(1.0, lambda s: -1 + s / 2, 2.0)


def test_a_wanted_change_of_0_is_met_without_all_halvings():
    seen = []
    strength, at = strength_for(0.0, lambda s: seen.append(s) or -3e-4 + 5e-4 * s**2, 1.2)
    assert at == pytest.approx(0.0, abs=1e-7)
    assert strength == pytest.approx(0.6**0.5, rel=1e-3)
    assert len(seen) < 20


def test_a_control_that_acts_both_ways_is_searched_both_ways():
    def change(strength):
        return -1 + strength / 2

    assert strength_for(-1.6, change, 2.0, -2.0)[0] == pytest.approx(-1.2, rel=0.05)
    assert strength_for(-0.4, change, 2.0, -2.0)[0] == pytest.approx(1.2, rel=0.05)
    with pytest.raises(OutOfReachError, match=r"between -2 and 2 changes .* -2 to 0"):
        strength_for(0.5, change, 2.0, -2.0)
