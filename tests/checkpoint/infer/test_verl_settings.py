"""The settings of a verl run are read as training arguments are, and refused by verl's names."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import isentrope as ise
from isentrope import with_advantages
from isentrope.checkpoint.files import VERL_SETTINGS
from isentrope.checkpoint.in_force import refuse
from isentrope.checkpoint.infer.fields import require_known_settings
from isentrope.checkpoint.infer.logged_texts import read_logged_texts
from isentrope.checkpoint.infer.settings import obstacles_of
from isentrope.checkpoint.infer.step import Use
from isentrope.checkpoint.infer.unshown import notes_on_arguments
from isentrope.checkpoint.infer.verl_settings import LOSSES
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.system.errors import FileError
from isentrope.update.objective import token_weights
from tests.checkpoint.infer.test_logged_texts import ROWS
from tests.sampling.conftest import tiny_policy

CONTENT = {
    "actor_rollout_ref": {
        "actor": {
            "clip_ratio": 0.3,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
            "clip_ratio_c": 3.0,
            "policy_loss": {"loss_mode": "vanilla"},
            "loss_agg_mode": "token-mean",
            "loss_scale_factor": None,
            "entropy_coeff": 0,
            "use_kl_loss": False,
            "ppo_epochs": 1,
            "ppo_mini_batch_size": 8,
            "grad_clip": 0.5,
            "fsdp_config": {"dtype": "float32"},
        },
        "rollout": {"n": 4, "temperature": 0.9, "top_k": -1, "top_p": 1, "name": "???"},
    },
    "data": {"max_response_length": 32, "train_batch_size": 8, "prompt_key": "prompt"},
    "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True},
    "trainer": {"default_local_dir": "checkpoints/${trainer.project_name}"},
}


def settings(folder, **changes):
    """Those of `CONTENT`, with values at dotted places replaced."""
    content = yaml.safe_load(yaml.safe_dump(CONTENT))
    for place, value in changes.items():
        *above, last = place.split(".")
        section = content
        for key in above:
            section = section.setdefault(key, {})
        section[last] = value
    (folder / VERL_SETTINGS).write_text(yaml.safe_dump(content))
    return ise.Checkpoint(folder)


def values(checkpoint):
    return {key: setting.value for key, setting in checkpoint.settings.items()}


ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def test_settings_become_keys_of_the_configuration(tmp_path):
    found = settings(tmp_path)
    assert values(found) == {
        "sampling.temperature": 0.9,
        "sampling.max_new_tokens": 32,
        "batch_config.G": 4,
        "estimator.objective": "dapo",
        "estimator.advantages": "grpo",
        "estimator.max_grad_norm": 0.5,
        "estimator.clip": (0.2, 0.28),
    }
    assert {setting.file for setting in found.settings.values()} == {VERL_SETTINGS}
    assert obstacles_of(found.arguments, Use("dapo")) == []
    assert notes_on_arguments(found.argument_fields, Use("dapo")) == []


def test_dr_grpo_is_read_with_its_constant(tmp_path):
    places = {
        ACTOR + "loss_agg_mode": "seq-mean-token-sum-norm",
        ACTOR + "loss_scale_factor": 64,
        "algorithm.norm_adv_by_std_in_grpo": False,
        ACTOR + "clip_ratio_low": None,
    }
    found = settings(tmp_path, **places)
    assert values(found)["estimator.objective"] == "dr_grpo"
    assert values(found)["estimator.advantages"] == "dr_grpo"
    assert values(found)["estimator.max_response_length"] == 64
    assert values(found)["estimator.clip"] == (0.3, 0.28)
    assert obstacles_of(found.arguments, Use("dr_grpo")) == []


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [
        (ACTOR + "use_kl_loss", True, "actor_rollout_ref.actor.use_kl_loss=True"),
        (ACTOR + "entropy_coeff", 0.01, "entropy_coef=0.01"),
        (ACTOR + "policy_loss.loss_mode", "kl_cov", "loss_mode=kl_cov"),
        (ACTOR + "loss_agg_mode", "a-new-one", "loss_type=a-new-one"),
        (ACTOR + "loss_agg_mode", "seq-mean-token-sum-norm", "loss_scale_factor=None"),
        (ACTOR + "ppo_epochs", 2, "ppo_epochs"),
        (ACTOR + "ppo_mini_batch_size", 2, "ppo_mini_batch_size"),
        (ROLLOUT + "top_p", 0.9, "top_p"),
        (ROLLOUT + "top_k", 50, "top_k"),
        (ROLLOUT + "multi_turn", {"enable": True}, "multi_turn.enable=True"),
        ("algorithm.adv_estimator", "gae", "adv_estimator"),
        ("algorithm.use_kl_in_reward", True, "use_kl_in_reward"),
        ("algorithm.rollout_correction", {"rollout_is": "token"}, "rollout_is"),
        ("algorithm.rollout_correction", {"rollout_rs": "geometric"}, "rollout_rs"),
        ("algorithm.rollout_correction", {"bypass_mode": True}, "bypass_mode"),
        ("algorithm.use_pf_ppo", True, "use_pf_ppo"),
        ("distillation", {"enabled": True}, "distillation"),
        ("trainer.use_legacy_worker_impl", "auto", "use_legacy_worker_impl"),
        ("trainer.v1", {"trainer_mode": "separate_async"}, "trainer_mode"),
    ],
)
def test_what_the_computed_step_lacks_is_refused_by_verls_name(tmp_path, place, value, name):
    (obstacle,) = obstacles_of(settings(tmp_path, **{place: value}).arguments, Use("dapo"))
    assert name in obstacle.words


def test_the_second_clip_is_refused_off_policy_alone(tmp_path):
    (obstacle,) = obstacles_of(settings(tmp_path).arguments, Use("dapo", off_policy=True))
    assert "delta=3.0" in obstacle.words


def test_training_in_bfloat16_is_noted(tmp_path):
    found = settings(tmp_path, **{ACTOR + "fsdp_config.dtype": "bfloat16"})
    (note,) = notes_on_arguments(found.argument_fields, Use("dapo"))
    assert "bf16" in note


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("actor_rollout_ref", {}, "it has no 'actor'"),
        (ROLLOUT + "n", "${oc.select:other,1}", r"rollout.n is \$\{oc.select:other,1\}"),
        ("trainer", "none", r"verl\.yaml cannot be read"),
    ],
)
def test_settings_of_something_else_are_refused(tmp_path, place, value, message):
    with pytest.raises(FileError, match=message):
        _ = settings(tmp_path, **{place: value}).settings


def test_a_file_that_is_no_yaml_is_refused(tmp_path):
    (tmp_path / VERL_SETTINGS).write_text("a: [")
    with pytest.raises(FileError, match=r"verl\.yaml"):
        _ = ise.Checkpoint(tmp_path).settings


def test_a_refused_setting_may_be_acknowledged(tmp_path):
    (obstacle,) = obstacles_of(
        settings(tmp_path, **{ACTOR + "use_kl_loss": True}).arguments, Use("dapo")
    )
    require_known_settings([obstacle.name])
    refuse([obstacle], ["verl"], "a checkpoint")
    with pytest.raises(ValueError, match=r"use_kl_loss=True.*ignore_training_settings: \[verl\]"):
        refuse([obstacle], [], "a checkpoint")


@pytest.fixture(scope="module")
def core():
    """verl's own losses and advantages."""
    return pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")


