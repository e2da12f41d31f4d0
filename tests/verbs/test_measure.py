import json
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import isentrope as ise
from isentrope import Policy, Rollouts, entropy, entropy_change, score
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.estimators.reward_change import reward_change
from isentrope.update.step import compute_step
from isentrope.verbs.batches import at_precision
from isentrope.verbs.first_order import budget_of_step
from tests.tiny_checkpoint import PROMPTS, settings

FIRST_ORDER = ("estimator.order=1", "estimator.eta_list=[1e-3]")
SAVED = (*FIRST_ORDER, "batch_config.save_batches=true")
SHARED = (*FIRST_ORDER, "batch_config.allow_overlap=true")


@pytest.fixture
def run(tiny, tmp_path):
    """Measure with overrides into a fresh folder."""

    def measured(*overrides, name="run"):
        where = [f"output.directory={tmp_path / name}", *overrides]
        return measure(load_config(settings(tiny), where))

    return measured


def written(run):
    (folder,) = run.measurements.values()
    return folder, json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def by_hand(once, tiny):
    """What a run wrote, and the change of entropy of its batches and step by the library."""
    folder, results = once("measure", *SAVED)
    policy = Policy.from_checkpoint(tiny / "step_4")
    E, U = (Rollouts.load(folder / f"{name}.parquet") for name in "EU")
    step = compute_step(policy, U, tiny / "step_4", max_response_length=3, max_grad_norm=1.0)
    return folder, results, policy, E, entropy_change(policy, E, step.direction, [1e-3], order=1)


def test_the_numbers_are_those_of_the_library_called_by_hand(by_hand):
    _, results, policy, E, change = by_hand
    for row, point in zip(results["sweep"], change.points, strict=True):
        assert row["delta_h"] == pytest.approx(point.change.value, rel=1e-9)
        assert row["delta_h_se"] == pytest.approx(point.change.se, rel=1e-9)
        first = point.eta * change.first_order.value
        assert row["first_order"] == pytest.approx(first, rel=1e-9)
    for functional, said in results["entropy"].items():
        per = functional.removeprefix("per_")
        assert said["value"] == pytest.approx(entropy(policy, E, per=per).value)


def test_the_change_of_reward_is_that_of_the_library_called_by_hand(by_hand):
    folder, results, _, E, change = by_hand
    # the task of the tiny checkpoint: 1 where the answer is the reference
    answers = zip(E.response_texts, E.references, strict=True)
    rewards = torch.tensor([float(text.strip() == right) for text, right in answers])
    expected = reward_change(change, rewards)
    reward = results["reward"]
    assert reward["at_theta"]["value"] == pytest.approx(float(rewards.mean()))
    assert reward["first_order"]["value"] == pytest.approx(expected.first_order.value, rel=1e-9)
    (row,), (point,) = reward["sweep"], expected.points
    assert row["delta_j"] == pytest.approx(point.change.value, rel=1e-9)
    assert row["delta_j_se"] == pytest.approx(point.change.se, rel=1e-9)
    table = pd.read_parquet(folder / "sweep.parquet")
    assert table["delta_j"].tolist() == [row["delta_j"]]
    assert table["reward_verdict"].tolist() == [row["verdict"]]


