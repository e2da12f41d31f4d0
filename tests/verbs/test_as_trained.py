"""What a checkpoint says of its training fills keys that are not set and is held against others."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import isentrope as ise
from isentrope import Policy, Rollouts, sample, score
from isentrope.checkpoint.in_force import Origin, refuse
from isentrope.checkpoint.infer.step import Use
from isentrope.checkpoint.infer.unshown import notes_on_arguments, notes_on_base, notes_on_batch
from isentrope.checkpoint.settle import settle
from isentrope.cli.commands import MEASURING
from isentrope.commands.measure import measure
from isentrope.config.io import ConfigError, load_config
from isentrope.models.adapter import base_type
from isentrope.verbs.check import check
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings

trl = pytest.importorskip("trl")
CONTRACT = {
    "temperature": 0.7,
    "max_new_tokens": 2,
    "max_grad_norm": None,
    "objective": "dr_grpo_longest",
    "advantages": "dr_grpo",
    "group_size": 3,
    "replayable": True,
}


@pytest.fixture
def trained(tiny, tmp_path):
    """A checkpoint with a contract, its data beside it."""
    folder = tmp_path / "trained"
    shutil.copytree(tiny, folder)
    (folder / "step_4" / "contract.json").write_text(json.dumps(CONTRACT))
    return folder


def contract(folder, **changes):
    path = folder / "step_4" / "contract.json"
    path.write_text(json.dumps(CONTRACT | changes))


def with_arguments(folder, kind=None, **options):
    """A TRL checkpoint instead: training_args.bin and no contract."""
    usual = {"use_cpu": True, "bf16": False, "report_to": "none"}
    args = (kind or trl.GRPOConfig)(output_dir=str(folder), **(usual | options))
    (folder / "step_4" / "contract.json").unlink(missing_ok=True)
    torch.save(args, folder / "step_4" / "training_args.bin")


def settled(folder, *overrides, **sections):
    content = settings(folder, **sections)
    for section, key in (("batch_config", "G"), ("sampling", "max_new_tokens")):
        content[section].pop(key, None)
    in_force = settle(ise.Checkpoint(folder / "step_4"), load_config(content, overrides))
    return in_force.config, in_force


def refused(folder, *overrides):
    """The message, or an empty one."""
    _, found = settled(folder, *overrides)
    try:
        refuse(found.obstacles, found.ignored, "step_4")
    except ValueError as error:
        return str(error)
    return ""


def test_keys_that_are_not_set_are_those_of_training(trained):
    config, found = settled(trained)
    assert config.sampling.temperature == 0.7
    assert config.sampling.max_new_tokens == 2
    assert config.estimator.max_grad_norm is None
    assert config.estimator.objective == "dr_grpo_longest"
    assert config.batch_config.G == 3
    assert found.obstacles == ()
    assert found.origins["sampling.temperature"] == Origin(0.7, "contract.json", 0.7)
    assert found.origins["estimator.clip"].source == "default"


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("sampling.temperature", "1.0", "0.7"),
        ("sampling.max_new_tokens", "5", "2"),
        ("estimator.max_grad_norm", "1.0", "None"),
        ("estimator.objective", "dr_grpo", "'dr_grpo_longest'"),
        ("batch_config.G", "4", "3"),
    ],
)
def test_a_key_that_differs_is_refused_with_both_values_and_a_way_out(trained, key, value, was):
    message = refused(trained, f"{key}={value}")
    assert f"{key} is " in message
    assert f"training had {was} (contract.json)" in message
    assert f"ignore_training_settings: [{key}]" in message
    ignore = f"estimator.ignore_training_settings=[{key}]"
    assert refused(trained, f"{key}={value}", ignore) == ""
    (warning,) = settled(trained, f"{key}={value}", ignore)[1].warnings
    assert warning.startswith("NOT TRAINING'S STEP")
    assert key in warning


def test_a_key_that_is_set_as_in_training_is_fine(trained):
    _, found = settled(trained, "sampling.temperature=0.7", "estimator.max_grad_norm=null")
    assert found.obstacles == ()
    assert found.origins["sampling.temperature"].source == "configuration"


def test_an_unknown_name_among_the_ignored_is_an_error(trained):
    with pytest.raises(ConfigError, match=r"'temprature' .*'sampling.temperature'"):
        settled(trained, "estimator.ignore_training_settings=[temprature]")


def test_a_run_that_cannot_be_replayed_is_refused_whatever_the_objective(trained, tmp_path):
    contract(trained, replayable=False)
    assert "contract.json says that its steps cannot be replayed" in refused(trained)
    recorded = ("estimator.objective=recorded", f"batch_config.U_file={tmp_path}/U.jsonl")
    assert "cannot be replayed" in refused(trained, *recorded)
    assert refused(trained, "estimator.ignore_training_settings=[replayable]") == ""


@pytest.mark.parametrize("objective", ["recorded", "sft"])
def test_an_objective_that_needs_a_file_says_so(trained, tmp_path, objective):
    contract(trained, objective=objective)
    assert "needs batch_config.U_file" in refused(trained)
    config, found = settled(trained, f"batch_config.U_file={tmp_path}/U.jsonl")
    assert (config.estimator.objective, found.obstacles) == (objective, ())


def test_a_fresh_batch_of_a_controlled_run_has_the_objective_without_control(trained, tmp_path):
    """And training's own batch the recorded one."""
    control = {"control": {"name": "stare"}, "plain_objective": "dr_grpo"}
    contract(trained, objective="recorded", **control)
    for given in ((), ("estimator.objective=dr_grpo",)):
        config, found = settled(trained, *given)
        assert found.obstacles == ()
        assert config.estimator.objective == "dr_grpo"
        assert config.estimator.max_response_length == CONTRACT["max_new_tokens"]
        assert "objective dr_grpo without the token weights of the control" in found.warnings[0]
    batch = f"batch_config.U_file={tmp_path}/U.jsonl"
    config, found = settled(trained, batch)
    assert (config.estimator.objective, found.warnings) == ("recorded", ())
    config, found = settled(trained, batch, "estimator.objective=dr_grpo")
    assert (config.estimator.objective, found.obstacles) == ("dr_grpo", ())
    assert "estimator.objective is 'grpo'" in refused(trained, "estimator.objective=grpo")
    contract(trained, objective="recorded", plain_objective="recorded", control={"name": "stare"})
    assert "needs batch_config.U_file" in refused(trained)


