import io

import numpy as np
import pytest
from matplotlib.colors import to_hex

from isentrope import Estimate, MeasureResult
from isentrope.reports import drawing, page
from isentrope.reports.panels.change import entropy_change_figure
from tests.reports import made_up


def row(eta, change, verdict="trust", **more):
    bar = None if verdict != "trust" else 0.1 * abs(change)
    ends = (None, None) if bar is None else (change - bar, change + bar)
    content = {
        "delta_h_se": 0.05 * abs(change),
        "delta_h_ci_low": ends[0],
        "delta_h_ci_high": ends[1],
        "first_order": -3.0 * eta,
    }
    return made_up.sweep_row(eta, change, verdict, **content | more)


@pytest.fixture
def figure_of(tmp_path):
    """The figure of a result with these rows, and other values in place of those made up."""

    def figure(*rows, **more):
        first = made_up.estimate(-3.0, 0.1)
        orders = {"first_order": first, "second_order": made_up.estimate(40.0, 0.1)}
        content = made_up.measure(sweep=list(rows), **orders | more)
        if "linear_range" not in more:
            content["linear_range"]["value"] = 0.07
        folder = made_up.write(tmp_path, "measure", "step_8", content)
        return entropy_change_figure(MeasureResult.load(folder))

    return figure


def labels(figure):
    return set(figure.axes[0].get_legend_handles_labels()[1])


def test_measurement_predictions_and_rates_are_told_apart(figure_of):
    figure = figure_of(row(1e-4, -3e-4), row(1e-2, -2.6e-2))
    assert labels(figure) == {
        "first order",
        "first + second",
        "measured",
        "training rate",
    }
    figure.savefig(io.BytesIO())


@pytest.mark.parametrize("verdict", ["smooth", "resample"])
def test_points_that_cannot_be_trusted_are_hollow_and_without_bar(figure_of, verdict):
    figure = figure_of(row(1e-3, -3e-3), row(1e-2, -2.6e-2, verdict))
    upper = figure.axes[0]
    (hollow,) = [line for line in upper.lines if line.get_markerfacecolor() == drawing.PAPER]
    assert hollow.get_xdata().tolist() == [1e-2]
    assert "uneven weights" in labels(figure)


def test_fresh_responses_stand_beside(figure_of):
    fresh = made_up.estimate(-2.4e-2, 1e-3)
    figure = figure_of(row(1e-2, -2.6e-2, "resample", resampled=fresh))
    assert "fresh responses" in labels(figure)


def test_both_signs_and_zero_are_inside_the_axes(figure_of):
    figure = figure_of(row(1e-4, 3e-4), row(1e-3, 0.0), row(1e-2, -2e-2))
    low, high = figure.axes[0].get_ylim()
    assert low < -2e-2
    assert high > 3e-4
    figure.savefig(io.BytesIO())


def test_a_figure_needs_no_derivatives_and_one_rate_is_enough(figure_of):
    none = {"first_order": None, "second_order": None, "linear_range": None}
    figure = figure_of(row(1e-3, -3e-3, first_order=None), **none)
    assert labels(figure) == {"measured", "training rate"}
    figure.savefig(io.BytesIO())


def test_a_value_that_is_not_finite_does_not_spoil_the_figure(figure_of):
    lost = row(1e2, 0.0, "resample") | dict.fromkeys(("delta_h", "delta_h_se"))
    figure_of(row(1e-3, -3e-3), lost).savefig(io.BytesIO())


def test_a_long_curve_is_drawn_by_its_extremes():
    values = np.random.default_rng(0).standard_normal(40_000)
    values[12_345], values[20_000:20_100] = 50.0, np.nan
    curve = drawing.Series("curve", drawing.INK, np.arange(len(values)), values, "-")
    drawn = page.image(drawing.Chart("x", {"y": [curve]}).figure(), "svg", "curve")
    assert len(drawn) < 300_000


@pytest.mark.parametrize("changes", [True, False])
def test_colours_of_falls_and_rises_are_of_changes_alone(changes):
    estimates = {
        "up": Estimate(0.5, 0.1, 0.3, 0.7, 9, "", ""),
        "down": Estimate(-0.5, 0.1, -0.7, -0.3, 9, "", ""),
    }
    (axes,) = drawing.Bars("x", estimates, changes=changes).figure().axes
    colours = {to_hex(bar.get_facecolor()) for bar in axes.patches}
    assert colours == ({drawing.FALL, drawing.RISE} if changes else {drawing.MUTED})
