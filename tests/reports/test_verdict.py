import copy

import pytest

from isentrope import load_result
from isentrope.reports.read_run import read_run
from isentrope.reports.report import write_report
from isentrope.reports.verdict import FIRST, verdict
from isentrope.system.formatting import PAGE
from tests.reports.made_up import (
    audit,
    estimate,
    influence,
    make_run,
    measure,
    sweep_row,
    tables,
    write,
)

PRICE = {
    "whole": {
        "tokens": 1.0,
        "entropy": estimate(0.1),
        "first_order": estimate(-5e-4),
        "share": estimate(1.0, 0.0),
        "reward": estimate(-2e-3, 5e-4, unit="reward"),
        "reward_for_a_nat": estimate(4.0, 1.0, unit="reward per nat per token"),
    },
    "at": {},
}


def claims(folder, **more):
    write(folder, "measure", "step_8", measure(**more))
    return {claim.question: claim for claim in verdict(read_run(folder))}


def test_a_fall_with_its_interval_and_share(tmp_path):
    said = claims(tmp_path)["How much?"]
    assert said.text == (
        "One step from step_8 at the training rate η = 0.001 lowers entropy by 0.0017 nats per "
        "token [0.00136,\u00a00.00204], 1.7\u00a0% of the entropy that is left."
    )


def test_an_interval_across_zero_claims_no_direction(tmp_path):
    row = sweep_row(1e-3, -1e-3, delta_h_ci_low=-3e-3, delta_h_ci_high=1e-3)
    said = claims(tmp_path, sweep=[row])["How much?"]
    assert "may lower or raise" in said.text
    assert "[−0.003,\u00a00.001]" in said.text
    assert said.tone == "doubt"


def test_weights_too_uneven_leave_neither_sign_nor_number(tmp_path):
    said = claims(tmp_path, sweep=[sweep_row(1e-3, -1e-3, "smooth")])
    assert "whether it lowers or raises entropy is not known" in said["How much?"].text
    assert "0.001" not in said["How much?"].text.replace("η = 0.001", "")
    assert said["Can I trust it?"].tone == "doubt"


def test_fresh_responses_come_before_uneven_weights(tmp_path):
    row = sweep_row(1e-3, -1e-3, "resample", resampled=estimate(2e-3, 1e-4))
    said = claims(tmp_path, sweep=[row])["How much?"]
    assert "raises entropy by 0.002 nats per token [0.0018" in said.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (-1.7e-3, "overstates the change: it is 1.18 [1.16,\u00a01.2] times as large"),
        (-2.5e-3, "understates the change: it is 0.8 ["),
        (-2e-3, "agrees to 2 %"),
        (1e-3, "has the sign wrong: it is −2 ["),
    ],
)
def test_first_order_is_held_against_what_is_measured(tmp_path, change, words):
    assert words in claims(tmp_path, sweep=[sweep_row(1e-3, change)])["First order"].text


def test_parts_that_agree_are_shares_and_parts_of_opposite_signs_are_amounts(tmp_path):
    assert "60\u00a0%" in claims(tmp_path / "a")["Who did it?"].text
    budget = measure()["budget"] | {"momentum": 1.0, "gradient": -3.0}
    said = claims(tmp_path / "b", budget=budget)["Who did it?"].text
    assert "have opposite signs" in said
    assert "%" not in said


@pytest.mark.parametrize("gradient", [-0.8, 0.8])
def test_parts_whose_sign_is_not_known_have_intervals_and_no_shares(tmp_path, gradient):
    budget = measure()["budget"] | {"gradient": gradient, "gradient_se": 0.6}
    said = claims(tmp_path, budget=budget)["Who did it?"].text
    assert "are not all of known sign" in said
    assert f"this batch's gradient {PAGE.number(gradient)} [" in said
    assert "%" not in said


def test_a_rounded_step_has_all_of_its_parts(tmp_path):
    rounded = {"rounding": -1.0, "rounding_se": 0.1, "total": -3.0}
    said = claims(tmp_path, budget=measure()["budget"] | rounded)["Who did it?"].text
    assert "rounding to the type of the weights 33\u00a0%" in said


def test_first_order_is_not_held_against_a_change_without_interval(tmp_path):
    said = claims(tmp_path, sweep=[sweep_row(1e-3, -1e-3, "smooth")])["First order"].text
    assert "states the change" not in said
    assert "has no interval to compare it with" in said


