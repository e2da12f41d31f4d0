import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from isentrope import Policy, sample, with_advantages
from isentrope.cli.demo_settings import chapters
from isentrope.sampling.tasks.addition import longest_response
from tests.command_line import call, said
from tests.tiny_checkpoint import PROMPTS, copied, settings


@pytest.fixture
def own(tiny, tmp_path):
    """A checkpoint to be broken, and the path of a configuration of it."""
    folder = copied(tiny, tmp_path / "own")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings(folder)))
    return folder / "step_4", path


def test_a_sound_checkpoint_is_fit_to_be_measured(own):
    result = call("check", "--details", own[1], "--set", "batch_config.B_E=64", status=0)
    assert "Can be measured" in result.output
    assert "E[surprisal] = E[H]" in result.output
    line = f"Next: isentrope measure {own[1]} --set batch_config.B_E=64"
    assert line in result.output.splitlines()


def test_a_checkpoint_folder_is_checked_without_data_set_and_rewards(own):
    quick = ["batch_config.B_E=64", "batch_config.B_U=2", "sampling.max_new_tokens=4"]
    result = call("check", "--details", own[0], *(x for s in quick for x in ("--set", s)), status=0)
    assert "no data set was given: 64 responses" in said(result)
    assert "matched by sidecar" in said(result)
    assert f"Next: isentrope measure {own[0]} --prompts FILE --reward FILE.py:NAME" in result.output


@pytest.mark.parametrize("setting", ["estimator.objective=recorded", "estimator.off_policy=true"])
def test_a_replayed_batch_is_not_needed(own, setting):
    result = call("check", "--details", own[1], "--set", setting, "--set", "batch_config.B_E=64")
    assert "rounding floor" in said(result), result.output


def test_rewards_that_are_all_equal_do_not_stop_the_checks(own, tmp_path):
    prompts = tmp_path / "unsolved.jsonl"
    prompts.write_text('{"prompt": "1+1=", "reference": "99"}')
    result = call("check", "--details", own[1], "--set", f"batch_config.dataset_path={prompts}")
    assert "0 of 3 groups have an advantage" in said(result)
    assert "rounding floor" in said(result)


def test_other_settings_than_in_training_are_named(own):
    checkpoint, config = own
    trained = {"temperature": 0.7, "max_grad_norm": 1.0}
    (checkpoint / "trainer_state.json").write_text(json.dumps(trained))
    result = call("check", "--details", config, "--set", "sampling.temperature=1.0", status=1)
    assert "sampling.temperature is 1.0, training had 0.7" in said(result)


def test_settings_that_are_left_out_are_those_of_training(own):
    checkpoint, config = own
    (checkpoint / "trainer_state.json").write_text(json.dumps({"temperature": 0.7}))
    result = call("check", "--details", config)
    assert "as in training: sampling.temperature" in said(result)
    assert "sampler = scorer" in said(result)


def test_advantages_of_another_rule_are_found_as_measure_finds_them(own):
    checkpoint, config = own
    policy = Policy.from_checkpoint(checkpoint)
    U = sample(policy, PROMPTS[:4], 4, 4, max_new_tokens=3, seed=3)
    U = with_advantages(U.with_columns(rewards=torch.arange(16) % 5 / 4.0), "dr_grpo")
    file = U.save(checkpoint.parent / "U.parquet")
    (checkpoint / "trainer_state.json").write_text(json.dumps({"advantages": "grpo"}))
    given = [f"batch_config.U_file={file}", "batch_config.allow_overlap=true"]
    result = call("check", "--details", config, *(x for s in given for x in ("--set", s)), status=1)
    assert "U's advantages are those of dr_grpo, training had grpo" in said(result)


def test_an_adapter_trained_with_dropout_is_found(own):
    checkpoint, config = own
    adapter = json.loads((checkpoint / "adapter_config.json").read_text())
    adapter["lora_dropout"] = 0.05
    (checkpoint / "adapter_config.json").write_text(json.dumps(adapter))
    result = call("check", "--details", config, status=1)
    assert "lora_dropout" in said(result)


def test_an_adapter_of_zeros_is_named_and_the_other_checks_are_made(own):
    checkpoint, config = own
    path = checkpoint / "adapter_model.safetensors"
    save_file({name: 0 * x for name, x in load_file(path).items()}, path)
    result = call("check", "--details", config, status=1)
    assert "factors are all zero" in said(result)
    assert "nats per sequence in float64" in said(result)
    assert "direction is zero" not in said(result)


def test_a_missing_checkpoint_is_one_sentence(own):
    result = call(
        "check", "--details", own[1], "--set", "checkpoint.checkpoint_path=nowhere", status=1
    )
    assert "There is no checkpoint folder nowhere" in said(result)


def test_every_chapter_of_the_demo_is_a_configuration_that_its_verb_takes(tmp_path):
    folder = tmp_path / 'a "b" c: d'
    tuned, trained, evaluated, measured = chapters(folder, 40, 5, 256, 3)
    assert tuned.fine_tuning.warmup_steps == 5
    assert trained.sampling.max_new_tokens == longest_response(2)
    assert evaluated.sampling.max_new_tokens == longest_response(2)
    assert measured.batch_config.B_E == 256
    assert measured.output.directory == str(folder)


def test_the_demo_does_not_write_over_anything(tmp_path):
    (tmp_path / "precious").write_text("x")
    result = call("demo", "--out", tmp_path, status=1)
    assert "is not empty" in said(result)


def test_what_is_not_there_is_answered_by_both_kinds(tmp_path):
    result = call("check", "--details", tmp_path / "nope", status=1)
    assert "the folder of a checkpoint, or a configuration (a YAML file)" in said(result)


def test_own_prompts_and_responses_have_room_in_any_model(own):
    few = ["batch_config.B_E=64", "batch_config.B_U=2", "sampling.max_new_tokens=40"]
    (own[0] / "trainer_state.json").write_text(json.dumps({"temperature": 0.7}))
    few.append("sampling.temperature=1.0")
    result = call("check", "--details", own[0], *(x for s in few for x in ("--set", s)))
    assert "training had 0.7" in said(result), result.output
    assert "Omit the prompt" not in said(result)