def batch():
    """Two groups, with responses of other lengths."""
    lengths = [2, 3, 1, 2]
    return ise.Rollouts(
        prompt_ids=[torch.ones(2, dtype=torch.long)] * 4,
        response_ids=[torch.ones(n, dtype=torch.long) for n in lengths],
        prompt_index=[0, 0, 1, 1],
        rewards=[1.0, 0.0, 0.25, 1.0],
    )


@pytest.mark.parametrize("mode", LOSSES)
def test_the_weights_are_those_of_verls_own_loss(core, mode):
    from omegaconf import OmegaConf

    U = with_advantages(batch(), "grpo")
    mask = U.mask.double()
    rewards = torch.zeros_like(mask)
    rewards[:, 0] = U.rewards
    index = np.array(U.prompt_index.tolist())
    advantages, _ = core.compute_grpo_outcome_advantage(rewards, mask, index)
    s = torch.zeros_like(mask, requires_grad=True)
    whole = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(U)}
    config = OmegaConf.create(
        {
            **{"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
            **{"clip_ratio_c": 3.0, "global_batch_info": {**whole, "loss_scale_factor": 7}},
        }
    )
    loss, _ = core.compute_policy_loss_vanilla(s.detach(), s, advantages, mask, mode, config)
    loss.backward()
    length = 7 if LOSSES[mode] == "dr_grpo" else None
    ours = token_weights(U, LOSSES[mode], length)
    # beside the standard deviation verl has 1e-6, and TRL and the rule grpo 1e-4
    assert (-s.grad - ours).abs().max() < 3e-4 * ours.abs().max()
    exact = U.with_columns(advantages=advantages[:, 0])
    ours = token_weights(exact, LOSSES[mode], length)
    assert (-s.grad - ours).abs().max() < 1e-7 * ours.abs().max()  # verl adds 1e-8 to a length


def test_verls_own_settings_are_read(core, tmp_path):
    path = Path(core.__file__).parents[2] / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    shutil.copy(path, tmp_path / VERL_SETTINGS)
    found = ise.Checkpoint(tmp_path)  # verl's defaults: PPO, in four steps per batch
    (obstacle,) = obstacles_of(found.arguments, Use("dapo"))
    assert "(verl=algorithm.adv_estimator=gae, ppo_mini_batch_size=256 of 1024)" in obstacle.words
    assert values(found)["sampling.max_new_tokens"] == 512
    assert values(found)["estimator.clip"] == (0.2, 0.2)


def test_verls_own_dump_is_read(core, tmp_path):
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl is not installed")
    columns = {key: [row[key] for row in ROWS] for key in ("input", "output", "gts", "score")}
    trainer.RayPPOTrainer._write_generations(
        *columns.values(), {"acc": [1.0] * 4}, str(tmp_path), 21
    )
    tokenizer = character_tokenizer()
    policy = tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)
    task = SimpleNamespace(prompts=["1+1=", "2+2="])
    U = read_logged_texts(policy, tmp_path / "21.jsonl", lambda: task, 3)
    assert U.rewards.tolist() == [0, 1, 1, 0]
