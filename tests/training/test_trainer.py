import json
import logging
from functools import cache

import pandas as pd
import pytest
import torch

from isentrope import Policy, Precision
from isentrope.checkpoint.record.contract import read_contract
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.training import trainer as trainer_module
from isentrope.update.step import compute_step
from isentrope.verbs.batches import at_precision
from tests.training import runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Train with options, once for all tests that ask for the same ones; they only read it."""
    logged = []
    handler = logging.Handler()
    handler.emit = logged.append

    @cache
    def trained(**options):
        folder = tmp_path_factory.mktemp("ran")
        logged.clear()
        logging.getLogger("isentrope").addHandler(handler)
        made = runs.trainer(folder, **options)
        made.train()
        logging.getLogger("isentrope").removeHandler(handler)
        return folder, made, [r.getMessage() for r in logged if r.levelno >= logging.WARNING]

    return trained


def replayed(folder, step, objective="recorded", precision="float64", micro_batch=None):
    """(v rebuilt from the contract, the recorded Δθ/η) of step → step + 1."""
    here = folder / "training_state" / f"step_{step}"
    there = folder / "training_state" / f"step_{step + 1}"
    policy, moved = (Policy.from_checkpoint(f, precision="float64") for f in (here, there))
    U, update = read_next_update(here)
    with at_precision(policy, precision):
        options = {"max_grad_norm": update["max_grad_norm"], "micro_batch": micro_batch}
        found = compute_step(policy, U, here, objective=objective, **options)
    assert found.matched_by == "sidecar"
    rel = 1e-5 if precision == "float64" else 1e-2
    assert found.gradient_norm == pytest.approx(update["gradient_norm"], rel=rel)
    rate = update["learning_rate"]
    taken = {n: (moved.theta[n] - p) / rate for n, p in policy.theta.items()}
    return found.direction, taken


@pytest.mark.parametrize(
    ("options", "objective"),
    [
        ({}, "dr_grpo"),
        ({"longest": True}, "dr_grpo_longest"),
        ({"loss_type": "grpo", "scale_rewards": "group"}, "recorded"),
        ({"lr_scheduler_type": "linear", "weight_decay": 0.1}, "dr_grpo"),
    ],
)
def test_every_step_is_rebuilt_from_its_contract(ran, options, objective):
    folder, *_ = ran(**options)
    for step in (1, runs.STEPS - 1):
        for way in {"recorded", objective}:
            assert runs.relative(*replayed(folder, step, way)) < 1e-5


def test_a_step_of_mixed_precision_is_rebuilt_from_its_first_in_mixed_precision(ran):
    folder, *_ = ran(bf16=True)
    mixed, exact = Precision("float32", autocast="bfloat16"), Precision("float32")
    half = runs.GROUPS * runs.SIZE // 2  # each backward pass is rounded
    for step in (0, runs.STEPS - 1):
        assert runs.relative(*replayed(folder, step, "dr_grpo", mixed, half)) < 1e-5
        assert runs.relative(*replayed(folder, step, "dr_grpo", exact, half)) > 1e-3


def test_a_step_that_uses_its_batch_again_is_rebuilt_too(tmp_path):
    made = runs.trainer(tmp_path, num_iterations=2, steps=2)
    made.train()
    assert runs.relative(*replayed(tmp_path, 1)) < 1e-5
    first, second = (runs.lines(tmp_path)[i]["policy_ratio/log_max"] for i in (0, 1))
    assert first < 1e-5 < 1e-4 < second


@pytest.mark.parametrize(
    "weighting", [pytest.param("uniform", marks=pytest.mark.slow), "difficulty"]
)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path, weighting):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    runs.trainer(whole, probe=runs.probe(), weighting=weighting, steps=3).train()
    runs.trainer(parts, probe=runs.probe(), weighting=weighting, steps=2).train()
    again = runs.trainer(parts, probe=runs.probe(), weighting=weighting, steps=3)
    checkpoint = again.files.latest()
    again.files.rewind(2)
    again.restore(checkpoint)
    again.train(resume_from_checkpoint=str(checkpoint))
    for name in ("training_state/step_3/adapter_model.safetensors", "logs/metrics.jsonl"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    for name in ("optimizer.pt", "isentrope_state.json"):
        one, other = (f / "training_state" / "step_3" / name for f in (whole, parts))
        assert one.read_bytes() == other.read_bytes()


def test_batches_are_full_of_groups_with_an_advantage_and_the_rest_is_counted(ran):
    folder, *_ = ran()
    for line in runs.lines(folder):
        assert line["drawn"] - line["rejected"] == runs.GROUPS
        assert line["rejected"] == line["all_right"] + line["all_wrong"]
    assert sum(line["rejected"] for line in runs.lines(folder)) > 0
    table = pd.read_parquet(folder / "logs" / "rollouts" / "step_2.parquet")
    assert (table.groupby("prompt_index").reward.nunique() == 2).all()
    assert list(table.groupby("prompt_index").size()) == [runs.SIZE] * runs.GROUPS


def test_the_table_of_rollouts_holds_ids_texts_and_per_token_numbers(ran):
    folder, *_ = ran()
    table = pd.read_parquet(folder / "logs" / "rollouts" / "step_1.parquet")
    for _, row in table.iterrows():
        for name in ("sampler_logprobs", "logprobs", "entropies", "token_weights"):
            assert len(row[name]) == len(row.response_ids) == row.length
        assert row.prompt_key.startswith("short/")
        assert row.difficulty == 0.5
    assert abs(table.logprobs.explode() - table.sampler_logprobs.explode()).max() < 1e-5


def test_on_policy_the_policy_ratio_is_one_and_else_it_is_said(ran, tmp_path, caplog):
    folder, _, warnings = ran()
    assert all(line["policy_ratio/log_max"] < 1e-5 for line in runs.lines(folder))
    assert not warnings
    made = runs.trainer(tmp_path, steps=1)
    plain = made.batches.draw

    def warmer(policy, step, respond):
        policy.temperature = 1.5
        try:
            return plain(policy, step, respond)
        finally:
            policy.temperature = 1.0

    made.batches.draw = warmer
    made.train()
    assert "not on-policy to rounding" in caplog.text


def test_a_checkpoint_carries_its_contract(ran):
    folder, made, _ = ran()
    contract = read_contract(folder / "training_state" / "step_3")
    assert contract["step"] == 3
    assert contract["learning_rate_next"] == 1e-2
    assert contract["trainable"] == {n: list(p.shape) for n, p in made.policy.theta.items()}
    names = json.loads((folder / "training_state/step_3/parameter_names.json").read_text())
    assert [n for group in names for n in group] == list(made.policy.names)


def test_only_whole_checkpoints_are_left_and_old_ones_go(tmp_path):
    made = runs.trainer(tmp_path)
    made.keep = (1, 2)
    made.train()
    assert sorted(p.name for p in made.files.checkpoints.iterdir()) == [
        "step_0",
        "step_2",
        "step_4",
    ]


def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_so(tmp_path, monkeypatch):
    made = runs.trainer(tmp_path)
    whole = trainer_module.write_contract

    def full(folder, contract, names):
        if contract["step"] == 3:
            raise OSError(28, "No space left on device")
        whole(folder, contract, names)

    monkeypatch.setattr(trainer_module, "write_contract", full)
    with pytest.raises(OSError, match=r"Step 3 .*No space left.*step_2"):
        made.train()
    names = [f"step_{step}" for step in range(3)]
    assert sorted(p.name for p in made.files.checkpoints.iterdir()) == names
    Policy.from_checkpoint(made.files.latest(), precision="float32")


def test_the_longest_normaliser_scales_each_group_by_its_longest_response(ran):
    constant, scaled = (
        pd.read_parquet(folder / "logs/rollouts/step_1.parquet")
        for folder, *_ in (ran(), ran(longest=True))
    )
    factor = runs.LENGTH / constant.groupby("prompt_index").length.transform("max")
    for one, other, by in zip(constant.token_weights, scaled.token_weights, factor, strict=True):
        torch.testing.assert_close(torch.tensor(other), torch.tensor(one) * by, rtol=1e-5, atol=0)


MICRO_BATCHES = {
    1: {"per_device_train_batch_size": runs.GROUPS * runs.SIZE, "gradient_accumulation_steps": 1},
    2: {},
    4: {"per_device_train_batch_size": runs.SIZE, "gradient_accumulation_steps": 4},
}


@pytest.mark.parametrize(("parts", "coefficient"), [(1, 0.01), (2, 2.0), (4, 2.0)])
def test_a_step_with_an_entropy_bonus_is_rebuilt_from_both_cotangents(ran, parts, coefficient):
    folder, *_ = ran(steps=2, entropy_coef=coefficient, **MICRO_BATCHES[parts])
    assert runs.relative(*replayed(folder, 1)) < 1e-5
    U, _ = read_next_update(folder / "training_state" / "step_1")
    # TRL's bonus is the mean over the tokens of a micro-batch, then over micro-batches
    size = len(U) // parts
    for i in range(parts):
        here = U.select(range(i * size, (i + 1) * size))
        expected = coefficient / (parts * float(here.lengths.sum()))
        weights = torch.cat(here.entropy_weights)
        torch.testing.assert_close(weights, torch.full_like(weights, expected), rtol=1e-5, atol=0)


def test_without_the_entropy_weights_the_step_is_another(ran):
    folder = ran(steps=2, entropy_coef=2.0)[0] / "training_state" / "step_1"
    U, update = read_next_update(folder)
    policy = Policy.from_checkpoint(folder, precision="float64")
    steps = [
        compute_step(policy, batch, folder, objective="recorded")
        for batch in (U, U.with_columns(entropy_weights=None))
    ]
    assert steps[0].gradient_norm == pytest.approx(update["gradient_norm"], rel=1e-5)
    assert steps[1].gradient_norm != pytest.approx(update["gradient_norm"], rel=1e-2)


def test_the_table_of_rollouts_has_entropy_weights_where_there_are_any(ran):
    plain, bonus = (
        pd.read_parquet(folder / "logs/rollouts/step_1.parquet")
        for folder, *_ in (ran(), ran(steps=2, entropy_coef=2.0))
    )
    assert "entropy_weights" not in plain
    assert all(len(row.entropy_weights) == row.length for row in bonus.itertuples())


def test_an_adaptive_bonus_is_rebuilt_while_it_acts_and_leaves_no_column_while_it_does_not(
    tmp_path,
):
    for name, target in (("acts", 9.0), ("rests", 0.0)):
        options = {"use_adaptive_entropy": True, "entropy_coef": 2.0, "entropy_target": target}
        options |= {"entropy_coef_max": 4.0}
        runs.trainer(tmp_path / name, steps=3, **options).train()
        assert runs.relative(*replayed(tmp_path / name, 2)) < 1e-5
        U, _ = read_next_update(tmp_path / name / "training_state" / "step_2")
        assert (U.entropy_weights is None) == (name == "rests")
