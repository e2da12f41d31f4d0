"""Checkpoints whose optimizer or weights are not what they seem, through measure and check."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from isentrope import Policy, Rollouts, entropy_change
from isentrope.cli.commands import MEASURING
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.results.answers.measure import summary_lines
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.update.optimizer_rules import short_types
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.rounding import rounded_step
from isentrope.update.step import compute_step
from isentrope.verbs.check import check
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import PROMPTS, in_bfloat16, settings


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of step_4 to be changed."""
    shutil.copytree(tiny / "step_4", tmp_path / "step_4")
    return tmp_path / "step_4"


@pytest.fixture
def config(tiny, tmp_path):
    def made(path, *overrides):
        where = [f"checkpoint.checkpoint_path={path}", f"output.directory={tmp_path / 'run'}"]
        fast = ["estimator.order=1", "estimator.eta_list=[1e-3]", "analysis.price=false"]
        return load_config(settings(tiny), [*where, *fast, *overrides])

    return made


def findings(configuration):
    (found,) = check(configuration).values()
    return {f.name: f for f in found}


def change_state(folder, change):
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "optimizer.pt")


def two_groups(folder, rates=(1e-3, 2e-3)):
    """The state in two groups of other rates, and a contract that says so."""
    names = json.loads((folder / "parameter_names.json").read_text())
    half = len(names) // 2

    def split(state):
        (group,) = state["param_groups"]
        parts = (group["params"][:half], group["params"][half:])
        state["param_groups"] = [
            group | {"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)
        ]

    change_state(folder, split)
    (folder / "parameter_names.json").write_text(json.dumps([names[:half], names[half:]]))
    groups = [{"lr": 1e-3, "weight_decay": 0.01}, {"lr": 2e-3, "weight_decay": 0.01}]
    (folder / "contract.json").write_text(json.dumps({"param_groups": groups}))


def test_weights_in_16_bits_are_refused_until_it_is_said_which_step_is_meant(
    tiny, tmp_path, config
):
    short = in_bfloat16(tiny / "step_4", tmp_path / "short")
    with pytest.raises(ValueError, match=r"bfloat16 parameters move.*rounded_step=true.*master_we"):
        measure(config(short))
    found = findings(config(short))["the step survives rounding"]
    assert found.passed is False
    assert "rounded_step=true" in found.advice
    (told,) = measure(config(short, "estimator.rounded_step=false")).results
    assert any("THIS IS NOT THE STEP THAT TRAINING TAKES" in w for w in told.warnings)
    assert told.step.rounding.dtype == "bfloat16"
    assert findings(config(tiny / "step_4"))["the step survives rounding"].passed


def test_a_float32_copy_of_the_weights_rounds_nothing(tiny, tmp_path, config):
    short = in_bfloat16(tiny / "step_4", tmp_path / "short")
    (said,) = measure(config(short, "checkpoint.master_weights=true")).results
    assert said.step.rounding is None
    shutil.copy(tiny / "step_4" / "optimizer.pt", short)  # moments of float32
    assert findings(config(short))["the step survives rounding"].passed


def test_the_rounded_step_is_measured_at_every_rate(tiny, tmp_path, config):
    short = in_bfloat16(tiny / "step_4", tmp_path / "short")
    rates = "estimator.eta_list=[1e-4, 1e-3]"
    saved = ("estimator.rounded_step=true", "batch_config.save_batches=true", rates)
    run = measure(config(short, *saved))
    (where,), (said,) = run.measurements.values(), run.results
    policy = Policy.from_checkpoint(short)
    E, U = (Rollouts.load(where / f"{name}.parquet") for name in "EU")
    step = compute_step(policy, U, short, max_response_length=3, max_grad_norm=1.0)
    assert any("moments are of 16 bits" in w for w in step.warnings)
    state = load_optimizer_state(policy, short)
    types = short_types(policy, state.types, {})
    for row in said.sweep:
        direction = rounded_step(policy, state, step, types, row.eta).direction
        point = entropy_change(policy, E, direction, [row.eta], order=0).points[0]
        assert row.change.value == pytest.approx(point.change.value, rel=1e-9)
    parts = sum(said.budget[n].value for n in ("momentum", "decay", "gradient", "rounding"))
    assert parts == pytest.approx(said.first_order.value, rel=1e-9)
    with pytest.raises(ValueError, match="rounded_step=true"):
        run_verb(MEASURING["influence"], config(short, "estimator.rounded_step=true"))


def test_rates_of_all_groups_are_told_and_exchanged_ones_noticed(folder, config):
    two_groups(folder)
    (said,) = measure(config(folder)).results
    assert [(g["lr"], g["tensors"]) for g in said.step.param_groups] == [
        (1e-3, 2),
        (2e-3, 2),
    ]
    assert any("the others move at 2 times η" in w for w in said.warnings)
    assert not any("NOT THOSE OF TRAINING" in w for w in said.warnings)
    rates = findings(config(folder))["rates of the param groups"]
    assert rates.passed, rates


def test_exchanged_rates_are_noticed(folder, config):
    two_groups(folder, (2e-3, 1e-3))
    (said,) = measure(config(folder)).results
    assert any("NOT THOSE OF TRAINING (contract.json)" in w for w in said.warnings)
    assert findings(config(folder))["rates of the param groups"].passed is False


def test_a_match_by_order_is_not_called_confirmed_where_matrices_are_too_small(folder, config):
    (folder / "parameter_names.json").unlink()
    (said,) = measure(config(folder, "batch_config.B_U=6")).results
    assert said.step.order_confirmed is None
    assert any("second moments do not decide" in w for w in said.warnings)


def switch_off(folder, moments):
    weights = load_file(folder / "adapter_model.safetensors")
    key = next(k for k in weights if "0.self_attn.v_proj.lora_B" in k)
    weights[key].zero_()
    save_file(weights, folder / "adapter_model.safetensors")
    names = json.loads((folder / "parameter_names.json").read_text())
    index = next(i for i, n in enumerate(names) if "0.self_attn.v_proj.lora_B" in n)
    if moments:
        change_state(
            folder, lambda s: [s["state"][index][k].zero_() for k in ("exp_avg", "exp_avg_sq")]
        )


def test_a_layer_that_is_zero_on_disk_and_in_the_model_is_flagged(folder, config):
    switch_off(folder, moments=False)
    found = findings(config(folder))["adapter loaded"]
    assert found.passed is False
    assert "1 of 2 factors are all zero, the first is" in found.detail
    switch_off(folder, moments=True)
    found = findings(config(folder))["adapter loaded"]
    assert found.passed
    assert "no gradient has reached them" in found.detail


def test_E_leaves_out_the_prompts_of_U_however_they_are_called(tiny, tmp_path, config):
    encode = character_tokenizer()
    prompts = [encode(p)["input_ids"] for p in PROMPTS[:20]]
    U = Rollouts(
        prompt_ids=[p for p in prompts for _ in range(2)],
        response_ids=[encode(str(1 + i % 2))["input_ids"] for i in range(40)],
        prompt_index=[i // 2 for i in range(40)],
        rewards=[float(i % 2) for i in range(40)],
    )
    U.save(tmp_path / "U.parquet")
    overrides = [f"batch_config.U_file={tmp_path / 'U.parquet'}", "batch_config.save_batches=true"]
    run = measure(config(tiny / "step_4", *overrides))
    (where,) = run.measurements.values()
    E = Rollouts.load(where / "E.parquet")
    assert {tuple(p.tolist()) for p in E.prompt_ids} <= {
        tuple(encode(p)["input_ids"]) for p in PROMPTS[20:]
    }


def test_a_rate_that_is_not_the_schedules_is_noted(folder, config):
    torch.save({"_last_lr": [1e-5], "last_epoch": 4}, folder / "scheduler.pt")
    (said,) = measure(config(folder)).results
    note = next(summary_lines(said))  # on the first screen
    assert "(scheduler.pt): lr of" in note
    assert "1e-05" in note


def test_an_optimizer_and_schedule_that_began_anew_are_noted(folder, config):
    late = folder.rename(folder.with_name("checkpoint-200"))
    (late / "trainer_state.json").write_text(json.dumps({"global_step": 200}))
    torch.save({"_last_lr": [1e-3], "last_epoch": 4}, late / "scheduler.pt")
    (said,) = measure(config(late)).results
    assert "counted 4 steps, and checkpoint-200 is of step 200" in next(summary_lines(said))
