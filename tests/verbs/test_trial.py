"""`isentrope try` on a tiny checkpoint, as a user runs it."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from isentrope import Estimate, Policy, Rollouts, TrialResult, load_task, score
from isentrope.attribution.frontier.edge import Edge
from isentrope.cli.main import app
from isentrope.config.io import ConfigError, load_config
from isentrope.control.trial import OutOfReachError
from isentrope.nouns.vectors import axpy
from isentrope.results.answers.blocks import Table
from isentrope.results.answers.trial import PRICES, by_price, trial_tables
from isentrope.results.attributions import Tried
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import compute_step
from isentrope.verbs.trial import on_frontier
from isentrope.verbs.trial_steps import largest_strength
from tests.control.examples import (
    INFLUENCE_CLIP,
    LP_REG,
    NEGATIVE_SCALE,
    RANDOM_MASK,
    STARE,
)
from tests.tiny_checkpoint import make_checkpoint, settings

WITHOUT_CONTROL = ("shrunk_step", "no_momentum")
SMALL = [
    "batch_config.B_E=24",
    "batch_config.allow_overlap=true",
    "trial.size=32",
    "trial.random_masks=false",
]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A checkpoint whose step changes entropy by more than the noise of a trial."""
    return make_checkpoint(tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def run(once, tiny):
    """Try controls; the folder and its results."""

    def ran(controls, *overrides, of=tiny):
        names = f"trial.controls={json.dumps(controls)}"
        folder, results = once(
            "try", names, "batch_config.save_batches=true", *SMALL, *overrides, of=of
        )
        mine = {k: v for k, v in results["tried"].items() if v["control"] not in WITHOUT_CONTROL}
        return folder, results | {"tried": mine, "all": results["tried"]}

    return ran


@pytest.fixture(scope="module")
def punished(run, tiny):
    """A trial of one control, with its policy, its batches and the step without the control."""
    folder, results = run([NEGATIVE_SCALE], "trial.strengths=[1.0]")
    policy = Policy.from_checkpoint(tiny / "step_4", precision="float64")
    E, U = (Rollouts.load(folder / f"{x}.parquet") for x in "EU")

    def step(U, state=tiny / "step_4"):
        return compute_step(policy, U, state, max_response_length=3, max_grad_norm=1.0)

    return SimpleNamespace(results=results, policy=policy, E=E, U=U, step=step)


def moved(trial, direction, rewards=0.0):
    """Per-token entropy and mean reward after a step, by importance weights written out."""
    policy, rollouts, eta = trial.policy, trial.E, trial.results["eta"]
    rewards = torch.as_tensor(rewards, dtype=torch.float64).expand(len(rollouts))
    before = score(policy, rollouts)
    with policy.shifted(direction, eta):
        after = score(policy, rollouts)
    ratio = after.logprobs - before.logprobs
    earlier = (ratio.cumsum(1) - ratio).exp()
    mask = before.mask.double()
    weights = earlier / earlier.mean(0)
    h = (weights * mask * after.entropies).sum() / (weights * mask).sum()
    whole = ratio.sum(1).exp()
    reward = (whole * rewards).sum() / whole.sum()
    plain = (mask * before.entropies).sum() / mask.sum()
    return float(h - plain), float(reward - rewards.mean())


def test_a_trial_is_the_change_that_the_rewritten_step_causes(punished):
    (entry,) = punished.results["tried"].values()
    U = punished.U
    factor = torch.where(U.advantages < 0, 1 + entry["strength"], 1.0)
    step = punished.step(U.with_columns(advantages=U.advantages * factor))
    for part, v in (("step", step.direction), ("gradient", step.components["gradient"])):
        h, _ = moved(punished, v)
        assert entry[part]["delta_h"]["value"] == pytest.approx(h, rel=1e-6)
    assert entry["did"]["touched_negative"] == 1.0
    gained = entry["step"]["gained_delta_h"]["value"]
    plain = punished.results["vanilla"]["step"]["delta_h"]["value"]
    assert gained == pytest.approx(entry["step"]["delta_h"]["value"] - plain, rel=1e-6)


def test_reward_moves_as_the_weighted_responses_say(punished, tiny):
    task = load_task("prompts", "test", tiny / "prompts.jsonl")
    E = punished.E
    rewards = [task.reward(*x) for x in zip(E.response_texts, E.references, strict=True)]
    _, reward = moved(punished, punished.step(punished.U).direction, rewards)
    plain = punished.results["vanilla"]["step"]["delta_j"]["value"]
    assert plain == pytest.approx(reward, rel=1e-6)


def test_every_control_that_acts_is_tried_at_every_strength_that_fits(run):
    folder, results = run(None)
    table = pd.read_parquet(folder / "trial.parquet")
    tried = set(table["control"])
    assert {"clip_cov", "repo_r", "budget", "bonus"} <= tried
    assert not {"kl_cov", "cispo"} & tried
    assert (table.groupby("control")["strength"].nunique() >= 1).all()
    assert table.groupby("part").size()["step"] == len(results["all"])
    numbers = table[["delta_h", "gained_delta_h", "gained_delta_h_se", "delta_j", "gained_delta_j"]]
    assert numbers.notna().all().all()
    assert table[table["part"] == "step"]["frontier"].any()


def test_each_control_has_a_place_at_the_length_of_the_plain_step(run, deep, monkeypatch):
    monkeypatch.setattr(Edge, "missing", ())  # this policy's is not known from so few prompts
    size = "batch_config.B_E=400"
    options = ("trial.strengths=[1.0]", size)
    folder, results = run([NEGATIVE_SCALE, "budget"], *options, of=deep)
    places = {name: entry.get("place") for name, entry in results["all"].items()}
    shrunk = places.pop("shrunk_step@0.5")
    assert shrunk["length"] == pytest.approx(0.5)
    assert shrunk["entropy"]["value"] == pytest.approx(results["frontier"]["entropy"]["value"])
    assert shrunk["reward"]["value"] == pytest.approx(results["frontier"]["reward"]["value"])
    assert places.pop("no_momentum@1") is None
    table = pd.read_parquet(folder / "trial.parquet").set_index(["control", "part"])
    assert table.loc[("budget", "step"), "length"] == pytest.approx(places["budget@1"]["length"])
    assert math.isnan(table.loc[("budget", "gradient"), "length"])


def test_without_an_edge_a_sentence_says_so_and_no_control_has_a_place(run):
    folder, results = run(["repo_r"], "trial.strengths=[1.0]")
    assert not any("place" in entry for entry in results["all"].values())
    lines = [line for line in trial_tables(TrialResult.load(folder)) if isinstance(line, str)]
    assert any("There is no frontier from 24 prompts" in line for line in lines)


def test_with_fewer_prompts_than_groups_a_sentence_says_how_many_would_do(run):
    _, results = run([NEGATIVE_SCALE], "trial.strengths=[1.0]", "batch_config.B_E=8")
    assert "frontier" not in results
    assert any("E has 8 prompts" in x and "B_E to 128" in x for x in results["warnings"])


def test_controls_of_files_that_need_a_pass_of_the_model_are_tried(run):
    _, results = run([LP_REG, INFLUENCE_CLIP], "trial.strengths=[1.0]")
    assert {entry["control"] for entry in results["tried"].values()} == {LP_REG, INFLUENCE_CLIP}


def test_two_filters_cannot_be_tried_at_once(run, tmp_path):
    other = tmp_path / "other.py"
    source = Path(LP_REG.partition(":")[0]).read_text(encoding="utf-8")
    other.write_text(source.replace("] = 0.02", "] = 0.1"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"several min_p \(\[0\.02, 0\.1\]\)"):
        run([LP_REG, f"{other}:LpReg"])


@pytest.mark.parametrize(
    "settings_of_the_step",
    [
        ["estimator.objective=cispo", "estimator.clip=0.3", "estimator.max_grad_norm=null"],
        ["estimator.objective=dapo", "precision.update_vector={use_amp: true}"],
    ],
)
def test_a_control_that_does_nothing_gains_nothing(run, settings_of_the_step):
    little = ["trial.strengths=[1e-9]"]
    _, results = run([NEGATIVE_SCALE], *little, *settings_of_the_step)
    (entry,) = results["tried"].values()
    for part in ("step", "gradient"):
        whole = results["vanilla"][part]["delta_h"]["value"]
        assert abs(entry[part]["gained_delta_h"]["value"]) < 1e-6 * abs(whole)


def test_intervals_are_named_by_their_coverage(run):
    folder, _ = run([NEGATIVE_SCALE], "trial.strengths=[1.0]", "estimator.confidence=0.9")
    result = TrialResult.load(folder)
    table = next(x for x in result.printed([result]) if isinstance(x, Table))
    assert "90 % interval" in [column.title for column in table.columns]


def test_a_shrunk_step_and_one_without_momentum_are_always_tried(punished, tiny):
    state = torch.load(tiny / "step_4" / "optimizer.pt", weights_only=True)
    for group in state["param_groups"]:
        group["betas"] = (0.0, group["betas"][1])
    names = json.loads((tiny / "step_4" / "parameter_names.json").read_text())
    state = load_optimizer_state(punished.policy, state, names=names)
    plain = punished.step(punished.U).direction
    steps = {
        "shrunk_step": axpy(-0.5, plain, plain),
        "no_momentum": punished.step(punished.U, state).direction,
    }
    for name, v in steps.items():
        (entry,) = [x for x in punished.results["all"].values() if x["control"] == name]
        h, _ = moved(punished, v)
        assert entry["step"]["delta_h"]["value"] == pytest.approx(h, rel=1e-6)


def test_a_budget_takes_most_of_the_change_away(run):
    _, results = run(
        ["budget"], "trial.strengths=[1.0]", "trial.size=512", "batch_config.B_E=400",
        "trial.options={budget: {largest: 100, range: 100}}",
    )  # fmt: skip
    (entry,) = results["tried"].values()
    plain = results["vanilla"]["step"]["delta_h"]["value"]
    assert entry["did"]["no_correction"] == 0.0
    assert abs(entry["step"]["delta_h"]["value"]) < 0.5 * abs(plain)


def change_at_half(run, deep):
    """The change of entropy that a control of half its strength causes."""
    _, results = run([NEGATIVE_SCALE], "trial.strengths=[0.5]", of=deep)
    (entry,) = results["tried"].values()
    return entry["step"]["delta_h"]["value"]


def test_the_strength_of_a_wanted_change_is_found_and_measured(run, deep):
    wanted = change_at_half(run, deep)
    _, found = run([NEGATIVE_SCALE], f"trial.change={wanted}", of=deep)
    (entry,) = found["tried"].values()
    assert entry["predicted"] == pytest.approx(wanted, rel=0.02)
    other_E = (f"trial.change={wanted}", "trial.strengths=null", "batch_config.B_E=40")
    _, other = run([NEGATIVE_SCALE], *other_E, of=deep)
    (again,) = other["tried"].values()
    assert again["strength"] == entry["strength"]  # not looked for on the E that judges it
    assert again["step"]["delta_h"]["value"] != entry["step"]["delta_h"]["value"]


def test_a_control_that_cannot_reach_a_change_does_not_end_the_others(run, deep):
    change = f"trial.change={change_at_half(run, deep)}"
    tiny_budget = (change, "trial.options={budget: {largest: 1e-9}}")
    with pytest.raises(OutOfReachError, match=r"^budget: "):
        run(["budget"], *tiny_budget, of=deep)
    _, found = run(["budget", NEGATIVE_SCALE], *tiny_budget, of=deep)
    assert [entry["control"] for entry in found["tried"].values()] == [NEGATIVE_SCALE]
    assert any(x.startswith("budget: No strength between") for x in found["warnings"])


@pytest.mark.parametrize(
    ("control", "default", "bound"),
    [(STARE, 0.1, 1.0), (STARE, -0.1, -1.0), ("bonus", 0.5, 32.0)],
)
def test_the_search_reaches_the_bound_of_a_strength(control, default, bound):
    assert largest_strength(control, default) == bound


def test_what_cannot_be_tried_is_refused(run):
    with pytest.raises(ValueError, match=r"'kl_cov' .*ratio"):
        run(["kl_cov"])
    with pytest.raises(ValueError, match=r"nearest is 'clip_cov'"):
        run(["clip_cow"])
    with pytest.raises(ValueError, match=r"estimator.objective"):
        run(["clip_cov"], "estimator.objective=sft")


def test_the_frontier_is_what_nothing_beats():
    table = pd.DataFrame({"gained_delta_h": [1.0, 2.0, 0.5, 2.0], "gained_delta_j": [2, 1, 1, 1]})
    assert on_frontier(table) == [True, True, False, True]
    assert on_frontier(table[["gained_delta_h"]]) == [False, True, False, True]


def test_a_random_mask_is_compared_with_other_masks_by_their_mean(run):
    one = ["trial.strengths=[2.0]", "trial.random_masks=true"]
    _, results = run([RANDOM_MASK], *one)
    (entry,) = results["tried"].values()
    assert 0 < entry["did"]["touched"] < 1
    over = entry["step"]["over_random_delta_h"]
    assert over["value"] != 0
    assert over["se"] > 0


def test_a_correction_that_is_cut_or_missing_says_why_for_each_part(run):
    cut = ["trial.strengths=[1.0]", "trial.size=512"]
    told = "trial.options={budget: {range: 100, largest: 1e-3}}"
    folder, results = run(["budget"], *cut, told)
    (entry,) = results["tried"].values()
    assert entry["reasons"] == {"step": "too_large", "gradient": "too_large"}
    said = [x for x in results["warnings"] if "shortens its correction" in x]
    assert len(said) == 2
    assert all("larger than the option largest allows" in x for x in said)
    table = pd.read_parquet(folder / "trial.parquet")
    table = table[table["control"] == "budget"].set_index("part")
    for part, key in (("step", "did"), ("gradient", "did_gradient")):
        assert table.loc[part, "lambda"] == entry[key]["lambda"]
    assert entry["did"]["lambda"] != entry["did_gradient"]["lambda"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trial.options={clip_cow: {}}", "nearest is 'clip_cov'"),
        ("trial.options={clip_cov: {sides: 1}}", "has no option 'sides'"),
        ("trial.size=7", "trial.size"),
        ("trial.strengths=[0]", "trial.strengths"),
        ("trial={strengths: [1], change: 0.1}", "cannot be given with it"),
    ],
)
def test_settings_that_cannot_act_are_refused_before_any_work(tiny, override, said):
    with pytest.raises(ConfigError, match=said):
        load_config(settings(tiny), [override])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--change", "0"], ['trial.controls=["clip_cov"]', "trial.change=0.0"]),
        (["--strength", "2"], ['trial.controls=["clip_cov"]', "trial.strengths=[2.0]"]),
        ([], ['trial.controls=["clip_cov"]']),
    ],
)
def test_the_command_hands_on_what_was_asked(monkeypatch, tmp_path, given, expected):
    asked = []
    monkeypatch.setattr(
        "isentrope.commands.trial.TryCommand.run", lambda command: asked.extend(command.overrides)
    )
    monkeypatch.setattr("isentrope.commands.trial.TryCommand.read", lambda _: None)
    monkeypatch.setattr("isentrope.commands.trial.TryCommand.shown", lambda *_: ())
    config = tmp_path / "try.json"
    config.write_text("{}")
    done = CliRunner().invoke(app, ["try", "clip_cov", str(config), *given])
    assert done.exit_code == 0, done.output
    assert sorted(asked) == sorted(expected)