def test_a_failed_check_is_named_and_no_number_follows_from_it(tmp_path):
    said = claims(tmp_path, checks=measure()["checks"] | {"score_identity_z": 9.0})
    trust, change = said["Can I trust it?"], said["How much?"]
    assert trust.text.endswith("not as it should be: score identity.")
    assert "no change of entropy is given, because a check failed (score identity)" in change.text
    assert "0.0017" not in change.text
    assert trust.tone == change.tone == "doubt"


def test_a_rate_that_was_not_measured_is_said_to_be_missing(tmp_path):
    said = claims(tmp_path, sweep=[sweep_row(1e-5, -2e-5)])
    assert "was not measured" in said["How much?"].text


def test_an_order_that_nothing_contradicts_is_no_failed_check(tmp_path):
    said = claims(tmp_path, step=measure()["step"] | {"matched_by": "order"})
    assert "0.0017" in said["How much?"].text
    assert "not as it should be" not in said["Can I trust it?"].text


def test_influence_alone_says_whose_prompts_did_it(tmp_path):
    sequences, tokens = tables(2, 2, ["a", "b"])
    write(tmp_path, "influence", "step_8", influence(), sequences=sequences, tokens=tokens)
    said = {claim.question: claim.text for claim in verdict(read_run(tmp_path))}
    assert "same prompt −0.5" in said["Whose prompts"]
    assert "60\u00a0%" in said["Who did it?"]


def test_the_verdict_is_on_the_checkpoint_that_was_chosen(tmp_path):
    for name in ("step_8", "step_16"):
        write(tmp_path, "measure", name, measure(name))
    assert "from step_8 " in verdict(read_run(tmp_path, checkpoint="step_8"))[0].text
    assert "from step_16 " in verdict(read_run(tmp_path))[0].text
    with pytest.raises(ValueError, match=r"'step_9'.*step_8"):
        read_run(tmp_path, checkpoint="step_9")


def test_the_price_is_reward_with_its_interval(tmp_path):
    price = copy.deepcopy(PRICE)
    said = claims(tmp_path / "clear", price=price)["At what price?"]
    assert said.text.startswith("To first order reward changes by ΔJ = −0.002 [−0.003")
    assert "4 [2,\u00a06] reward per nat per token" in said.text
    assert said.tone == "fact"
    price["whole"]["reward"] = estimate(-2e-3, 2e-3)
    assert claims(tmp_path / "open", price=price)["At what price?"].tone == "doubt"


def test_four_questions_come_first(tmp_path):
    asked = list(dict.fromkeys(claims(tmp_path, price=PRICE)))
    assert asked[:4] == ["How much?", "Who did it?", "At what price?", "Can I trust it?"]
    assert tuple(asked[:4]) == FIRST
    assert len(asked) > 4


def test_what_training_did_comes_first_where_no_step_was_measured(tmp_path):
    run = make_run(tmp_path / "run", steps=())
    claim, *_ = verdict(read_run(run))
    assert claim.question == "Training"
    assert "the first to the last 5 of 20 steps entropy fell from 0.19" in claim.text
    page = write_report(run).page.read_text(encoding="utf-8")
    assert page.index("entropy fell from 0.19") < page.index("not in this report")
    assert "More about this step: Training" not in page
    write(run, "measure", "step_8", measure())
    assert verdict(read_run(run))[0].question == "How much?"


@pytest.mark.parametrize("proxies", [1, 9])
def test_the_best_of_several_proxies_has_an_interval_that_holds_for_the_choice(tmp_path, proxies):
    rows = {f"proxy {k}": {"spearman": estimate(0.4 - k / 100, 0.17)} for k in range(proxies)}
    content = audit()
    content["tokens"] = content["tokens"] | {"proxies": rows | {"measured": {}}}
    result = load_result(write(tmp_path, "audit", "step_8", content))
    said = next(iter(result.sentences()))
    alone = proxies == 1  # by its own interval, from 0.06 on
    assert said.tone == ("fact" if alone else "doubt")
    assert said.text.startswith("No published proxy is shown") != alone
    assert ("hold for all 9 at once" in said.text) != alone


def test_a_proxy_that_ranks_exactly_as_the_measurement_is_said(tmp_path):
    rows = {f"proxy {k}": {"spearman": estimate(1.0 - k, 0.1)} for k in range(2)}
    content = audit()
    content["tokens"] = content["tokens"] | {"proxies": rows | {"measured": {}}}
    result = load_result(write(tmp_path, "audit", "step_8", content))
    assert "“proxy 0”" in next(iter(result.sentences())).text
