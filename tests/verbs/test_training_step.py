"""`ise.optimizer_step` reads what the command line reads and refuses what it refuses."""

import pytest
import torch

import isentrope as ise
from isentrope import score
from isentrope.config.estimator import EstimatorConfig
from isentrope.nouns.vectors import axpy, norm
from isentrope.probe.options import setting
from isentrope.update.step import compute_step as computed
from tests.tiny_checkpoint import PROMPTS
from tests.verbs.as_trained import refused, with_arguments

trl = pytest.importorskip("trl")
OWN = {"loss_type": "dapo", "beta": 0.0, "max_grad_norm": 1e-3, "scale_rewards": "none"}


@pytest.fixture(scope="module")
def policy(tiny):
    return ise.Policy.from_checkpoint(tiny / "step_4")


@pytest.fixture(scope="module")
def U(policy):
    drawn = ise.sample(policy, PROMPTS[:4], 4, 4, max_new_tokens=3, seed=3)
    drawn = drawn.with_columns(rewards=torch.arange(16) % 5 / 4.0)
    return ise.with_advantages(drawn, "dr_grpo")


def off(one, other):
    return norm(axpy(-1.0, one.direction, other.direction)) / norm(other.direction)


@pytest.mark.parametrize("name", ["", "optimizer.pt"])
def test_settings_that_are_left_out_are_those_of_training(trained, policy, U, name):
    with_arguments(trained, **OWN)
    step = ise.optimizer_step(policy, U, trained / "step_4" / name)
    known = computed(policy, U, trained / "step_4", objective="dapo", max_grad_norm=1e-3)
    assert off(step, known) < 1e-12
    assert not any("ASSUMED" in sentence for sentence in step.warnings)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"beta": 0.05}, {}),
        ({}, {"objective": "dr_grpo", "max_response_length": 3}),
        ({}, {"max_grad_norm": 1.0}),
        ({"temperature": 0.7}, {}),
        ({"num_iterations": 2}, {}),
    ],
)
def test_what_the_command_line_refuses_is_refused_in_its_words(
    trained, policy, U, tmp_path, options, settings
):
    with_arguments(trained, **(OWN | options))
    with pytest.raises(ValueError, match="would not be the one that training takes") as caught:
        ise.optimizer_step(policy, U, trained / "step_4", **settings)
    file = U.save(tmp_path / "U.parquet")
    keys = [f"estimator.{key}={value}" for key, value in settings.items()]
    keys += [f"batch_config.U_file={file}", "sampling.temperature=1.0"]
    of_the_command_line = refused(trained, *keys).partition(": ")[2]
    assert str(caught.value).partition(": ")[2] == of_the_command_line


def test_what_may_differ_leaves_a_warning(trained, policy, U):
    with_arguments(trained, **(OWN | {"beta": 0.05}))
    step = ise.optimizer_step(policy, U, trained / "step_4", ignore_training_settings=["beta"])
    assert any("NOT TRAINING'S STEP" in sentence for sentence in step.warnings)


def test_advantages_by_another_rule_are_seen_and_own_ones_are_taken(trained, policy, U):
    with_arguments(trained, **(OWN | {"scale_rewards": "group"}))
    with pytest.raises(ValueError, match="those of dr_grpo, training had grpo"):
        ise.optimizer_step(policy, U, trained / "step_4")
    for mine in (ise.with_advantages(U, "grpo"), U.with_columns(advantages=U.advantages + 0.1)):
        ise.optimizer_step(policy, mine, trained / "step_4")


def test_a_checkpoint_without_records_names_what_is_assumed(tiny, policy, U):
    sentence = next(
        w for w in ise.optimizer_step(policy, U, tiny / "step_4").warnings if "ASS" in w
    )
    for key in ("estimator.objective=dr_grpo", "estimator.max_grad_norm=1.0"):
        assert key in sentence
    assert "temperature" not in sentence  # the policy has one
    told = ise.optimizer_step(policy, U, tiny / "step_4", objective="dapo", max_grad_norm=None)
    assert not any("ASSUMED" in w for w in told.warnings)


def test_a_stale_batch_is_weighted_as_on_the_command_line(tiny, policy, U):
    logprobs = score(policy, U).logprobs - 0.3
    rows = [row[:n] for row, n in zip(logprobs, U.lengths.tolist(), strict=True)]
    stale = U.with_columns(sampler_logprobs=rows)
    options = {"objective": "dapo", "max_grad_norm": None}
    with pytest.raises(ValueError, match="off_policy: true"):
        ise.optimizer_step(policy, stale, tiny / "step_4", **options)
    step = ise.optimizer_step(policy, stale, tiny / "step_4", off_policy=True, clip=None, **options)
    scaled = U.with_columns(advantages=U.advantages * torch.e**0.3)
    assert off(step, ise.optimizer_step(policy, scaled, tiny / "step_4", **options)) < 1e-6


def test_a_torch_optimizer_has_the_defaults_of_the_command_line(policy, U):
    large = U.with_columns(advantages=1e4 * U.advantages)
    sgd = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], lr=0.1)
    step = ise.optimizer_step(policy, large, sgd)
    estimator = EstimatorConfig()
    known = {"objective": estimator.objective, "max_grad_norm": estimator.max_grad_norm}
    assert off(step, computed(policy, large, sgd, **known)) == 0
    assert step.clip_factor < 1


def test_the_probe_refuses_another_temperature_than_the_trainers():
    args = trl.GRPOConfig(output_dir="unused", temperature=0.7, use_cpu=True, bf16=False)
    assert setting(args, "temperature", "temperature") == 0.7
    with pytest.raises(ValueError, match=r"temperature is 1\.0, and the trainer's is 0\.7"):
        setting(args, "temperature", "temperature", 1.0)