def test_words_say_which_controls_are_worse_than_a_lower_rate():
    def tried(control, strength, low, high):
        price = (0.95, 0.1, low, high, 9, "of the plain step's", "sequence")
        part = {} if low is None else {"price": Estimate(*price)}
        more = {"predicted": None, "did": {}, "gradient": {}}
        return Tried(control=control, strength=strength, step=part, **more)

    entries = {
        "a": tried("bonus", 0.1, 1.2, 3.0),
        "b": tried("bonus", 0.2, 1.5, 4.0),
        "c": tried("repo_r", 0.1, 0.9, 1.1),
        "d": tried("stare", 0.1, 0.1, 0.9),
        "g": tried("entropic", 0.1, 0.9, 0.98),  # above the shrunk step's own .95
        "e": tried("qae", 1.0, None, None),
        "f": tried("shrunk_step", 0.5, 0.8, 0.9),
    }
    verdicts = by_price(SimpleNamespace(tried=entries), "step")
    better, worse, either, unpriced = PRICES
    assert verdicts == {
        better: ["stare 0.1"],
        worse: ["bonus 0.1, 0.2"],
        either: ["repo_r 0.1", "entropic 0.1"],
        unpriced: ["qae 1"],
    }
    assert better.startswith("Better than a lower learning rate")
    assert worse.startswith("Worse than a lower learning rate")
