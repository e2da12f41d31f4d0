"""The law R = b − a exp(h) on the plane, from made-up logs."""

import numpy as np

from isentrope.reports.panels.plane import along_training, law_of
from isentrope.reports.read_run import read_run
from tests.reports.made_up import write_log


def law_run(tmp_path, bend, noise=0.0, steps=40):
    rng = np.random.default_rng(0)
    lines = [
        {
            "step": k,
            "entropy": h,
            "reward": 1 - 0.3 * np.exp(h) - bend * h**2 + noise * rng.normal(),
        }
        for k, h in enumerate(np.linspace(0.5, 0.1, steps))
    ]
    return read_run(write_log(tmp_path, lines))


def test_a_log_that_is_too_short_has_no_law(tmp_path):
    assert law_of(law_run(tmp_path, bend=0.0, steps=3)) is None


def test_the_law_is_that_of_the_training_log(tmp_path):
    assert abs(law_of(law_run(tmp_path, bend=0.0)).a.value - 0.3) < 1e-9


def test_a_law_that_misfits_has_no_numbers(tmp_path):
    reading = law_run(tmp_path, bend=-2.0, noise=0.001, steps=160)
    assert law_of(reading).misfits
    (panel,) = along_training(reading)
    assert "does not describe this run" in panel.caption
    assert not panel.numbers


def test_a_law_that_holds_is_in_the_caption(tmp_path):
    (panel,) = along_training(law_run(tmp_path, bend=0.0, noise=0.01))
    assert "A quadratic term shows no misfit" in panel.caption
    assert panel.numbers["a of the law"].covers(0.3)
