"""A control with its feedback: the strength that acts, what is logged, and what is saved."""

import json

import pytest
import torch

from isentrope import Target
from isentrope.control import controls
from isentrope.control.feedback import Feedback
from isentrope.control.repo_r import RepoR
from isentrope.control.run_control import RunControl
from tests.control.batches import batch
from tests.control.examples import STARE


def held(control=None, h=1.0):
    return RunControl(control or RepoR(strength=0.2), Feedback(Target(kind="value", value=h)))


def test_without_a_target_the_strength_is_the_controls_own():
    controller = RunControl(RepoR(strength=0.2), Feedback(Target()))
    assert controller.observe(1, 0.7) == 0.2
    tokens = batch()
    made = controller.rewrite_tokens(tokens)
    torch.testing.assert_close(made.weights, RepoR().rewrite(tokens, 0.2).weights)


@pytest.mark.parametrize(("h", "sign"), [(0.3, 1), (3.0, -1)])
def test_with_a_target_it_is_the_share_of_the_feedback_in_either_direction(h, sign):
    controller = held()
    assert controller.observe(1, h) == pytest.approx(sign * 0.2)  # far off: the limit
    assert controller.observe(2, 1.0) == controller.strength == 0.2 * controller.feedback.share
    assert abs(controller.strength) < 0.2


def test_what_is_logged_counts_what_was_touched():
    controller, tokens = held(controls.build(STARE, 0.5)), batch()
    controller.observe(1, 0.5)
    made = controller.rewrite_tokens(tokens)
    latest = controller.latest()
    moved = (made.weights != tokens.weights) & tokens.mask
    assert latest["control/strength"] == controller.strength == 0.5
    assert latest["control/target"] == 1.0
    assert latest["control/entropy"] == 0.5
    assert latest["control/touched"] == pytest.approx(int(moved.sum()) / int(tokens.mask.sum()))
    assert latest["control/touched_negative"] == 0
    changed = (made.weights - tokens.weights).abs().sum() / tokens.weights.abs().sum()
    assert latest["control/changed"] == pytest.approx(float(changed))
    assert not any("seconds" in name for name in latest)


def test_its_state_goes_through_json_and_goes_on():
    one, other = held(), held()
    for step, h in enumerate((0.9, 0.95, 1.02), start=1):
        one.observe(step, h)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.observe(4, 0.97) == one.observe(4, 0.97)
    assert other.latest() == one.latest()
