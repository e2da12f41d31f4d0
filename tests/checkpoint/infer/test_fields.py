"""Every field of the trainers is classified, named in one place, and the page says what it says."""

import ast
import dataclasses

import pytest
from transformers import TrainingArguments

from isentrope.checkpoint.infer.fields import (
    FIELDS,
    REFUSALS,
    TRAINING_KEYS,
    require_known_settings,
)
from tests.checkpoint.infer.settings_page import PAGE, settings_page
from tests.sources import trees

trl = pytest.importorskip("trl")


@pytest.mark.parametrize(
    "kind", [trl.GRPOConfig, trl.RLOOConfig, trl.SFTConfig, TrainingArguments], ids=str
)
def test_a_field_that_a_new_version_adds_is_not_passed_over(kind):
    names = {field.name for field in dataclasses.fields(kind)}
    assert names - set(FIELDS) == set(), "classify these in checkpoint/infer/fields.py"


def test_every_refused_field_has_a_refusal_and_may_be_acknowledged():
    refused = {name for name, field in FIELDS.items() if field.treatment == "refused"}
    ruled = {refusal.field for refusal in REFUSALS}
    assert refused - ruled == {"router_aux_loss_coef", "disable_dropout"}  # seen in the model
    assert ruled - refused == {"loss_type", "scale_rewards"}
    require_known_settings([*refused, *ruled, *TRAINING_KEYS])


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == settings_page()


OUR_KEYS = (
    "temperature",
    "max_grad_norm",
    "loss_type",
    "learning_rate",
    "seed",
    "debug",
    "optim",
    "project",
    "beta",
    "max_length",
    "epsilon",
    "delta",
    "top_k",
    "top_p",
    "min_p",
    "weight_decay",
    "log_level",
    "warmup_steps",
    "report_to",
)
"""Names that are also ours: keys of a configuration, of a contract or of a log."""
BELOW = (
    "system",
    "nouns",
    "models",
    "policy",
    "sampling",
    "update",
    "checks",
    "checkpoint",
)
"""Rooms that know no trainer; what they name is torch's or transformers' own."""
MAY_NAME_FIELDS = {
    "config": (
        "bf16 ddp_backend ddp_find_unused_parameters disable_dropout disable_tqdm "
        "gradient_accumulation_steps gradient_checkpointing importance_sampling_level "
        "logging_nan_inf_filter logging_steps lr_scheduler_type max_completion_length "
        "max_steps num_generations num_iterations off_policy_mask_threshold output_dir "
        "per_device_train_batch_size push_to_hub save_steps save_strategy scale_rewards "
        "shuffle_dataset train_sampling_strategy use_cpu use_vllm"
    ),
    "control": (
        "deepspeed entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target "
        "epsilon_high fp16 fsdp importance_sampling_level use_adaptive_entropy"
    ),
    "probe": ("generation_kwargs max_completion_length num_iterations reward_weights use_vllm"),
    "run": (
        "adam_beta1 adam_beta2 adam_epsilon epsilon_high lr_scheduler_kwargs "
        "lr_scheduler_type max_steps num_iterations optim_args scale_rewards use_cache "
        "warmup_ratio"
    ),
    "verbs": (
        "bf16 disable_dropout fp16 output_dir per_device_train_batch_size "
        "router_aux_loss_coef save_strategy scale_rewards"
    ),
}
"""Rooms that name a field all the same, and which; the list may only shrink."""


def fields_named(tree):
    """Names of trainers' fields that are texts in a module, its docstrings left out."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str)} & (set(FIELDS) - set(OUR_KEYS))


def test_a_trainers_field_is_named_in_the_table_alone():
    rooms = [(path.partition("/")[0], tree) for path, tree in trees().items() if "/" in path]
    named = {
        (room, field) for room, tree in rooms if room not in BELOW for field in fields_named(tree)
    }
    allowed = {(room, name) for room, names in MAY_NAME_FIELDS.items() for name in names.split()}
    assert named <= allowed
