import itertools
import math

import numpy as np
import pytest
import torch

from isentrope import EstimatorOptions, entropy_change, entropy_gradient
from isentrope.nouns.vectors import axpy, dot
from isentrope.policy.gradient import weighted_gradient
from tests import cases


def change(exact, etas, estimator=None, n=64, **options):
    v = cases.direction(exact.policy)
    estimator = estimator or EstimatorOptions()
    return entropy_change(exact.policy, exact.sample(n, seed=3), v, etas, estimator, **options)


@pytest.mark.parametrize(("name", "method", "per"), cases.pairwise(cases.POLICIES))
def test_remainder_falls_eightfold_when_eta_halves(name, method, per):
    etas = [2e-3, 1e-3, 5e-4, 2.5e-4]
    sweep = change(cases.exact(name), etas, EstimatorOptions(per, method))
    residuals = [p.residual.value for p in sweep.points]
    for longer, shorter in itertools.pairwise(residuals):
        assert longer / shorter == pytest.approx(8, abs=0.5)


@pytest.mark.parametrize("eta", [1e-4, 1e-6, 1e-8])
def test_measured_change_is_first_order_down_to_tiny_steps(eta):
    sweep = change(cases.exact("qwen2"), [eta])
    ratio = sweep.points[0].change.value / (eta * sweep.first_order.value)
    assert ratio == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("name", "method", "per"), cases.pairwise(cases.POLICIES))
def test_reverse_mode_gradient_equals_forward_mode(name, method, per):
    exact = cases.exact(name)
    v, batch = cases.direction(exact.policy), exact.sample(64, seed=3)
    options = {"per": per, "method": method}
    first = entropy_change(
        exact.policy, batch, v, [], EstimatorOptions(per, method), order=1
    ).first_order
    gradient = entropy_gradient(exact.policy, batch, **options)
    assert dot(gradient, v) == pytest.approx(first.value, rel=1e-9)


def test_every_number_of_a_sweep_has_its_own_influences():
    sweep = change(cases.exact("qwen2"), [1e-3, 1e-2])
    of = {"first_order": sweep.first_order, "second_order": sweep.second_order}
    for point in sweep.points:
        name = f"sweep[{point.eta:g}]"
        of |= {f"{name}.delta_h": point.change, f"{name}.residual": point.residual}
    for name, estimate in of.items():
        squares = float(sweep.influences[name].square().sum())
        assert math.sqrt(estimate.n / (estimate.n - 1) * squares) == pytest.approx(estimate.se)


def test_pathwise_term_is_the_derivative_at_fixed_samples():
    exact = cases.exact("qwen2")
    batch, policy = exact.sample(64, seed=3), exact.policy
    sweep = change(exact, [], EstimatorOptions("sequence"))
    even = torch.full(sweep.sample.entropies.shape, 1 / 64, dtype=torch.float64)
    gradient = weighted_gradient(policy, batch, torch.zeros_like(even), even)
    assert sweep.pathwise.value == pytest.approx(dot(gradient, cases.direction(policy)), rel=1e-10)
    assert abs(sweep.pathwise.value / sweep.first_order.value - 1) > 0.05


def test_a_collapsing_step_gives_a_value_and_a_verdict():
    sweep = change(cases.exact("qwen2"), [1e-4, 10.0])
    assert [p.verdict for p in sweep.points] == ["trust", "resample"]
    assert math.isfinite(sweep.points[1].change.value)
    assert math.isnan(sweep.points[1].change.ci_low)
    assert "resampled" in sweep.points[1].change.warnings[0]


def test_a_step_into_nan_is_a_verdict_too():
    sweep = change(cases.exact("table"), [1e308])
    assert sweep.points[0].verdict == "resample"
    assert math.isnan(sweep.points[0].change.value)


def test_one_response_has_no_error_and_no_verdict_of_trust():
    sweep = change(cases.exact("table"), [1e-4], n=1)
    assert sweep.points[0].verdict != "trust"
    assert math.isnan(sweep.points[0].change.ci_low)
    assert any("One prompt draw" in w for w in sweep.points[0].change.warnings)


def drawn_at(temperature):
    return cases.drawn_by(cases.policy("qwen2", temperature=temperature), 256)


def quantities(sweep):
    return [sweep.entropy, sweep.first_order, sweep.pathwise, sweep.second_order]


def test_a_sampler_far_from_the_policy_leaves_nothing_with_an_interval():
    policy, batch = cases.policy("qwen2"), drawn_at(0.4)
    sweep = entropy_change(policy, batch, cases.direction(policy), [1e-4])
    for found in (*quantities(sweep), sweep.points[0].change, sweep.points[0].residual):
        assert math.isnan(found.ci_low)
        assert "importance weights" in found.warnings[0]
        assert found.ess < 128
    assert sweep.points[0].verdict != "trust"


