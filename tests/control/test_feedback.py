import json

import pytest

from isentrope import Target
from isentrope.control.feedback import Feedback, Gains


def run(feedback, h, steps, drift=-0.02, gain=1.0):
    """A level that drifts, and answers to what is asked of it by `gain`; its path."""
    path = []
    for step in range(1, steps + 1):
        feedback.observe(step, h)
        h += drift * h + gain * feedback.output
        path.append(h)
    return path


def test_targets_by_kind():
    assert Target(kind="hold").at(9, 0.4) == 0.4
    assert Target(kind="value", value=0.3).at(9, 0.4) == 0.3
    assert Target(kind="linear", to=0.2, steps=10).at(5, 0.4) == pytest.approx(0.3)
    assert Target(kind="linear", value=0.6, to=0.2, steps=10).at(99, 0.4) == pytest.approx(0.2)
    assert Target(kind="cosine", to=0.2, steps=4).at(1, 0.4) == pytest.approx(
        0.4 - 0.2 * 0.146447, 1e-4
    )


@pytest.mark.parametrize("gain", [0.5, 1.0, 2.0])
def test_the_integral_takes_a_steady_drift_away(gain):
    path = run(Feedback(Target(kind="hold")), 0.3, 400, gain=gain)
    assert path[-1] == pytest.approx(0.3, rel=1e-3)
    assert min(path) > 0.3 * 0.8
    without = run(Feedback(Target(kind="hold"), Gains(integral=0.0)), 0.3, 400, gain=gain)
    assert abs(without[-1] - 0.3) > 10 * abs(path[-1] - 0.3)


def test_the_integral_does_not_wind_up_at_the_limit():
    feedback = Feedback(Target(kind="hold"), Gains(limit=0.01))
    feedback.observe(1, 1.0)
    for step in range(2, 200):
        feedback.observe(step, 0.2)
        assert feedback.share == 1.0
    feedback.observe(200, 1.3)
    assert feedback.output < 0


def test_the_integral_forgets_what_was_not_done():
    done, refused = Feedback(Target(kind="hold")), Feedback(Target(kind="hold"))
    for step in range(1, 21):
        for feedback in (done, refused):
            feedback.observe(step, 1.0 if step == 1 else 0.98)
        refused.forget()
    done.observe(21, 1.0)
    refused.observe(21, 1.0)
    assert refused.output == 0.0
    assert done.output > 0.003


def test_a_schedule_is_met_after_the_step_or_followed_from_where_it_is():
    feedback = Feedback(Target(kind="linear", value=1.0, to=0.5, steps=10))
    feedback.observe(3, 0.9)
    assert feedback.latest()["target"] == pytest.approx(0.85)
    feedback.observe(3, 0.9, ahead=0)
    assert feedback.latest()["error"] == pytest.approx(0.0)


def test_no_target_asks_nothing():
    feedback = Feedback(Target())
    feedback.observe(1, 0.3)
    assert (feedback.output, feedback.share) == (0.0, 0.0)
    assert feedback.latest() == {"entropy": 0.3}


def test_a_saved_state_goes_on_to_the_bit():
    whole = Feedback(Target(kind="hold"))
    path = run(whole, 0.3, 20)
    first, second = Feedback(Target(kind="hold")), Feedback(Target(kind="hold"))
    there = run(first, 0.3, 10)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step, expected in zip(range(11, 21), path[10:], strict=True):
        h = there[-1]
        second.observe(step, h)
        there.append(h + (-0.02 * h + second.output))
        assert there[-1] == expected


def test_targets_and_gains_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="kind value"):
        Target(kind="value")
    with pytest.raises(ValueError, match="kind hold"):
        Target(kind="hold", value=0.3)
    with pytest.raises(ValueError, match="kind linear"):
        Target(kind="linear", steps=3)
    with pytest.raises(ValueError, match="greater than 0"):
        Target(kind="value", value=-1.0)
    with pytest.raises(ValueError, match=r"limit\n.*greater than 0"):
        Gains(limit=0.0)
    with pytest.raises(ValueError, match=r"value\n.*less than or equal to"):
        Target(kind="value", value=1e300)
    with pytest.raises(ValueError, match=r"steps\n.*less than or equal to"):
        Target(kind="linear", to=0.2, steps=10**400)
    with pytest.raises(ValueError, match=r"step 3 .*nan"):
        Feedback(Target(kind="hold")).observe(3, float("nan"))