def test_where_E_has_no_rewards_a_sentence_says_so_and_entropy_goes_on(run, tmp_path):
    rows = [{"prompt": p, "response": str(i % 3 + 1)} for i, p in enumerate(PROMPTS[:12])]
    (tmp_path / "E.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _, results = written(run(*SHARED, f"batch_config.E_file={tmp_path / 'E.jsonl'}"))
    assert "reward" not in results
    assert any("There is no ΔJ(η), which needs rewards" in x for x in results["warnings"])
    assert results["sweep"][0]["delta_h"] is not None


def test_with_fewer_prompts_than_groups_a_sentence_says_how_many_the_frontier_needs(once):
    _, results = once("measure")
    assert "frontier" not in results
    assert any("E has 12 prompts" in x and "B_E to 128" in x for x in results["warnings"])


def test_reward_is_left_out_where_it_is_not_asked_for(once):
    _, results = once("measure", *FIRST_ORDER, "analysis.reward=false")
    assert "reward" not in results
    assert not any("ΔJ" in sentence for sentence in results["warnings"])


def test_the_components_of_the_step_sum_to_first_order(once):
    _, results = once("measure")
    budget = results["budget"]
    parts = sum(budget[name] for name in ("momentum", "decay", "gradient"))
    assert parts == pytest.approx(results["first_order"]["value"], rel=1e-9)
    assert budget["total"] == results["first_order"]["value"]
    assert budget["gradient_se"] > 0


def test_components_that_do_not_sum_to_the_step_are_refused():
    parts = {"momentum": {"w": torch.tensor([1.0])}, "gradient": {"w": torch.tensor([2.0])}}
    for direction in (3.1, float("nan")):
        step = SimpleNamespace(direction={"w": torch.tensor([direction])}, components=parts)
        with pytest.raises(ValueError, match="do not sum to it"):
            budget_of_step(SimpleNamespace(step=step), SimpleNamespace(first_order=0.0))


@pytest.mark.parametrize("order", [0, 1])
def test_orders_that_were_not_asked_for_are_null(once, order):
    _, results = once("measure", f"estimator.order={order}", "estimator.eta_list=[1e-3]")
    assert results["linear_range"] is results["second_order"] is None
    assert results["sweep"][0]["second_order"] is None
    assert (results["first_order"] is None) == (order == 0)
    assert (results["budget"] == {}) == (order == 0)
    assert (results["checks"]["score_identity_z"] is None) == (order == 0)


def test_E_and_U_share_no_prompt_unless_they_may(once):
    folder, _ = once("measure", *SAVED)
    E, U = (Rollouts.load(folder / f"{name}.parquet") for name in "EU")
    assert not set(E.prompt_keys) & set(U.prompt_keys)


def test_fixed_prompts_are_the_first_of_the_split_in_turn(run):
    fixed = ("batch_config.fixed_prompts=true", "batch_config.save_batches=true")
    overrides = (*SHARED, "estimator.order=0", *fixed, "batch_config.B_E=26")
    folder, content = written(run(*overrides))
    E, U = (Rollouts.load(folder / f"{name}.parquet") for name in "EU")
    assert any("these prompts alone" in warning for warning in content["warnings"])
    assert len(set(E.prompt_keys[:24])) == 24
    assert E.prompt_keys[24:] == E.prompt_keys[:2]
    assert set(U.prompt_keys) <= set(E.prompt_keys[:3])


def test_prompts_of_E_may_be_fixed_and_those_of_U_random(run):
    of_seed = {}
    for seed in (0, 1):
        fixed = ("batch_config.fixed_prompts=E", "batch_config.save_batches=true")
        sizes = ("batch_config.B_E=6", "batch_config.B_U=3", f"batch_config.seed={seed}")
        overrides = (*SHARED, "estimator.order=0", *fixed, *sizes)
        folder, _ = written(run(*overrides, name=f"run_{seed}"))
        of_seed[seed] = [Rollouts.load(folder / f"{n}.parquet").prompt_keys for n in "EU"]
    assert of_seed[0][0] == of_seed[1][0]
    assert of_seed[0][1] != of_seed[1][1]


def test_saved_batches_give_the_same_numbers_again(once):
    folder, first = once("measure", *SAVED)
    files = [f"batch_config.{name}_file={folder / name}.parquet" for name in "EU"]
    _, again = once("measure", *FIRST_ORDER, *files)
    assert again["sweep"] == first["sweep"]
    assert again["batches"]["B_U"] == 3


def test_the_written_configuration_repeats_the_run(run, tmp_path):
    first = run("estimator.order=0", "estimator.eta_list=[1e-3]", "batch_config.seed=3")
    config = load_config(first.folder / "config.yaml", [f"output.directory={tmp_path / 'b'}"])
    again = measure(config)
    assert again.results[0].to_dict()["sweep"] == first.results[0].to_dict()["sweep"]


def test_responses_written_by_hand_are_measured(run, tmp_path):
    rows = [{"prompt": p, "response": str(i % 3 + 1)} for i, p in enumerate(PROMPTS[:12])]
    (tmp_path / "E.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [
        {"prompt": PROMPTS[12 + i // 4], "response": str(i % 4), "reward": i % 2} for i in range(8)
    ]
    (tmp_path / "U.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = [f"batch_config.{name}_file={tmp_path / name}.jsonl" for name in "EU"]
    _, results = written(run(*FIRST_ORDER, *files))
    assert results["batches"]["B_E"] == 12
    assert (results["batches"]["B_U"], results["batches"]["G"]) == (2, 4)
    assert results["entropy"]["per_sequence"]["value"] > 0


def test_a_hand_written_U_without_rewards_is_rewarded_by_the_task(run, tmp_path):
    rows = [{"prompt": PROMPTS[0], "response": str(i % 3 + 1), "reference": "2"} for i in range(6)]
    (tmp_path / "U.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _, results = written(run(*FIRST_ORDER, f"batch_config.U_file={tmp_path / 'U.jsonl'}"))
    assert results["batches"]["U"]["mean_reward"] == pytest.approx(1 / 3)


def test_several_checkpoints_get_a_folder_each_and_one_table(tiny, run):
    paths = f"checkpoint.checkpoint_path=['{tiny}/step_*', '{tiny}/checkpoint-8']"
    made = run("estimator.order=0", "estimator.eta_list=[1e-3]", paths)
    assert list(made.measurements) == ["step_4", "step_8"]
    table = pd.read_parquet(made.folder / "measurements" / "all.parquet")
    assert table["checkpoint"].tolist() == ["step_4", "step_8"]
    assert made.results[0].to_dict()["sweep"] != made.results[1].to_dict()["sweep"]


def test_collapsed_weights_give_a_value_a_verdict_and_fresh_responses(run):
    rates = ("estimator.eta_list=[0.3]", "estimator.resample_collapsed=true")
    _, results = written(run(*SHARED, *rates, "estimator.order=0", "batch_config.B_E=40"))
    (row,) = results["sweep"]
    assert row["verdict"] == "resample"
    assert row["delta_h"] is not None
    assert row["delta_h_ci_low"] is None
    assert row["resampled"]["method"] == "resampled"
    assert any("collapsed" in sentence for sentence in results["warnings"])


def test_fresh_responses_may_be_the_method(run):
    method = ("estimator.method=resampled", "estimator.eta_list=[0.3]")
    _, results = written(run(*FIRST_ORDER, *method))
    (row,) = results["sweep"]
    assert (row["method"], row["ess"], row["khat"]) == ("resampled", None, None)
    assert results["first_order"]["method"] == "prefix"


def test_a_stage_in_bfloat16_leaves_the_policy_as_it_was_to_the_bit(tiny):
    policy = Policy.from_checkpoint(tiny / "step_4", precision="float32")
    batch = Rollouts([[3, 13, 4, 14]], [[5, 1]], [0])
    before, theta = score(policy, batch), {n: p.clone() for n, p in policy.theta.items()}
    with at_precision(policy, "bfloat16"):
        assert next(policy.model.parameters()).dtype == torch.bfloat16
    assert all(torch.equal(p, theta[n]) for n, p in policy.theta.items())
    assert torch.equal(score(policy, batch).logprobs, before.logprobs)
    assert policy.precision.runtime_dtype == "float32"


def test_a_sampler_in_bfloat16_is_corrected_for(run):
    given = (*SHARED, "estimator.order=0", "batch_config.B_E=24")
    _, exact = written(run(*given))
    _, results = written(run(*given, "precision.sampler_dtype=bfloat16", name="rough"))
    h, h0 = (r["entropy"]["per_sequence"]["value"] for r in (results, exact))
    assert h == pytest.approx(h0, rel=1e-2)
    assert results["policy"]["precision"]["sampling"]["runtime_dtype"] == "bfloat16"


def test_a_failure_leaves_no_results(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no disk")

    monkeypatch.setattr("isentrope.verbs.loop.resolved_content", fail)
    with pytest.raises(RuntimeError, match="no disk"):
        run("estimator.order=0")
    assert not (tmp_path / "run").exists()


def test_what_was_measured_before_a_failure_stays(run, tiny, tmp_path):
    bad = tmp_path / "step_9"
    shutil.copytree(tiny / "step_4", bad)
    (bad / "optimizer.pt").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        run("estimator.order=0", f"checkpoint.checkpoint_path=['{tiny}/step_4', '{bad}']")
    made = [p.name for p in (tmp_path / "run" / "measurements").iterdir()]
    assert made == ["measure_step_4"]


def test_a_figure_that_cannot_be_drawn_does_not_cost_the_measurement(tiny, tmp_path, caplog):
    def draw(result):
        raise OverflowError("cannot convert float infinity to integer")

    where = [f"output.directory={tmp_path / 'run'}", *FIRST_ORDER]
    folder, results = written(measure(load_config(settings(tiny), where), draw=draw))
    assert results["sweep"]
    assert not list(folder.glob("*.png"))
    assert "The figure is left out: its numbers cannot be drawn (cannot convert" in caplog.text


def test_the_dictionary_of_the_notes_is_enough(tiny, tmp_path):
    order = {"order": 1, "eta_list": [1e-3]}
    config = settings(tiny, output={"directory": str(tmp_path / "run")}, estimator=order)
    results = ise.EntropyMeasurements(config).run_experiments()
    assert (results["B_E"], results["B_U"]) == (12, 3)
    assert results["timing"]["total"] > 0
    for row in results["sweep"]:
        assert set(row) >= {"eta", "delta_h", "first_order"}
    assert results["run_folder"] == str(tmp_path / "run")


def test_a_batch_from_a_file_keeps_its_length_and_its_advantages(run, once, tmp_path):
    first, _ = once("measure", *SAVED)
    U = Rollouts.load(first / "U.parquet")
    U = U.with_columns(advantages=2 * U.advantages, max_new_tokens=7)
    U.save(tmp_path / "own.parquet")
    file = f"batch_config.U_file={tmp_path / 'own.parquet'}"
    settings = (*SHARED, "estimator.order=0", file)
    norms = [
        written(run(*settings, *more, name=name))[1]["step"]["gradient_norm"]
        for name, more in (
            ("own", ()),
            ("told", ("estimator.max_response_length=14",)),
            ("anew", ("estimator.advantages=dr_grpo",)),
        )
    ]
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-9)
    assert norms[0] == pytest.approx(2 * norms[2], rel=1e-9)