def test_rounding_of_the_sampler_changes_no_interval():
    policy, batch = cases.policy("qwen2"), drawn_at(1.0)
    silent = batch.with_columns(sampler_logprobs=None)
    noisy = batch.with_columns(sampler_logprobs=[s + 1e-6 for s in batch.sampler_logprobs])
    v = cases.direction(policy)
    one, other = (entropy_change(policy, e, v, []) for e in (silent, noisy))
    for a, b in zip(quantities(one), quantities(other), strict=True):
        assert (b.ci_low, b.ci_high) == pytest.approx((a.ci_low, a.ci_high), rel=1e-4)
        assert a.warnings == b.warnings == ()


def test_order_of_sequences_does_not_matter():
    exact = cases.exact("qwen2")
    v, batch = cases.direction(exact.policy), exact.sample(32, seed=3)
    shuffled = batch.select(torch.randperm(32, generator=torch.Generator().manual_seed(0)))
    a, b = (entropy_change(exact.policy, e, v, [1e-2]) for e in (batch, shuffled))
    assert a.points[0].change.value == pytest.approx(b.points[0].change.value, rel=1e-11)
    assert a.points[0].change.se == pytest.approx(b.points[0].change.se, rel=1e-9)


def test_table_has_a_row_a_learning_rate():
    sweep = change(cases.exact("table"), [1e-3, 1e-2])
    frame = sweep.to_frame()
    assert list(frame.eta) == [1e-3, 1e-2]
    assert frame.first_order[1] == pytest.approx(1e-2 * sweep.first_order.value)
    ends = ("value", "se", "ci_low", "ci_high")
    for name, of in (("delta_h", "change"), ("residual", "residual")):
        for end in ends:
            column = name if end == "value" else f"{name}_{end}"
            expected = [getattr(getattr(p, of), end) for p in sweep.points]
            np.testing.assert_array_equal(frame[column], expected)
    assert list(frame.verdict) == [p.verdict for p in sweep.points]
    bare = change(cases.exact("table"), [1e-3], order=0).to_frame()
    columns = ["residual", "residual_se", "residual_ci_low", "first_order", "second_order"]
    assert bool(bare[columns].isna().all(axis=None))


def test_every_stage_is_reported_before_it_begins():
    stages = []
    change(cases.exact("table"), [1e-3], progress=lambda *stage: stages.append(stage[:2]))
    assert stages == [(0, 2), (1, 2)]
    change(cases.exact("table"), [], progress=lambda *stage: stages.append(stage[:2]))
    assert stages[2:] == [(0, 1)]


def test_the_interval_of_the_linear_range_ends_nowhere_where_second_order_may_be_zero():
    exact = cases.exact("qwen2")
    found = {n: change(exact, [], n=n) for n in (8, 1500)}
    for sweep in found.values():
        second, reach = sweep.second_order, sweep.linear_range
        may_be_zero = second.ci_low <= 0 <= second.ci_high
        assert math.isinf(reach.ci_high) == may_be_zero == bool(reach.warnings)
        assert reach.ci_low < reach.value < reach.ci_high
        assert reach.value == pytest.approx(abs(sweep.first_order.value / second.value))
    assert math.isinf(found[8].linear_range.ci_high)
    first, second = exact.derivatives(cases.direction(exact.policy), "token")
    assert found[1500].linear_range.covers(abs(first / second))


def test_bad_requests_are_refused():
    exact = cases.exact("table")
    v = cases.direction(exact.policy)
    with pytest.raises(ValueError, match="finite"):
        change(exact, [math.inf])
    with pytest.raises(ValueError, match="order"):
        change(exact, [], order=3)
    with pytest.raises(ValueError, match="not finite in parameter"):
        entropy_change(exact.policy, exact.sample(4, 0), axpy(math.nan, v, v), [])
    with pytest.raises(ValueError, match="different parameters"):
        entropy_change(exact.policy, exact.sample(4, 0), {"other": torch.ones(1)}, [])


@pytest.mark.parametrize("order", [1, 2])
def test_a_direction_of_zero_changes_nothing_and_breaks_no_other_number(order):
    exact = cases.exact("qwen2")
    v = {name: 0 * x for name, x in cases.direction(exact.policy).items()}
    found = entropy_change(exact.policy, exact.sample(32, 0), v, [0.1], order=order)
    assert math.isfinite(found.entropy.ci_low)
    assert math.isfinite(found.entropy.se)
    for number in (found.first_order, found.pathwise, found.points[0].change):
        assert (number.value, number.se) == (0, 0)
        assert math.isnan(number.ci_low)


def test_one_prompt_draw_has_no_interval_for_that_reason_alone():
    exact = cases.exact("qwen2")
    E = exact.sample(16, 0)
    E = E.select([i for i in range(16) if torch.equal(E.prompt_ids[i], E.prompt_ids[0])])
    E = E.with_columns(prompt_index=torch.zeros(len(E), dtype=torch.int64))
    found = entropy_change(exact.policy, E, cases.direction(exact.policy), [0.01])
    assert (found.points[0].verdict, found.points[0].residual_trust.verdict) == ("smooth", "smooth")
    for number in (found.entropy, found.first_order, found.points[0].change):
        assert math.isnan(number.ci_low)
        assert number.warnings == (
            "One prompt draw has no standard error: draw two or more prompts.",
        )
