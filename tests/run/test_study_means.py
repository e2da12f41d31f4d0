"""Means over repeats that share E: errors of both draws, and ratios of means."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from isentrope.attribution.noise.scale import ESTIMATES, noise_scale_of_gram
from isentrope.run.study_means import means_over_repeats, parts_of_ratio

P, D = 64, 40


def table(numbers, errors=None):
    """Rows of repeats from (N,) values by quantity."""
    rows = [
        {"quantity": quantity, "repeat": r, "value": float(value)}
        | {"se": 1.0 if errors is None else float(errors[quantity][r])}
        for quantity, values in numbers.items()
        for r, value in enumerate(values)
    ]
    same = {"checkpoint": "c", "step": 0, "unit": "", "freedom": P - 1, "ci_low": 0.0, "n": P}
    return pd.DataFrame(rows).assign(**same)


def study(rng, step_noise, repeats):
    """x_r = <g, v_r> and y_r = <k, v_r>: prompts of E scatter g and k, repeats scatter v."""
    fixed = np.random.default_rng(1)
    g, k, v = 2 * fixed.normal(size=(3, D)) / math.sqrt(D)
    k += 0.8 * v
    steps = v + step_noise * rng.normal(size=(repeats, D))
    names = ("first_order", "second_order")
    by_prompt = {
        q: (x + rng.normal(size=(P, D))) @ steps.T for q, x in zip(names, (g, k), strict=True)
    }
    x, y = (z.mean(0) for z in by_prompt.values())
    errors = {q: z.std(0, ddof=1) / math.sqrt(P) for q, z in by_prompt.items()}
    frame = table(
        dict(zip(names, (x, y), strict=True)) | {"linear_range": abs(x / y)},
        errors | {"linear_range": np.ones(repeats)},
    )
    shared = {q: torch.tensor((z - z.mean(0)).T / P) for q, z in by_prompt.items()}
    truth = {"first_order": g @ v, "linear_range": abs(g @ v / (k @ v))}
    return frame, shared, truth, math.sqrt(v @ v / P)


def means(frame, shared):
    rows = frame.to_dict("records")
    return {row["quantity"]: row for row in means_over_repeats(rows, shared, 0.95)}


@pytest.mark.parametrize("step_noise", [0.1, 1.0])
@pytest.mark.parametrize("repeats", [2, 4])
def test_the_interval_of_a_mean_covers_the_truth(step_noise, repeats):
    rng, held, squares = np.random.default_rng(0), {"first_order": 0, "linear_range": 0}, []
    for _ in range(150):
        frame, shared, truth, se = study(rng, step_noise, repeats)
        found = means(frame, shared)
        for name in held:
            held[name] += found[name]["ci_low"] <= truth[name] <= found[name]["ci_high"]
        squares.append(found["first_order"]["se_evaluation"] ** 2)
    assert min(held.values()) >= 135  # .90
    assert 0.7 * se < math.sqrt(np.mean(squares)) < 1.5 * se


def test_without_influences_the_error_over_prompts_is_an_upper_bound():
    frame, _, _, se = study(np.random.default_rng(0), 1.0, 4)
    assert means(frame, {})["first_order"]["se_evaluation"] > 2 * se
    assert means(frame, None)["first_order"]["se_evaluation"] == 0.0


def test_the_mean_of_a_ratio_is_the_ratio_of_means_without_an_upper_end_where_it_has_none():
    parts = {"gradient.trace": [16.0, 17.0, 18.0], "gradient.gradient_square": [1.0, -0.5, 1.5]}
    b = [x / y for x, y in zip(*parts.values(), strict=True)]
    row = means(table(parts | {"gradient.b_simple": b}), None)["gradient.b_simple"]
    assert row["value"] == pytest.approx(51 / 2)
    assert row["ci_high"] == math.inf
    assert 0 < row["ci_low"] < row["value"]


def test_ratios_whose_parts_are_not_there_have_no_mean():
    assert parts_of_ratio("entropy.noise_scale") == ()
    assert parts_of_ratio("tried.repo_r.step.price") == ()
    assert parts_of_ratio("classes.tokens.criterion.0.02.selected.share_h") == (
        "classes.tokens.criterion.0.02.selected.delta_h",
        "classes.tokens.gradient",
    )
    assert parts_of_ratio("budget.momentum") is None
    found = means(table({"supervised.b_simple": [1.0, 2.0], "loss": [1.0, 2.0]}), None)
    assert list(found) == ["loss"]


def test_the_mean_of_a_withheld_interval_has_none():
    frame = table({"first_order": [1.0, 1.0]}).assign(ci_low=[0.0, math.nan])
    assert np.isnan(means(frame, {})["first_order"]["ci_low"])


def noise_rows(rng, n, repeats=4):
    """Rows of `noise` over repeats, norms by |t₃|: tr Σ = B = n/4."""
    rows = []
    for _ in range(repeats):
        norms = np.abs(rng.standard_t(3, size=(n, 1))) / 3**0.5
        g = D**-0.5 + (n / 4 / D) ** 0.5 * norms * rng.normal(size=(n, D))
        scale = noise_scale_of_gram(torch.from_numpy(g @ g.T))
        for name in ESTIMATES:
            x = getattr(scale, name)
            row = x.columns() | {"n": x.n, "freedom": x.degrees_of_freedom or n - 1, "unit": ""}
            rows.append({"checkpoint": "c", "step": 0, "quantity": f"gradient.{name}", **row})
    return pd.DataFrame(rows)


def test_where_a_row_has_no_upper_end_the_mean_has_none():
    found = means(noise_rows(np.random.default_rng(0), 64), None)
    for name in ("gradient.trace", "gradient.b_simple"):
        assert 0 < found[name]["ci_low"] < found[name]["value"] < found[name]["ci_high"] == math.inf
    assert math.isfinite(found["gradient.gradient_square"]["ci_high"])
    frame = table({"first_order": [1.0, 2.0]}).assign(ci_high=[3.0, math.inf])
    assert means(frame, {})["first_order"]["ci_high"] == math.inf


def test_the_mean_of_a_noise_covers_with_the_tail_of_its_rows():
    """Four equally small values: t of three degrees of freedom alone covers tr Σ by .80."""
    rng, held = np.random.default_rng(1), np.zeros(2)
    for _ in range(60):
        found = means(noise_rows(rng, 128), None)
        pair = found["gradient.trace"], found["gradient.b_simple"]
        assert math.isfinite(pair[0]["ci_high"])
        held += [row["ci_low"] <= 32 <= row["ci_high"] for row in pair]
    assert held.min() >= 55  # .92


def test_a_mean_over_repeats_is_no_better_known_than_its_rows_say():
    frame = table({"q": [1.0, 1.0]}, {"q": [0.5, 0.5]}).assign(freedom=4.0)
    row = means(frame, None)["q"]
    assert row["ci_high"] - 1 == pytest.approx(2.776 * 0.5 / 2**0.5, rel=1e-3)  # t of 4


def test_the_error_over_prompts_of_a_mean_has_the_freedom_of_its_influences():
    rng = np.random.default_rng(0)
    frame = table({"delta_h": [1.0, 1.0]})
    even = torch.tensor(rng.choice([-1.0, 1.0], size=P))
    few = torch.cat((torch.tensor([1.0, -1.0, 1.0, -1.0]) * 4, torch.zeros(P - 4))).double()
    lengths = [
        row["ci_high"] - row["ci_low"]
        for phi in (even, few)
        for row in [means(frame, {"delta_h": torch.stack((phi, phi))})["delta_h"]]
    ]
    assert lengths[1] / lengths[0] == pytest.approx(3.182 / 1.998, rel=1e-3)  # t of 3 and of 63


@pytest.mark.parametrize("phi", [torch.zeros(2, 1), torch.full((2, 8), math.nan)])
def test_where_influences_give_no_error_a_mean_has_no_interval(phi):
    parts = {"first_order": [1.0, 2.0], "second_order": [1.0, 1.0]}
    frame = table(parts | {"linear_range": [1.0, 2.0]})
    for row in means(frame, {name: phi.double() for name in parts}).values():
        assert row["value"] == (1.0 if row["quantity"] == "second_order" else 1.5)
        assert math.isnan(row["ci_low"])
        assert math.isnan(row["ci_high"])


@pytest.mark.parametrize(
    "quantity",
    ["price.momentum", "price.at.high entropy.share", "price.whole.reward_for_a_nat"],
)
def test_ratios_of_a_price_are_no_means_of_ratios(quantity):
    assert parts_of_ratio(quantity) is not None


def test_the_momentum_of_a_price_is_a_ratio_of_means_of_either_sign():
    tops, bottoms = np.array([-1.0, -1.2, -3.1]), np.array([1.0, 1.1, 4.0])
    numbers = {"budget.momentum": tops, "budget.total": bottoms, "price.momentum": tops / bottoms}
    errors = dict.fromkeys(numbers, np.full(3, 0.01))
    row = means(table(numbers, errors), {})["price.momentum"]
    assert row["value"] == pytest.approx(tops.sum() / bottoms.sum())
    assert not row["ci_low"] >= 0
