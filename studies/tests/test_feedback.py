"""Laws of feedback do what their sources say, and the readings of a phase are what they are."""

from dataclasses import replace

import pytest
import torch

from studies import feedback, feedback_runs
from studies.compose_run import train
from studies.tests.test_compose_arms import SMALL, batch_of, with_rewards
from studies.tests.test_compose_arms import base as base  # a fixture


@pytest.fixture
def batches(base):
    """The first batch, one of less and one of more entropy than its target."""
    first = with_rewards(batch_of(base.policy))
    low, high = (replace(first, entropies=x * first.entropies, step=1) for x in (0.1, 0.9))
    return first, low, high


def test_targets_are_shares_of_the_first_batch(batches):
    first, low, _ = batches
    law = feedback.Law()
    h = first.entropy_per_token
    found = [law.target(first), *(law.target(replace(low, step=s)) for s in (79, 80, 160, 500))]
    assert found == pytest.approx([0.3 * h, 0.3 * h, 0.6 * h, 0.3 * h, 0.3 * h])


@pytest.mark.parametrize(("law", "delta"), [("trl", 0.005), ("skywork", 1e-4)])
def test_a_coefficient_moves_by_its_delta_and_acts_below_the_target(batches, law, delta):
    first, low, high = batches
    arm = feedback.LAWS[law]()
    arm.target(first)
    arm.entropy = lambda batch: batch.entropy_per_token
    applied = []
    for each in (low, low, low, high, low):
        applied.append(-float(arm.loss_terms(low).detach()) / low.entropy_per_token)
        arm.after_step(each, None)
    assert applied == pytest.approx([0, delta, 2 * delta, 3 * delta, 0])
    assert arm.coefficient == pytest.approx(3 * delta)


def test_skywork_reads_entropy_from_the_drawn_tokens(batches):
    first, _, _ = batches
    expected = -first.logprobs.detach().sum() / first.mask.sum()
    assert feedback.Skywork().entropy(first) == pytest.approx(float(expected))


def test_entropic_pushes_likely_tokens_down_while_entropy_is_low(batches, monkeypatch):
    first, low, _ = batches
    monkeypatch.setattr(feedback.EntroPic, "likely", 0.1)
    arm = feedback.EntroPic()
    goal = arm.target(first)
    extra = (arm.token_weights(low) - low.weights).detach()
    likely = (low.logprobs.detach().exp() > 0.1) & (low.mask > 0)
    assert 0 < likely.sum() < low.mask.sum()
    alpha = 1.01 * (low.entropy_per_token - goal)
    expected = alpha * low.advantages.abs()[:, None] * likely / likely.sum()
    torch.testing.assert_close(extra, expected)
    assert alpha < 0


def test_repo_r_doubles_towards_the_target_and_changes_sign_at_the_least(batches):
    first, low, high = batches
    arm = feedback.Repo()
    arm.target(first)
    found = []
    for each in [low] * 2 + [high] * 7:
        arm.token_weights(each)
        found.append(arm.zeta)
    up = [0.002, 0.004]
    down = [0.002, 0.001, 0.0005, 0.00025, 0.000125, 1e-4, -1e-4]
    assert found == pytest.approx(up + down)


@pytest.mark.parametrize("law", feedback.LAWS)
def test_every_law_runs_and_says_its_target(law, base):
    found = train(feedback.LAWS[law](), base, 0, SMALL)
    h = found["steps"]["entropy_token"][0]
    assert found["steps"]["target"] == pytest.approx([0.3 * h] * SMALL.steps, rel=1e-3)


def test_a_phase_is_read_as_the_page_says():
    """A ramp from .3 to .75 in 45 steps, then .6, which is the target."""
    ramp = [0.3 + 0.01 * i for i in range(46)] + [0.6] * 34
    found = feedback_runs.response(ramp, 0.6, 0.3)
    settled = [abs(x / 0.6 - 1) for x in ramp[-40:]]
    assert found.away == pytest.approx(sum(settled) / 40)
    assert found.bias == pytest.approx(sum(settled) / 40)
    means = [sum(ramp[i : i + 10]) / 10 for i in range(71)]
    assert found.overshoot == pytest.approx((max(means) - 0.6) / 0.3)
    last = max(i for i, x in enumerate(means) if abs(x - 0.6) > 0.06)
    assert found.settling == last + 1
    never = feedback_runs.response([0.3] * 80, 0.6, 0.3)
    assert (never.settling, never.overshoot) == (None, None)
    assert never.bias == pytest.approx(-0.5)
    down = feedback_runs.response([0.2] * 80, 0.3, 0.6)
    assert down.overshoot == pytest.approx(1 / 3)
