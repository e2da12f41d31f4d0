"""docs/from_verl.py: from verl's dump and settings to a measurement."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import isentrope as ise
from isentrope.config.io import load_config
from isentrope.results.verbs import VERBS
from isentrope.update.objective import token_weights
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import tiny

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "from_verl.py"))
ACTOR, ROLLOUT = SCRIPT["ACTOR"], SCRIPT["ROLLOUT"]
__all__ = ["tiny"]

ROWS = [  # as verl orders them where it balances processes: not by prompt
    {"input": "2+1=", "output": "3", "gts": "3", "score": 1.0, "step": 21, "acc": True},
    {"input": "1+1=", "output": "33", "gts": "2", "score": 0.0, "step": 21, "acc": False},
    {"input": "2+1=", "output": "1", "gts": "3", "score": 0.0, "step": 21, "acc": False},
    {"input": "1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 21, "acc": True},
]


def settings(path, **changes):
    """A file of settings, with values at dotted places replaced."""
    content = {
        "actor_rollout_ref": {
            "actor": {
                **{"clip_ratio": 0.3, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
                **{"loss_agg_mode": "token-mean", "loss_scale_factor": None, "entropy_coeff": 0},
                **{"policy_loss": {"loss_mode": "vanilla"}, "use_kl_loss": False},
                **{"ppo_epochs": 1, "ppo_mini_batch_size": 2, "grad_clip": 0.5},
            },
            "rollout": {"n": 2, "temperature": 1.0, "top_k": -1, "top_p": 1, "name": "???"},
        },
        "data": {"max_response_length": 3, "train_batch_size": 2},
        "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True},
        "trainer": {"default_local_dir": "checkpoints/${trainer.project_name}"},
    }
    for place, value in changes.items():
        *above, last = place.split(".")
        section = content
        for key in above:
            section = section.setdefault(key, {})
        section[last] = value
    path.write_text(yaml.safe_dump(content))
    return path


def dump(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_of_verl_is_measured_and_attributed(tiny, tmp_path):
    files = dump(tmp_path / "21.jsonl"), settings(tmp_path / "config.yaml")
    SCRIPT["main"](tiny / "step_4", *files, tiny / "prompts.jsonl", tmp_path / "out")
    written = load_config(tmp_path / "out" / "measure.yaml")
    assert written.estimator.objective == "dapo"
    assert written.estimator.clip_pair == (0.2, 0.28)
    for verb in ("measure", "influence"):
        where = [f"output.directory={tmp_path / verb}", "batch_config.B_E=12", "estimator.order=1"]
        where.append("estimator.eta_list=[1e-3]")
        done = run_verb(VERBS[verb], load_config(tmp_path / "out" / "measure.yaml", where))
        (folder,) = done.measurements.values()
        results = json.loads((folder / "results.json").read_text())
        assert (results["batches"]["B_U"], results["batches"]["G"]) == (2, 2)
        assert not [text for text in results["warnings"] if "ASSUMED" in text]


def test_a_dump_becomes_groups_with_verls_advantages(tiny, tmp_path):
    policy = ise.Policy.from_checkpoint(tiny / "step_4")
    prompts = ise.load_task("prompts", path=tiny / "prompts.jsonl").prompts
    U = SCRIPT["batch_of"](policy, dump(tmp_path / "21.jsonl"), prompts, 2, True)
    assert U.prompt_index.tolist() == [0, 0, 1, 1]
    assert U.rewards.tolist() == [1, 0, 0, 1]
    assert U.lengths.tolist() == [2, 2, 2, 2]  # with EOS, but for the one that was cut
    assert [int(ids[-1]) == policy.eos_token_id for ids in U.response_ids] == [1, 1, 0, 1]
    size = 0.5 / (0.5**0.5 + 1e-6)
    assert U.advantages.tolist() == pytest.approx([size, -size, -size, size], rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "9+9="}, "line 2: no prompt of the data set"),
        ({"step": 22}, "line 2 is of another step"),
        ({"output": "4§"}, "line 2: its output encoded and decoded is another text"),
    ],
)
def test_what_a_dump_does_not_say_is_refused(tiny, tmp_path, change, message):
    policy = ise.Policy.from_checkpoint(tiny / "step_4")
    prompts = ise.load_task("prompts", path=tiny / "prompts.jsonl").prompts
    path = dump(tmp_path / "21.jsonl", [ROWS[0], ROWS[1] | change])
    with pytest.raises(ValueError, match=message):
        SCRIPT["batch_of"](policy, path, prompts, 3, True)
    bare = [{key: x for key, x in row.items() if key != "score"} for row in ROWS]
    with pytest.raises(ValueError, match="line 1 has no 'score'"):
        SCRIPT["batch_of"](policy, dump(path, bare), prompts, 3, True)


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [
        (ACTOR + "use_kl_loss", True, "use_kl_loss"),
        (ACTOR + "entropy_coeff", 0.01, "entropy_coeff"),
        (ACTOR + "policy_loss.loss_mode", "kl_cov", "loss_mode"),
        (ACTOR + "loss_agg_mode", "a-new-one", "loss_agg_mode"),
        (ACTOR + "loss_agg_mode", "seq-mean-token-sum-norm", "loss_scale_factor"),
        (ACTOR + "ppo_epochs", 2, "ppo_epochs"),
        (ACTOR + "ppo_mini_batch_size", 1, "ppo_mini_batch_size"),
        (ROLLOUT + "top_p", 0.9, "top_p"),
        (ROLLOUT + "multi_turn", {"enable": True}, "multi_turn"),
        ("algorithm.adv_estimator", "gae", "adv_estimator"),
        ("algorithm.use_kl_in_reward", True, "use_kl_in_reward"),
        ("algorithm.rollout_correction", {"rollout_is": "token"}, "rollout_is"),
        ("trainer.use_legacy_worker_impl", "auto", "use_legacy_worker_impl"),
        (ROLLOUT + "top_k", "${oc.select:other,1}", "top_k"),
    ],
)
def test_settings_of_another_step_are_refused_by_name(tmp_path, place, value, name):
    with pytest.raises(ValueError, match=name):
        SCRIPT["training_of"](settings(tmp_path / "config.yaml", **{place: value}))


def test_dr_grpo_is_read_with_its_constant(tmp_path):
    path = settings(
        tmp_path / "config.yaml",
        **{
            ACTOR + "loss_agg_mode": "seq-mean-token-sum-norm",
            ACTOR + "loss_scale_factor": 64,
            ACTOR + "clip_ratio_low": None,
            "algorithm.norm_adv_by_std_in_grpo": False,
        },
    )
    sections, normalised = SCRIPT["training_of"](path)
    assert sections["estimator"]["objective"] == "dr_grpo"
    assert sections["estimator"]["max_response_length"] == 64
    assert sections["estimator"]["clip"] == [0.3, 0.28]
    assert not normalised


@pytest.mark.parametrize("mode", SCRIPT["LOSSES"])
def test_the_weights_are_those_of_verls_own_loss(tiny, tmp_path, mode):
    core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
    from omegaconf import OmegaConf

    policy = ise.Policy.from_checkpoint(tiny / "step_4")
    prompts = ise.load_task("prompts", path=tiny / "prompts.jsonl").prompts
    U = SCRIPT["batch_of"](policy, dump(tmp_path / "21.jsonl"), prompts, 3, True)
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
    length = 7 if SCRIPT["LOSSES"][mode] == "dr_grpo" else None
    ours = token_weights(U, SCRIPT["LOSSES"][mode], length)
    assert len(set(U.lengths.tolist())) > 1
    # verl adds 1e-8 to a length
    assert (-s.grad - ours).abs().max() < 1e-7 * ours.abs().max()


def test_verls_own_writer_and_settings_are_read(tiny, tmp_path):
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl is not installed")
    columns = {key: [row[key] for row in ROWS] for key in ("input", "output", "gts", "score")}
    trainer.RayPPOTrainer._write_generations(
        *columns.values(), {"acc": [1.0] * 4}, str(tmp_path), 21
    )
    policy = ise.Policy.from_checkpoint(tiny / "step_4")
    prompts = ise.load_task("prompts", path=tiny / "prompts.jsonl").prompts
    U = SCRIPT["batch_of"](policy, tmp_path / "21.jsonl", prompts, 3, True)
    assert U.rewards.tolist() == [1, 0, 0, 1]
    path = Path(trainer.__file__).parents[1] / "config" / "_generated_ppo_trainer.yaml"
    with pytest.raises(ValueError, match=r"adv_estimator=gae.*ppo_mini_batch_size=256") as refused:
        SCRIPT["training_of"](path)  # verl's defaults
    assert str(refused.value).count(";") == 1  # and nothing else of them