def test_every_verb_refuses_and_every_result_says_where_settings_came_from(trained, tmp_path):
    asked = settings(trained, batch_config={"G": 3}, sampling={"max_new_tokens": 2})
    usual = ["estimator.eta_list=[1e-3]", "estimator.order=1", "analysis.tokens=false"]
    wrong = load_config(asked, [*usual, "sampling.temperature=1.0"])
    with pytest.raises(ValueError, match=r"temperature .*1\.0, .*0\.7"):
        ise.EntropyMeasurements(wrong).run_experiments()
    with pytest.raises(ValueError, match=r"temperature .*1\.0, .*0\.7"):
        run_verb(MEASURING["influence"], wrong)
    for name, verb in (
        ("measure", measure),
        ("influence", lambda config: run_verb(MEASURING["influence"], config)),
    ):
        out = tmp_path / name
        run = verb(load_config(asked, [*usual, f"output.directory={out}"]))
        (result,) = run.results
        assert result.settings.keys["sampling.temperature"].source == "contract.json"
        assert result.policy.temperature == 0.7
        assert "temperature" not in (out / "config.yaml").read_text().split("sampling:")[1]
        again = load_config(out / "config.yaml")
        assert settle(ise.Checkpoint(trained / "step_4"), again).config.sampling.temperature == 0.7


# --- TRL -------------------------------------------------------------------------------------


