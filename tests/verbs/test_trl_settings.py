"""What TRL's arguments say of training fills the step, and what the step lacks is refused."""

import json

import pytest
import torch

from isentrope import Rollouts
from tests.verbs.as_trained import contract, logged, refused, settled, with_arguments

trl = pytest.importorskip("trl")


def test_trls_arguments_fill_what_the_step_is_made_of(trained):
    options = {"temperature": 0.9, "max_grad_norm": 0.3, "num_generations": 4}
    with_arguments(trained, max_completion_length=3, **options)
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
    with_arguments(trained, **options)
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
    with_arguments(trained, gradient_accumulation_steps=2, bf16=True)
    for overrides, size in (((), None), (("precision.update_vector={use_amp: true}",), 8)):
        config, found = settled(trained, *overrides)
        assert config.estimator.micro_batch == size
        assert any("use_amp" in note for note in found.notes) == (size is None)


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
"""What the record of a step lacks too."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_step_lacks_is_refused_by_name_until_it_is_acknowledged(trained, tmp_path, name):
    with_arguments(trained, **{name: REFUSED[name]})
    assert f"ignore_training_settings: [{name}]" in refused(trained)
    assert refused(trained, f"estimator.ignore_training_settings=[{name}]") == ""
    recorded = ("estimator.objective=recorded", f"batch_config.U_file={tmp_path}/U.jsonl")
    assert bool(refused(trained, *recorded)) == (name in STILL)


TASK_WEIGHTS = "batch_config.dataset_options={{weights: {}}}"


@pytest.mark.parametrize(
    ("weights", "overrides", "words"),
    [
        ([1.0, 1.0], [], ""),
        ([1.0, 0.5], [], "give all 2 reward functions of training"),
        ([1.0, 0.5], [TASK_WEIGHTS.format("[1, 0.5]")], ""),
        ([1.0, 0.5], [TASK_WEIGHTS.format("[0.5, 1]")], "reward_weights"),
        ([1.0, 0.5], [TASK_WEIGHTS.format("[1]")], "reward_weights"),
        ([1.0, 0.5], ["batch_config.U_dataset_name=gsm8k"], "reward_weights"),
    ],
)
def test_weights_of_rewards_are_refused_until_the_task_sums_by_the_same(
    trained, weights, overrides, words
):
    with_arguments(trained, reward_weights=weights)
    message = refused(trained, *overrides)
    assert words in message
    assert bool(message) == bool(words)


def test_an_entropy_term_is_held_by_a_batch_that_recorded_it(trained, tmp_path):
    with_arguments(trained, entropy_coef=0.01)
    weights = [torch.ones(2), torch.ones(1)]
    U = Rollouts([[1]], [[1, 2], [3]], torch.zeros(2), token_weights=weights)
    for name, batch in (("plain", U), ("bonus", U.with_columns(entropy_weights=weights))):
        path = batch.save(tmp_path / f"{name}.parquet")
        message = refused(trained, "estimator.objective=recorded", f"batch_config.U_file={path}")
        assert ("an entropy term is in the loss" in message) == (name == "plain")


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
    with_arguments(trained, **options)
    assert refused(trained) == ""


def test_a_batch_used_twice_is_weighted_by_its_ratios(trained):
    with_arguments(trained, num_iterations=2, epsilon=0.1, epsilon_high=0.3)
    assert "set estimator.off_policy: true" in refused(trained)
    stale = "estimator.off_policy=true"
    config, found = settled(trained, stale)
    assert config.estimator.clip_pair == (0.1, 0.3)
    assert found.obstacles == ()
    assert "training had [0.1, 0.3]" in refused(trained, stale, "estimator.clip=0.2")


@pytest.mark.parametrize(
    ("kind", "options"), [(trl.RLOOConfig, {}), (trl.GRPOConfig, {"loss_type": "sapo"})]
)
def test_a_stale_batch_whose_weights_are_not_known_is_sent_to_a_record(trained, kind, options):
    with_arguments(trained, kind, num_iterations=2, beta=0.0, **options)
    for off_policy in ("true", "false"):
        message = refused(trained, f"estimator.off_policy={off_policy}")
        assert "record the step" in message
        assert "set estimator.off_policy" not in message


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
    U = Rollouts([[3]], [[4, 1], [5, 1]], [0, 0], advantages=[1.0, -1.0], rewards=[1.0, 0.0])
    row = {"prompt": "1+1=", "response": "1", "advantage": 1.0}
    (tmp_path / "U.jsonl").write_text(json.dumps(row))
    with_arguments(trained, scale_rewards="batch")
    assert "scale_rewards" in refused(trained)
    saved = f"batch_config.U_file={U.save(tmp_path / 'U.parquet')}"
    for file in (saved, f"batch_config.U_file={tmp_path}/U.jsonl", logged(trained, 5)):
        assert refused(trained, file) == ""
    with_arguments(trained)
    config, _ = settled(trained, saved)
    assert config.estimator.advantages is None


def test_completions_of_another_step_are_refused(trained):
    with_arguments(trained, max_grad_norm=1.0, logging_steps=2)
    of_4 = logged(trained, 4)
    assert "next step of this checkpoint is the one to 5: give the batch" in refused(trained, of_4)
    assert refused(trained, logged(trained, 5)) == ""
    assert refused(trained, of_4, "estimator.ignore_training_settings=[stale_batch]") == ""
    row = {"prompt": "1+1=", "response": "1", "advantage": 1.0, "step": 4}
    (trained / "U.jsonl").write_text(json.dumps(row))
    of_4 = f"batch_config.U_file={trained}/U.jsonl"
    assert "the batch of the step to 4" in refused(trained, of_4)


def rewarded_by(folder, *names, **options):
    """A TRL checkpoint whose log has the rewards of these functions, in the order of training."""
    with_arguments(folder, per_device_train_batch_size=8, **options)
    means = {name: 0.3 + i for i, name in enumerate(names)}
    weights = options.get("reward_weights", [1.0] * len(names))
    total = sum(weight * mean for weight, mean in zip(weights, means.values(), strict=True))
    entry = {f"rewards/{name}/mean": mean for name, mean in means.items()}
    entry |= {f"rewards/{name}/std": 0.5 for name in names} | {"reward": total}
    log = {"global_step": 4, "log_history": [{"loss": 0.1}, entry]}
    file = folder / "step_4" / "trainer_state.json"
    file.write_text(json.dumps(log, sort_keys=True))  # as transformers writes it
    return file


def given(*names):
    """The override that gives reward functions."""
    return f"batch_config.dataset_name={', '.join(f'rewards.py:{name}' for name in names)}"


@pytest.mark.parametrize("order", [("right", "short"), ("short", "right")])
def test_all_functions_of_training_have_its_weights_in_whatever_order_they_are_given(
    trained, order
):
    rewarded_by(trained, *order, reward_weights=[1.0, 0.5])
    for names, weights in ((order, [1.0, 0.5]), (order[::-1], [0.5, 1.0])):
        config, found = settled(trained, given(*names))
        assert config.batch_config.dataset_options["weights"] == weights
        assert found.origins["batch_config.dataset_options.weights"].source == "training_args.bin"
        assert (found.obstacles, refused(trained, given(*names))) == ((), "")
        assert not any("which weight" in note for note in found.notes)
    reverse = given(*order[::-1])
    assert refused(trained, reverse, "batch_config.dataset_options={weights: [0.5, 1]}") == ""
    other = refused(trained, reverse, "batch_config.dataset_options={weights: [1, 0.5]}")
    assert "reward_weights" in other
    assert "give all 2 reward functions" in refused(trained, given("right"))


@pytest.mark.parametrize("total", [9.0, None])
def test_weights_that_no_sum_places_are_in_the_order_given_and_this_is_said(trained, total):
    file = rewarded_by(trained, "short", "right", reward_weights=[1.0, 0.5])
    log = json.loads(file.read_text())
    log["log_history"][-1]["reward"] = total  # as where a function gives None
    file.write_text(json.dumps(log, sort_keys=True))
    config, found = settled(trained, given("short", "right"))
    assert config.batch_config.dataset_options["weights"] == [1.0, 0.5]
    assert "had which weight in training is in no file: 1 short, 0.5 right" in found.notes[-1]


def test_the_weight_of_the_only_function_is_trainings(trained):
    rewarded_by(trained, "right", reward_weights=[2.0])
    assert "give the reward function of training" in refused(trained)
    config, found = settled(trained, given("right"))
    assert config.batch_config.dataset_options["weights"] == [2.0]
    assert found.obstacles == ()


def test_a_function_that_gave_no_reward_leaves_the_order_of_the_others_known(trained):
    file = rewarded_by(trained, "short", "none", "right", reward_weights=[1.0, 0.5, 0.25])
    log = json.loads(file.read_text())
    means = log["log_history"][-1]
    means["reward"] -= 0.5 * means["rewards/none/mean"]
    means["rewards/none/mean"] = None
    file.write_text(json.dumps(log, sort_keys=True))
    config, _ = settled(trained, given("none", "right", "short"))
    assert config.batch_config.dataset_options["weights"] == [0.5, 0.25, 1.0]


def test_a_missing_reward_function_is_refused_and_one_of_another_name_is_noted(trained, tmp_path):
    rewarded_by(trained, "right", "short")
    assert refused(trained, given("right", "short")) == ""
    message = refused(trained, given("right"))
    assert "training had the reward functions right, short" in message
    assert "short is missing" in message
    ignored = "estimator.ignore_training_settings=[reward_funcs]"
    assert refused(trained, given("right"), ignored) == ""
    assert refused(trained, given("right", "right")) == ""  # as wrappers of one name are
    _, found = settled(trained, given("total"))
    assert not found.obstacles
    assert "called right, short (trainer_state.json), and those given here total" in found.notes[-1]
    recorded = ("estimator.objective=recorded", f"batch_config.U_file={tmp_path}/U.jsonl")
    _, found = settled(trained, given("right"), *recorded)
    assert not found.obstacles  # its step is training's whole; ΔJ is of one function
    assert "those given here right" in found.notes[-1]
    contract(trained)  # of `isentrope train`, which names its task
    assert not settled(trained, given("right"))[1].obstacles


def test_a_drawn_batch_of_another_size_than_trainings_is_said(trained):
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    with_arguments(trained, num_generations=4, **sizes)
    assert settled(trained)[1].prompts_per_step == 4
    (note,) = (x for x in settled(trained, "batch_config.B_U=6")[1].notes if x.startswith("U has"))
    assert "a step of training has 4, whose gradient has more noise" in note
    notes = settled(trained, "batch_config.B_U=4")[1].notes
    assert not any(x.startswith("U has") for x in notes)
