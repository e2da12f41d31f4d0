"""The objective that a run's contract names is the one whose token weights TRL really used."""

import dataclasses

import pytest
import torch

from isentrope import with_advantages
from isentrope.checkpoint.infer.fields import FIELDS
from isentrope.checkpoint.infer.passed import managed_fields
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.config.contract import advantages_of, objective_of
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.update.objective import token_weights
from tests.training import runs

trl = pytest.importorskip("trl")

UNUSUAL = {
    "beta": 0.04,
    "entropy_coef": 0.01,
    "use_adaptive_entropy": True,
    "top_entropy_quantile": 0.2,
    "neftune_noise_alpha": 5.0,
    "vllm_structured_outputs_regex": "[0-9]+",
    "num_iterations": 2,
    "use_vllm": True,
    "reward_weights": [2.0],
    "multi_objective_aggregation": "normalize_then_sum",
    "delta": 0.5,
}
USUAL = {
    "beta": 0.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0,
    "neftune_noise_alpha": None,
    "vllm_structured_outputs_regex": None,
    "num_iterations": 1,
    "use_vllm": False,
    "reward_weights": [1.0],
    "multi_objective_aggregation": "sum_then_normalize",
    "delta": 1.5,
}
SAME_WEIGHTS = {
    "importance_sampling_level": "acts on ratios, which are 1 unless a listed option makes others",
    "router_aux_loss_coef": "a term without token weights: its contract is not replayable",
    "label_smoothing_factor": "not read by GRPOTrainer",
    "average_tokens_across_devices": "not read by GRPOTrainer",
    "off_policy_mask_threshold": "acts on ratios or with use_vllm only",
}


def config(folder, **trainer):
    return load_config(runs.settings(folder, trainer=trainer), [], TrainConfig)


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_option_that_changes_token_weights_makes_the_objective_recorded(tmp_path, name):
    assert objective_of(config(tmp_path, **{name: UNUSUAL[name]})) == "recorded"
    assert objective_of(config(tmp_path, **{name: USUAL[name]})) == "dr_grpo"


def test_a_second_clip_at_0_changes_token_weights(tmp_path):
    assert objective_of(config(tmp_path, delta=0.0)) == "recorded"


def test_no_field_of_the_trainer_is_passed_over():
    ours = {field.name for field in dataclasses.fields(trl.GRPOConfig)} - set(
        managed_fields("train")
    )
    suspect = {n for n in ours if FIELDS[n].treatment == "refused"}
    assert suspect - set(SAME_WEIGHTS) <= set(UNUSUAL)


SLOW = [pytest.mark.slow]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_entropy_quantile": 0.3},
        {"delta": 0.5},
        pytest.param({"reward_weights": [2.0]}, marks=SLOW),
        pytest.param({"multi_objective_aggregation": "normalize_then_sum"}, marks=SLOW),
        pytest.param({"entropy_coef": 1.0}, marks=SLOW),
        pytest.param({"importance_sampling_level": "sequence"}, marks=SLOW),
        pytest.param({"epsilon": 0.01, "epsilon_high": 0.5, "delta": 1.5}, marks=SLOW),
        pytest.param({"scale_rewards": "group", "loss_type": "dapo"}, marks=SLOW),
        pytest.param({"loss_type": "sapo", "sapo_temperature_pos": 3.0}, marks=SLOW),
        pytest.param({"loss_type": "vespo"}, marks=SLOW),
        pytest.param({"loss_type": "luspo"}, marks=SLOW),
    ],
    ids=str,
)
def test_a_named_objective_has_the_token_weights_that_trl_used(tmp_path, options):
    """One fresh batch: the second step, whose checkpoint is the first step's."""
    made = runs.trainer(tmp_path, steps=2, **options)
    made.train()
    U, _ = read_next_update(tmp_path / "training_state" / "step_1")
    settings = config(tmp_path / "settings", **options)
    named, loss = objective_of(settings), options.get("loss_type", "dr_grpo")
    batch = with_advantages(U, advantages_of(settings))
    expected = token_weights(batch, loss, runs.LENGTH)
    same = torch.allclose(U.padded("token_weights"), expected, rtol=2e-3, atol=1e-6)
    assert same or named == "recorded"
    if named == "recorded" and "entropy_coef" not in options:
        assert not same


def load(tmp_path, *settings):
    return load_config(runs.settings(tmp_path), list(settings), TrainConfig)


@pytest.mark.parametrize("section", ["entropy_probe", "noise_scale"])
def test_the_earlier_name_of_a_decay_is_read(tmp_path, section):
    earlier, today = (
        getattr(load(tmp_path, f"{section}.{name}=0.5"), section) for name in ("memory", "decay")
    )
    assert earlier == today
    assert today.decay == 0.5
    with pytest.raises(ConfigError):
        load(tmp_path, f"{section}.memory=0.5", f"{section}.decay=0.5")


def test_a_micro_batch_of_training_counts_sequences_in_whole_groups(tmp_path):
    training = load(tmp_path, "training.micro_batch=16", "training.group_size=8").training
    assert training.groups_per_pass == 2
    assert load(tmp_path, "training.micro_batch=null").training.groups_per_pass is None
    for size in (4, 12, 24):  # half a group, one and a half, and 3 of 4 groups
        with pytest.raises(ConfigError):
            load(tmp_path, f"training.micro_batch={size}")