def test_trls_arguments_fill_what_the_step_is_made_of(trained):
    options = {"temperature": 0.9, "max_grad_norm": 0.3, "num_generations": 4}
    with_arguments(trained, per_device_train_batch_size=8, max_completion_length=3, **options)
    config, found = settled(trained)
    assert (config.estimator.objective, config.estimator.advantage_rule) == ("dapo", "grpo")
    assert (config.sampling.temperature, config.estimator.max_grad_norm) == (0.9, 0.3)
    assert (config.batch_config.G, config.sampling.max_new_tokens) == (4, 3)
    assert found.origins["estimator.objective"].source == "training_args.bin"
    assert found.obstacles == ()


@pytest.mark.parametrize(
    ("options", "filled"),
    [
        ({"loss_type": "dr_grpo", "scale_rewards": False}, {"max_response_length": 512}),
        ({"loss_type": "dr_grpo", "scale_rewards": "none"}, {"advantages": "dr_grpo"}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"clip": (0.2, 5.0)}),
        ({"loss_type": "cispo"}, {"clip": (0.2, 0.2)}),
        ({"loss_type": "bnpo", "gradient_accumulation_steps": 2}, {"micro_batch": 8}),
        ({"loss_type": "bnpo"}, {"micro_batch": None}),
        ({"loss_type": "sapo", "max_grad_norm": 0.0}, {"max_grad_norm": None}),
    ],
)
def test_what_goes_with_a_loss_is_filled_with_it(trained, options, filled):
    with_arguments(trained, per_device_train_batch_size=8, **options)
    config, found = settled(trained)
    assert config.estimator.objective == options["loss_type"]
    assert {key: getattr(config.estimator, key) for key in filled} == filled
    assert found.obstacles == ()
    assert not any("estimator.micro_batch" in sentence for sentence in found.warnings)


def test_arguments_of_the_chat_template_are_trainings_and_others_are_refused(trained):
    with_arguments(trained, chat_template_kwargs={"twice": True})
    config, found = settled(trained)
    assert config.batch_config.chat_template_kwargs == {"twice": True}
    key = "batch_config.chat_template_kwargs"
    assert found.origins[key].source == "training_args.bin"
    assert f"{key} is {{'twice': False}}" in refused(trained, f"{key}={{twice: false}}")
    assert refused(trained, f"{key}={{twice: true}}") == ""
    with_arguments(trained)
    assert settled(trained)[0].batch_config.chat_template_kwargs == {}


def test_a_step_of_mixed_precision_has_the_micro_batches_of_training(trained):
    with_arguments(trained, per_device_train_batch_size=8, gradient_accumulation_steps=2, bf16=True)
    config, found = settled(trained)
    assert config.estimator.micro_batch is None
    assert any("use_amp" in note for note in found.notes)
    config, found = settled(trained, "precision.update_vector={use_amp: true}")
    assert config.estimator.micro_batch == 8
    assert not any("use_amp" in note for note in found.notes)


