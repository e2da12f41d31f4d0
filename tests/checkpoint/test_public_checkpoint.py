"""A checkpoint from its path alone: what Python takes from it is what the command line takes."""

import json
import shutil

import pytest
import torch
import trl

import isentrope as ise
from tests.tiny_checkpoint import PROMPTS, settings, weighted_batch


@pytest.fixture
def folder(tiny, tmp_path):
    """A tiny checkpoint whose trainer state has two settings of training."""
    shutil.copytree(tiny, tmp_path / "made")
    folder = tmp_path / "made" / "step_4"
    state = {"global_step": 4, "temperature": 0.7, "max_grad_norm": 1e-4}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def drawn(policy):
    U = ise.sample(policy, PROMPTS[:4], 4, 4, max_new_tokens=3, seed=3)
    return ise.with_advantages(U.with_columns(rewards=torch.arange(16) % 5 / 4.0), "dr_grpo")


def test_a_path_gives_settings_policy_and_step(folder):
    checkpoint = ise.Checkpoint(folder)
    assert checkpoint.settings["estimator.max_grad_norm"] == ise.Setting(1e-4, "trainer_state.json")
    policy = checkpoint.policy()
    assert policy.temperature == 0.7
    step = checkpoint.step(policy, drawn(policy))
    assert step.clip_factor < 1
    assert step.clip_factor == ise.optimizer_step(policy, drawn(policy), folder).clip_factor
    assert checkpoint.recorded_step is None
    assert {shape for name, shape in checkpoint.shapes.items() if "lora_A" in name} == {(2, 32)}


def test_its_step_is_the_one_that_measure_takes(folder, tmp_path):
    checkpoint = ise.Checkpoint(folder)
    policy = checkpoint.policy().convert("float64")
    U = drawn(policy)
    U.save(tmp_path / "U.parquet")
    step = checkpoint.step(policy, U)
    content = settings(folder.parent, batch_config={"U_file": str(tmp_path / "U.parquet")})
    content["sampling"].pop("temperature", None)
    content["output"] = {"directory": str(tmp_path / "out")}
    content["batch_config"]["allow_overlap"] = True
    (tmp_path / "measure.json").write_text(json.dumps(content))
    measured = ise.EntropyMeasurements(str(tmp_path / "measure.json")).run_experiments()
    assert measured["step"]["gradient_norm"] == pytest.approx(step.gradient_norm, rel=1e-9)
    assert measured["step"]["clip_factor"] == pytest.approx(step.clip_factor, rel=1e-9)
    assert measured["warnings"][: len(step.warnings)] == [*step.warnings]


def test_weights_that_training_recorded_make_the_step_whatever_its_loss_was(folder):
    beta = {"beta": 0.04}  # a term that no objective has
    training = trl.GRPOConfig(str(folder), use_cpu=True, bf16=False, report_to="none", **beta)
    torch.save(training, folder / "training_args.bin")
    checkpoint = ise.Checkpoint(folder)
    policy = checkpoint.policy(temperature=1.0)
    U = weighted_batch(policy.tokenizer)
    replayed = checkpoint.step(policy, U)
    assert replayed.direction.keys() == policy.theta.keys()
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the key says which
        checkpoint.step(policy, U.with_columns(token_weights=None, advantages=torch.ones(8)))
    assert "beta" in str(refusal.value)


def test_an_override_is_compared_with_training(folder):
    checkpoint = ise.Checkpoint(folder)
    policy = checkpoint.policy()
    U = drawn(policy)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the key says which
        checkpoint.step(policy, U, {"max_grad_norm": 1.0})
    assert "estimator.max_grad_norm" in str(refusal.value)
    allowed = {"max_grad_norm": 1.0, "ignore_training_settings": ["estimator.max_grad_norm"]}
    assert "NOT TRAINING'S STEP" in " ".join(checkpoint.step(policy, U, allowed).warnings)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the key says which
        checkpoint.step(policy, U, {"eta_list": [1e-3]})
    assert "eta_list" in str(refusal.value)


def test_what_is_not_there_is_said_at_once(folder, tmp_path):
    with pytest.raises(FileNotFoundError):
        ise.Checkpoint(tmp_path / "step_5")
    (folder / "optimizer.pt").unlink()
    with pytest.raises(FileNotFoundError):
        _ = ise.Checkpoint(folder).optimizer
    policy = ise.Checkpoint(folder).policy()
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the folder says which
        ise.Checkpoint(folder).step(policy)
    assert "next_update" in str(refusal.value)


def test_a_folder_of_checkpoints_is_no_checkpoint_without_settings(folder):
    with pytest.raises(FileNotFoundError) as refused:
        ise.Checkpoint(folder.parent)
    assert f"such as {folder.parent}" in str(refused.value)
