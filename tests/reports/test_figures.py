import io

import pytest

from isentrope.reports.figures import entropy_change_figure
from isentrope.reports.palette import PAPER


def row(eta, change, verdict="trust", **more):
    bar = None if verdict != "trust" else 0.1 * abs(change)
    content = {
        "eta": eta,
        "deltaH_true": change,
        "deltaH_true_se": 0.05 * abs(change),
        "deltaH_true_ci_low": None if bar is None else change - bar,
        "deltaH_true_ci_high": None if bar is None else change + bar,
        "deltaH_approx": -3.0 * eta,
        "verdict": verdict,
        "resampled": None,
    }
    return content | more


def results(*rows, **more):
    first = {"value": -3.0, "se": 0.1, "ci_low": -3.2, "ci_high": -2.8}
    content = {
        "policy": {"name": "step_4"},
        "estimator": {"functional": "per_token", "unit": "nats per token", "confidence": 0.95},
        "entropy": {"per_token": {"value": 0.13, "se": 0.01}},
        "step": {"rate_of_interest": 1e-3},
        "sweep": list(rows),
        "first_order": first,
        "second_order": first | {"value": 40.0},
        "linear_range": {"value": 0.07},
    }
    return content | more


def labels(figure):
    return set(figure.axes[0].get_legend_handles_labels()[1])


def test_measurement_predictions_and_rates_are_told_apart():
    figure = entropy_change_figure(results(row(1e-4, -3e-4), row(1e-2, -2.6e-2)))
    assert labels(figure) == {
        "first order",
        "first + second",
        "measured",
        "training rate",
    }
    figure.savefig(io.BytesIO())


@pytest.mark.parametrize("verdict", ["smooth", "resample"])
def test_points_that_cannot_be_trusted_are_hollow_and_without_bar(verdict):
    figure = entropy_change_figure(results(row(1e-3, -3e-3), row(1e-2, -2.6e-2, verdict)))
    upper = figure.axes[0]
    (hollow,) = [line for line in upper.lines if line.get_markerfacecolor() == PAPER.light]
    assert hollow.get_xdata().tolist() == [1e-2]
    assert "uneven weights" in labels(figure)


def test_fresh_responses_stand_beside():
    fresh = {"value": -2.4e-2, "ci_low": -2.6e-2, "ci_high": -2.2e-2}
    figure = entropy_change_figure(results(row(1e-2, -2.6e-2, "resample", resampled=fresh)))
    assert "fresh responses" in labels(figure)


def test_both_signs_and_zero_are_inside_the_axes():
    figure = entropy_change_figure(results(row(1e-4, 3e-4), row(1e-3, 0.0), row(1e-2, -2e-2)))
    low, high = figure.axes[0].get_ylim()
    assert low < -2e-2
    assert high > 3e-4
    figure.savefig(io.BytesIO())


def test_a_figure_needs_no_derivatives_and_one_rate_is_enough():
    none = {"first_order": None, "second_order": None, "linear_range": None}
    figure = entropy_change_figure(results(row(1e-3, -3e-3, deltaH_approx=None), **none))
    assert labels(figure) == {"measured", "training rate"}
    figure.savefig(io.BytesIO())


def test_a_value_that_is_not_finite_does_not_spoil_the_figure():
    lost = row(1e2, 0.0, "resample") | dict.fromkeys(("deltaH_true", "deltaH_true_se"))
    entropy_change_figure(results(row(1e-3, -3e-3), lost)).savefig(io.BytesIO())