REFUSED = {
    "beta": 0.04,
    "entropy_coef": 0.01,
    "use_adaptive_entropy": True,
    "top_entropy_quantile": 0.2,
    "top_k": 50,
    "top_p": 0.95,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "generation_kwargs": {"top_k": 5},
    "num_iterations": 2,
    "steps_per_generation": 4,
    "delta": 0.5,
    "mask_truncated_completions": True,
    "scale_rewards": "batch",
    "reward_weights": [2.0],
    "multi_objective_aggregation": "normalize_then_sum",
    "neftune_noise_alpha": 5.0,
}
STILL = {"entropy_coef", "neftune_noise_alpha"}
STILL |= {"top_k", "top_p", "min_p", "repetition_penalty", "generation_kwargs"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_step_lacks_is_refused_by_name_until_it_is_acknowledged(trained, tmp_path, name):
    with_arguments(trained, per_device_train_batch_size=8, **{name: REFUSED[name]})
    assert f"ignore_training_settings: [{name}]" in refused(trained)
    assert refused(trained, f"estimator.ignore_training_settings=[{name}]") == ""
    recorded = ("estimator.objective=recorded", f"batch_config.U_file={tmp_path}/U.jsonl")
    assert bool(refused(trained, *recorded)) == (name in STILL)


def test_weights_of_rewards_are_refused_until_the_task_sums_by_the_same(trained):
    with_arguments(trained, per_device_train_batch_size=8, reward_weights=[1.0, 1.0])
    assert refused(trained) == ""
    with_arguments(trained, per_device_train_batch_size=8, reward_weights=[1.0, 0.5])
    assert "set batch_config.dataset_options.weights to [1.0, 0.5]" in refused(trained)
    assert refused(trained, "batch_config.dataset_options={weights: [1, 0.5]}") == ""
    others = (
        "batch_config.dataset_options={weights: [0.5, 1]}",
        "batch_config.dataset_options={weights: [1]}",
        "batch_config.U_dataset_name=gsm8k",
    )
    for other in others:
        assert "reward_weights" in refused(trained, other)


def test_an_entropy_term_is_held_by_a_batch_that_recorded_it(trained, tmp_path):
    with_arguments(trained, per_device_train_batch_size=8, entropy_coef=0.01)
    ids = [torch.tensor([1, 2]), torch.tensor([3])]
    weights = [torch.ones(2), torch.ones(1)]
    U = Rollouts([torch.tensor([1])], ids, torch.zeros(2), token_weights=weights)
    for name, batch in (("plain", U), ("bonus", U.with_columns(entropy_weights=weights))):
        path = batch.save(tmp_path / f"{name}.parquet")
        told = refused(trained, "estimator.objective=recorded", f"batch_config.U_file={path}")
        assert ("an entropy term is in the loss" in told) == (name == "plain")


@pytest.mark.parametrize(
    "options",
    [
        {"importance_sampling_level": "sequence"},
        {"delta": 1.5},
        {"off_policy_mask_threshold": 0.5},
        {"top_k": -1},
        {"gradient_accumulation_steps": 4},
    ],
)
def test_what_does_nothing_on_policy_is_let_through(trained, options):
    with_arguments(trained, per_device_train_batch_size=8, **options)
    assert refused(trained) == ""


def test_a_batch_used_twice_is_weighted_by_its_ratios(trained):
    with_arguments(
        trained, per_device_train_batch_size=8, num_iterations=2, epsilon=0.1, epsilon_high=0.3
    )
    assert "set estimator.off_policy: true" in refused(trained)
    config, found = settled(trained, "estimator.off_policy=true")
    assert config.estimator.clip_pair == (0.1, 0.3)
    assert found.obstacles == ()
    assert "training had [0.1, 0.3]" in refused(
        trained, "estimator.off_policy=true", "estimator.clip=0.2"
    )


def test_sft_has_temperature_1_and_smoothed_labels_are_refused(trained, tmp_path):
    with_arguments(trained, trl.SFTConfig, label_smoothing_factor=0.1)
    file = f"batch_config.U_file={tmp_path}/U.jsonl"
    config, _ = settled(trained, file)
    assert (config.estimator.objective, config.sampling.temperature) == ("sft", 1.0)
    assert "labels are smoothed" in refused(trained, file)


def test_a_trainer_whose_loss_is_not_known_is_refused(trained):
    with_arguments(trained, trl.DPOConfig)
    assert "trained with DPOConfig, whose loss is not known here" in refused(trained)


def test_a_batch_that_brings_its_advantages_keeps_them(trained, tmp_path):
    with_arguments(trained, per_device_train_batch_size=8, scale_rewards="batch")
    U = Rollouts([[3]], [[4, 1], [5, 1]], [0, 0], advantages=[1.0, -1.0], rewards=[1.0, 0.0])
    file = U.save(tmp_path / "U.parquet")
    assert refused(trained, f"batch_config.U_file={file}") == ""
    with_arguments(trained, per_device_train_batch_size=8)
    config, _ = settled(trained, f"batch_config.U_file={file}")
    assert config.estimator.advantages is None


# --- what the model and the batch tell --------------------------------------------------------


@pytest.fixture
def stale(tiny, tmp_path):
    """Rollouts of a policy, kept with its log-probabilities, and settings that measure them."""

    def made(temperature=1.0, **columns):
        policy = Policy.from_checkpoint(tiny / "step_4", temperature=temperature)
        ids = [[3 + i] for i in range(4)]
        U = Rollouts(ids, [[4, 1], [5, 1]] * 4, [i // 2 for i in range(8)])
        scores = score(policy, U)
        rows = zip(scores.logprobs, scores.mask, strict=True)
        U = U.with_columns(
            sampler_logprobs=[s[m] for s, m in rows], advantages=[1.0, -1.0] * 4, **columns
        )
        U.save(tmp_path / "U.parquet")
        return [
            f"batch_config.U_file={tmp_path / 'U.parquet'}",
            f"output.directory={tmp_path / 'run'}",
            "estimator.eta_list=[1e-3]",
            "estimator.order=1",
        ]

    return made


@pytest.fixture
def earlier(tiny, tmp_path):
    """Draws of an earlier policy with their log-probabilities, and settings that measure them."""
    policy = Policy.from_checkpoint(tiny / "step_4")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for x in policy.theta.values():
            x.add_(0.2 * torch.randn(x.shape, generator=generator))
    U = sample(policy, [[3], [4], [5], [6]], 32, max_new_tokens=8, seed=0)
    U = U.with_columns(advantages=[1.0, -1.0] * 16)

    def made(record):
        kept = [record(x) for x in U.sampler_logprobs]
        U.with_columns(sampler_logprobs=kept).save(tmp_path / "U.parquet")
        quick = ["estimator.eta_list=[1e-3]", "estimator.order=1"]
        return [f"batch_config.U_file={tmp_path / 'U.parquet'}", *quick]

    return made


def test_a_batch_of_another_policy_is_refused_and_off_policy_is_the_way_out(
    tiny, earlier, tmp_path
):
    overrides = [*earlier(lambda x: x), f"output.directory={tmp_path / 'run'}"]
    with pytest.raises(ValueError, match=r"off_policy: true weights its tokens by this record"):
        measure(load_config(settings(tiny), overrides))
    run = measure(load_config(settings(tiny), [*overrides, "estimator.off_policy=true"]))
    assert run.results[0].step.gradient_norm > 0
    assert any("sampler's record, which is believed" in w for w in run.results[0].warnings)


@pytest.mark.parametrize("off_policy", ["true", "false"])
def test_a_record_that_cannot_be_of_the_batch_leaves_no_step(tiny, earlier, tmp_path, off_policy):
    where = f"output.directory={tmp_path / 'run'}"
    overrides = [*earlier(lambda x: x - 1.5), where, f"estimator.off_policy={off_policy}"]
    with pytest.raises(ValueError, match="where draws of any policy have 1") as caught:
        measure(load_config(settings(tiny), overrides))
    assert "ignore_training_settings" not in str(caught.value)
    assert not list((tmp_path / "run").rglob("results.json"))
    findings = check(load_config(settings(tiny), overrides))["step_4"]
    failed = [f for f in findings if f.passed is False and "any policy" in f.detail]
    assert [f.name for f in failed] == ["U is a draw of the policy"]


def test_off_policy_where_nothing_is_stale_changes_nothing(tiny, stale, tmp_path):
    overrides = stale()
    norms = []
    for k, value in enumerate(("false", "true")):
        where = f"output.directory={tmp_path / str(k)}"
        run = measure(
            load_config(settings(tiny), [*overrides, f"estimator.off_policy={value}", where])
        )
        norms.append(run.results[0].step.gradient_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-9)


@pytest.mark.parametrize("rate", ["attention_dropout", "lora_dropout"])
def test_dropout_of_training_is_refused_until_it_is_acknowledged(trained, tmp_path, rate):
    names = {"attention_dropout": "base/config.json", "lora_dropout": "step_4/adapter_config.json"}
    file = trained / names[rate]
    file.write_text(json.dumps(json.loads(file.read_text()) | {rate: 0.1}))
    adapter = trained / "step_4" / "adapter_config.json"
    content = json.loads(adapter.read_text()) | {"base_model_name_or_path": str(trained / "base")}
    adapter.write_text(json.dumps(content))
    asked = settings(trained, batch_config={"G": 3}, sampling={"max_new_tokens": 2})
    quick = ["estimator.eta_list=[1e-3]", "estimator.order=0"]
    with pytest.raises(ValueError, match=r"rate 0\.1"):
        measure(load_config(asked, quick))
    listed = "estimator.ignore_training_settings=[dropout]"
    run = measure(load_config(asked, [*quick, listed, f"output.directory={tmp_path / 'run'}"]))
    assert any("drop activations" in sentence for sentence in run.results[0].warnings)


def test_trls_disable_dropout_is_honoured_where_it_acts(trained):
    from isentrope.checkpoint.limits import training_dropout

    adapter = trained / "step_4" / "adapter_config.json"
    adapter.write_text(json.dumps(json.loads(adapter.read_text()) | {"lora_dropout": 0.1}))
    model = Policy.from_checkpoint(Path(trained / "step_4")).model
    assert all("lora_dropout" in name for name in training_dropout(model, {}))
    assert training_dropout(model, {}) != {}
    assert training_dropout(model, {"disable_dropout": True}) == {}
    model.config.attention_dropout = 0.1
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    kept = training_dropout(model, {"disable_dropout": True})
    assert kept
    assert all(name.endswith("self_attn") for name in kept)


def logged(folder, step):
    """A file as TRL writes it after a step, with another step's beside it."""
    rows = {"step": [step] * 2, "prompt": ["1+1="] * 2, "completion": ["1", "2"]}
    path = folder / f"completions_{step:05d}.parquet"
    pd.DataFrame(rows | {"advantage": [0.5, -0.5]}).to_parquet(path)
    return f"batch_config.U_file={path}"


def test_completions_of_another_step_are_refused(trained):
    with_arguments(trained, max_grad_norm=1.0, logging_steps=2)
    here = logged(trained, 4)
    assert "next step of this checkpoint is the one to 5: give the batch" in refused(trained, here)
    assert refused(trained, logged(trained, 5)) == ""
    assert refused(trained, here, "estimator.ignore_training_settings=[stale_batch]") == ""


def test_responses_of_another_step_in_a_jsonl_are_refused(trained):
    row = {"prompt": "1+1=", "response": "1", "advantage": 1.0, "step": 4}
    (trained / "U.jsonl").write_text(json.dumps(row))
    assert "the batch of the step to 4" in refused(
        trained, f"batch_config.U_file={trained}/U.jsonl"
    )


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_advantages_in_a_logged_file_count_as_given(trained, suffix):
    with_arguments(trained, scale_rewards="batch")
    (trained / "U.jsonl").write_text(
        json.dumps({"prompt": "1+1=", "response": "1", "advantage": 1.0})
    )
    path = f"batch_config.U_file={trained}/U.jsonl"
    assert refused(trained, logged(trained, 5) if suffix == "parquet" else path) == ""
    assert "scale_rewards" in refused(trained)


def test_settings_that_no_file_says_are_named_in_one_line(tiny):
    _, found = settled(tiny)
    (line,) = found.warnings
    for key in ("objective=dr_grpo", "advantages=dr_grpo", "max_grad_norm=1.0", "temperature=1.0"):
        assert key in line
    assert "max_new_tokens=150" in line
    every = [
        f"{key}={value}"
        for key, value in (
            ("estimator.objective", "dapo"),
            ("estimator.advantages", "grpo"),
            ("estimator.max_grad_norm", 1.0),
            ("sampling.temperature", 1.0),
            ("sampling.max_new_tokens", 3),
        )
    ]
    assert settled(tiny, *every)[1].warnings == ()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("RLOOConfig", {}), ("GRPOConfig", {"loss_type": "sapo"})],
)
def test_a_stale_batch_whose_weights_are_not_known_is_sent_to_a_record(trained, kind, options):
    with_arguments(trained, getattr(trl, kind), num_iterations=2, beta=0.0, **options)
    for off_policy in ("true", "false"):
        message = refused(trained, f"estimator.off_policy={off_policy}")
        assert "record the step" in message
        assert "set estimator.off_policy" not in message


# --- what a batch and a base do not show ------------------------------------------------------


def notes_of(folder, U=None, *overrides):
    config, _ = settled(folder, *overrides)
    arguments = ise.Checkpoint(folder / "step_4").argument_fields
    U = U or Rollouts([[3, 4]], [[5, 1]], [0])
    stored = base_type(folder / "step_4")
    notes = [*notes_on_base(arguments, stored, None)]
    notes += notes_on_batch(
        ise.Checkpoint(folder / "step_4").argument_fields, U, config.batch_config.U_file
    )
    return " ".join(notes)


def test_a_trainers_log_says_in_the_result_what_it_cannot_show(trained):
    with_arguments(trained)
    assert "env_mask" in notes_of(trained, None, logged(trained, 5))
    assert notes_of(trained) == ""


@pytest.mark.parametrize(
    ("options", "stored", "words"),
    [
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, "float32", "loaded the base"),
        ({"model_init_kwargs": {"dtype": "auto"}}, "bfloat16", "loaded the base"),
        ({}, "bfloat16", "Where training loaded it so"),
        ({}, "float32", ""),
        ({"model_init_kwargs": {"dtype": "float32"}}, "bfloat16", ""),
    ],
)
def test_a_base_of_16_bits_under_an_adapter_is_noted(trained, options, stored, words):
    adapter = trained / "step_4" / "adapter_config.json"
    content = json.loads(adapter.read_text()) | {"base_model_name_or_path": str(trained / "base")}
    adapter.write_text(json.dumps(content))
    file = trained / "base" / "model.safetensors"
    tensors = {name: x.to(getattr(torch, stored)) for name, x in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    with_arguments(trained, **options)
    notes = notes_of(trained)
    assert ("v differed by 11 %" in notes) == bool(words)
    assert words in notes
    with_arguments(trained, **options | {"bf16": True})
    assert notes_of(trained) == ""  # the note on autocast says it


def test_products_of_ten_bits_are_noted(trained):
    with_arguments(trained, tf32=None)
    assert not any("TF32" in note for note in settled(trained)[1].notes)
    (note,) = notes_on_arguments({"tf32": True}, Use("dapo"))
    assert "TF32" in note


def test_demonstrations_that_training_cut_are_noted(trained):
    with_arguments(trained, trl.SFTConfig, max_length=3)
    assert "1 of 1 demonstrations" in notes_of(trained)
    with_arguments(trained, trl.SFTConfig, max_length=4)
    assert notes_of(trained) == ""


def test_the_order_of_a_trainer_of_transformers_needs_no_file_of_names(trained, tmp_path):
    """It makes the groups. Without its arguments nothing says who made them."""
    (trained / "step_4" / "parameter_names.json").unlink(missing_ok=True)
    (trained / "step_4" / "contract.json").unlink()
    quick = ["estimator.eta_list=[1e-3]", "estimator.order=0", "estimator.objective=dapo"]

    def warnings(name):
        where = f"output.directory={tmp_path / name}"
        content = settings(trained, sampling={"max_new_tokens": 3})
        return " ".join(measure(load_config(content, [*quick, where])).results[0].warnings)

    assert "which no name confirms" in warnings("unknown")
    with_arguments(trained, max_completion_length=3, num_generations=4, max_grad_norm=1.0)
    assert "which no name confirms" not in warnings("of_trl")
