"""`control` of a training run: what is refused, what warns, what a checkpoint says of it."""

import json
from types import SimpleNamespace

import pytest

from isentrope import Prompt
from isentrope.config.contract import (
    contract_entry,
    objective_of,
    plain_objective_of,
    run_control,
)
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.config.trl import grpo_options
from isentrope.verbs.train import resume, train
from tests.control.examples import CLIP_B, INFLUENCE_CLIP, PASS_AT_K, RANDOM_MASK, STARE
from tests.training import runs

pytest.importorskip("trl")
OFF_POLICY = ["kl_cov", "clip_higher", "cispo", "gspo"]
SHORT = {"training": {"steps": 2, "save_every": 1}}


def config(folder, *changes, **control):
    made = runs.settings(folder, **SHORT, control=control)
    return load_config(made, changes, TrainConfig)


@pytest.mark.parametrize(
    ("control", "changes", "said"),
    [
        ({"name": "clipb"}, [], "'clipb'.*'clip_cov'"),
        ({"name": CLIP_B, "options": {"sigma": 1}}, [], "'sigma': it has mu"),
        ({"strength": 1.0}, [], "name is none"),
        ({"name": RANDOM_MASK, "target": {"kind": "hold"}}, [], "target"),
        ({"name": "cispo", "target": {"kind": "hold"}}, [], "target"),
        ({"name": STARE, "target": {"kind": "value"}}, [], "kind value"),
        ({"name": STARE}, ["trainer.entropy_coef=0.1"], r"control\.name=bonus"),
        ({"name": STARE}, ["trainer.use_adaptive_entropy=true"], "entropy"),
        ({"name": STARE}, ["trainer.top_entropy_quantile=0.2"], "EntropyMask"),
        ({"name": STARE}, ["trainer.loss_type=vespo"], "whole responses"),
        (
            {"name": STARE},
            ["trainer.importance_sampling_level=sequence"],
            "one ratio per response",
        ),
        (
            {"name": STARE},
            ["trainer.off_policy_mask_threshold=0.1"],
            "whole responses",
        ),
        (
            {"name": INFLUENCE_CLIP},
            ["trainer.num_iterations=2", "training.save_every=2"],
            "later steps",
        ),
        ({"name": PASS_AT_K, "options": {"k": 8}}, [], "k must"),
        ({"name": "clip_higher"}, ["trainer.epsilon_high=0.3"], "control.name=clip_hi"),
        ({"name": "gspo"}, ["training.normaliser=longest"], "dr_grpo"),
        ({}, ["trainer.lr_scheduler_kwargs={min: 1}"], "has no option 'min': it has"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(tmp_path, control, changes, said):
    with pytest.raises(ConfigError, match=said):
        train(config(tmp_path, *changes, **control))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("control", "said"),
    [
        *(({"name": name}, "every ratio is 1") for name in OFF_POLICY),
        ({"name": "repo_r", "strength": 0.0}, "its strength is 0"),
    ],
)
def test_a_control_that_does_nothing_says_why(tmp_path, control, said, caplog):
    made = config(tmp_path, **control)
    run_control(made, grpo_options(made, tmp_path), [])
    (message,) = caplog.messages
    assert said in message


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_controls_act_where_batches_are_used_again(tmp_path, name, caplog):
    changes = ["trainer.num_iterations=4", "training.save_every=4"]
    made = config(tmp_path, *changes, name=name)
    args = grpo_options(made, tmp_path)
    run_control(made, args, [])
    assert caplog.messages == []
    assert made.control.build().fields().items() <= vars(args).items()


def test_the_contract_names_the_control_and_another_one_is_refused(tmp_path, caplog):
    options = {"share": 0.5, "size": 4}
    folder = train(config(tmp_path, name=INFLUENCE_CLIP, options=options, strength=0.5))
    contract = json.loads((folder / "training_state/step_2/contract.json").read_text())
    assert contract["objective"] == "recorded"
    assert contract["control"]["name"] == INFLUENCE_CLIP
    assert contract["control"]["options"] == {"strength": 0.5} | options
    assert contract["control"]["target"] is None
    written = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(written.replace("share: 0.5", "share: 0.4"))
    with pytest.raises(ValueError, match=r"control\.options\.share=0\.5.*0\.4"):
        resume(folder, ["training.steps=3"])


def test_a_target_reaches_the_contract_and_the_log(tmp_path):
    target = {"kind": "hold"}
    made = config(tmp_path, name=STARE, target=target)
    assert contract_entry(made)["target"] == target
    assert contract_entry(made)["feedback"] == {
        "proportional": 0.1,
        "integral": 0.01,
        "limit": 0.05,
    }
    folder = train(made)
    first, second = _lines(folder)
    assert first["control/target"] == second["control/target"] == first["control/entropy"]
    assert first["control/strength"] == 0  # at its target
    assert "control/touched" in second


def _lines(folder):
    return [json.loads(x) for x in (folder / "logs/metrics.jsonl").read_text().splitlines()]


def test_a_control_that_reads_prompts_of_training_is_named_without_the_probe(tmp_path, caplog):
    options = {"name": INFLUENCE_CLIP, "options": {"size": 6}}
    train(config(tmp_path, "training.steps=1", "entropy_probe.enabled=false", **options))
    (said,) = [x for x in caplog.messages if "no held-out split" in x]
    assert f"for control.name={INFLUENCE_CLIP}: entropy" in said
    assert "probe" not in said


def test_the_controls_own_batches_are_sampled_as_the_runs(tmp_path):
    made = config(tmp_path, "sampling.batch_size=7", name=INFLUENCE_CLIP)
    args = SimpleNamespace(
        epsilon=0.2, epsilon_high=None, per_device_train_batch_size=16, loss_type="dr_grpo"
    )
    found = run_control(made, args, [Prompt("a", text="1"), Prompt("b", text="2")])
    assert found._held_out.keywords["batch_size"] == 7


def test_the_objective_is_recorded_under_any_control(tmp_path):
    assert objective_of(config(tmp_path)) == "dr_grpo"
    for name in (STARE, "clip_higher", "adaptive"):
        controlled = config(tmp_path, name=name)
        assert objective_of(controlled) == "recorded"
        assert plain_objective_of(controlled) == "dr_grpo"


def test_the_adaptive_strength_is_logged_and_resumes_to_the_bit(tmp_path):
    control = {"name": "adaptive", "options": {"target": 9.0, "delta": 0.001}}
    whole = train(config(tmp_path, "training.steps=3", **control))
    parts = tmp_path / "parts"
    train(config(tmp_path, f"output.directory={parts}", **control))
    resume(parts, ["training.steps=3"])
    applied = [line["control/strength"] for line in _lines(whole)]
    assert applied == pytest.approx([0, 0.001, 0.002])  # the first step has seen no entropy yet
    for name in ("training_state/step_3/adapter_model.safetensors", "logs/metrics.jsonl"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
