"""ΔJ against ΔH on the page, and whether the rate could be higher."""

import math

import pytest

from isentrope.reports.panels.plane import trade_off
from isentrope.reports.read_run import read_run
from isentrope.reports.verdict import verdict
from tests.reports.made_up import estimate, measure, noise, write

QUESTION = "Could the rate be higher?"


def row(eta, change, verdict="trust"):
    """A row of ΔJ; no interval where the verdict is not trust."""
    bar = 0.2 * abs(change) if verdict == "trust" else None
    ends = {"low": bar and change - bar, "high": bar and change + bar}
    orders = {"first_order": 20 * eta, "second_order": -2000 * eta**2}
    return (
        {"eta": eta, "delta_j": change, "delta_j_se": 0.1 * abs(change), "verdict": verdict}
        | {f"delta_j_ci_{end}": value for end, value in ends.items()}
        | {f"{name}{end}": x for name, x in orders.items() for end in ("", "_se")}
    )


def rewarded(top=None, **more):
    return {
        "at_theta": estimate(0.7, unit="reward"),
        "first_order": estimate(20.0, unit="reward per η"),
        "second_order": estimate(-2000.0, unit="reward per η²"),
        "sweep": [row(1e-5, 2e-4), row(1e-3, 0.018), row(1e-2, 0.1, "smooth")],
        **({} if top is None else {"top": top}),
        **more,
    }


def said(folder, reward, scale=None):
    content = measure(reward=reward)
    content["step"]["param_groups"] = [{"betas": [0.9, 0.999]}]
    write(folder, "measure", "step_8", content)
    if scale is not None:
        write(folder, "noise", "step_8", noise() | {"preconditioned": {"b_simple": scale}})
    claims = {claim.question: claim.text for claim in verdict(read_run(folder))}
    return claims.get(QUESTION, "")


@pytest.mark.parametrize(
    ("top", "words"),
    [
        (estimate(5e-3, 1e-3), "is below that, so a step on this batch could be larger"),
        (estimate(4e-4, 1e-4), "is above that, so it should be lowered"),
        (estimate(9e-4, 2e-4), "is not distinguishable from that"),
    ],
)
def test_the_training_rate_is_held_against_the_interval_of_the_best_one(tmp_path, top, words):
    assert words in said(tmp_path, rewarded(top))


def test_a_best_rate_beyond_what_was_measured_says_so(tmp_path):
    assert "beyond the rates" in said(tmp_path / "a", rewarded(estimate(5e-3, 1e-3)))
    assert "beyond the rates" not in said(tmp_path / "b", rewarded(estimate(9e-4, 2e-4)))


def test_without_a_best_rate_there_is_its_reason_and_no_number(tmp_path):
    sentence = said(tmp_path, rewarded(no_top="The interval of δJ₂ does not lie below zero."))
    assert sentence == "No best rate follows. The interval of δJ₂ does not lie below zero."


def test_without_rewards_there_is_no_claim_and_no_panel(tmp_path):
    assert said(tmp_path, None) == ""
    assert list(trade_off(read_run(tmp_path))) == []


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (19.0, "the batch is large enough: its noise takes 20"),
        (760.0, "the batch is too small: its noise takes 91"),
    ],
)
def test_the_noise_scale_says_whether_the_batch_is_large_enough(tmp_path, scale, words):
    sentence = said(tmp_path, rewarded(estimate(5e-3, 1e-3)), estimate(scale, unit="prompts"))
    assert "At 4 prompts (momentum averages 19 batches)" in sentence
    assert words in sentence


def test_without_an_interval_of_the_noise_scale_there_is_no_number_of_it(tmp_path):
    endless = estimate(12.0, unit="prompts", interval=False)
    sentence = said(tmp_path, rewarded(estimate(5e-3, 1e-3)), endless)
    assert sentence.endswith("so no rate without noise follows.")
    assert "η_max" not in sentence


def test_the_panel_draws_the_rates_at_which_both_have_intervals(tmp_path):
    said(tmp_path, rewarded(estimate(5e-3, 1e-3)))
    (panel,) = trade_off(read_run(tmp_path))
    (axes,) = panel.drawn.figure().axes
    points = next(line for line in axes.lines if line.get_marker() == "o")
    assert len(points.get_xdata()) == 2
    assert list(panel.data["ΔJ (reward)"]) == [2e-4, 0.018]
    assert "J 0.7 [" in panel.caption
    assert "ΔJ at η = 0.001 (reward) 0.018 [0.0144,\u00a00.0216]" in panel.caption
    assert math.isclose(panel.numbers["ΔJ at η = 0.001 (reward)"].value, 0.018)
