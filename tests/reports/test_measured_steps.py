"""A run whose steps were measured and not predicted has a panel of what was measured."""

from isentrope.reports.panels import curves
from isentrope.reports.read_run import read_run
from tests.reports.made_up import write_log


def panels(folder, **columns):
    lines = [{"step": step} | {name: x * step for name, x in columns.items()} for step in (1, 2)]
    reading = read_run(write_log(folder, lines))
    return {panel.key: panel.caption for panel in curves.training_panels(reading)}


def test_what_was_measured_is_drawn_alone_and_the_caption_says_why(tmp_path):
    measured = {"probe/change": 0.1, "probe/change_se": 0.01}
    caption = panels(tmp_path / "measured", **measured)["probe"]
    assert "measured after it sums to 0.3; the model gives no derivatives" in caption
    both = panels(tmp_path / "both", **measured, **{"probe/first_order": 0.1})["probe"]
    assert "derivatives" not in both
    assert "probe" not in panels(tmp_path / "none", reward=0.1)
