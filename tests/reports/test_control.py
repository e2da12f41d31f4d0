"""The section on a control, from a log that nothing wrote."""

import pytest

from isentrope.reports.panels.curves import control_panels
from isentrope.reports.read_run import read_run
from tests.reports import made_up

STEPS = 20
OF_TENTHS = "From step 1 to 20 (of 20 points or more, means of the first and last tenth):"


def write_run(folder, **columns):
    """A log of these columns of the control: a number, or one number per step."""
    lines = [
        {"step": k + 1, "reward": 0.5, "entropy": 0.2}
        | {f"control/{n}": x[k] if isinstance(x, list) else x for n, x in columns.items()}
        for k in range(STEPS)
    ]
    return made_up.write_log(folder, lines)


def panels(folder):
    return {panel.key: panel for panel in control_panels(read_run(folder))}


def test_a_run_without_a_control_has_no_such_section(tmp_path):
    assert panels(made_up.make_run(tmp_path / "run", steps=())) == {}
    timed = [{"step": k + 1, "reward": 0.5, "seconds": 4.0} for k in range(STEPS)]
    assert panels(made_up.write_log(tmp_path / "timed", timed)) == {}


def test_entropy_is_held_against_its_target(tmp_path):
    half = STEPS // 2
    columns = {"entropy": [0.22] * half + [0.2] * half, "entropy_se": 0.01, "target": 0.2}
    panel = panels(write_run(tmp_path / "run", **columns))["control_entropy"]
    assert panel.caption.replace("\u00a0", " ") == (
        f"{OF_TENTHS} attained went from 0.22 to 0.2; target went from 0.2 to 0.2; on average the "
        "two are 5.0 % apart."
    )
    assert set(panel.data["of"]) == {"attained", "target"}
    band = panel.drawn.figure().axes[0].collections[0]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.2 - 0.01, 0.22 + 0.01))


def test_what_was_touched_is_told_and_gaps_are_no_error(tmp_path):
    changed = [None, *[0.1] * (STEPS - 1)]
    run = write_run(tmp_path / "run", touched=0.02, changed=changed, strength=0.5)
    times = [{"step": k + 1, "seconds": 4.0, "control/seconds": 1.0} for k in range(STEPS)]
    found = panels(made_up.write_log(run, times, "timing.jsonl"))
    assert found["control_tokens"].caption == (
        f"{OF_TENTHS} of tokens touched went from 0.02 to 0.02; of their weight changed went from "
        "0.1 to 0.1."
    )
    assert found["control_time"].caption == (
        f"{OF_TENTHS} the control went from 1 to 1; the whole step went from 4 to 4."
    )


def test_a_step_control_tells_what_it_expected_and_what_it_asked(tmp_path):
    found = panels(write_run(tmp_path / "run", predicted=-0.01, asked=-0.002))
    assert found["control_step"].caption == (
        "From step 1 to 20: step without the control sums to −0.2; requested of the step sums to "
        "−0.04."
    )
    assert "control_tokens" not in found
