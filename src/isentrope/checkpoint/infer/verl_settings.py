"""The settings of a run of verl, as arguments of a trainer.

They are YAML: hydra writes them to .hydra/config.yaml of the folder that it makes for a run, and
`isentrope convert --settings` puts that file beside the checkpoint. Settings that TRL has too go by
TRL's names. All others that put something else into the step are the field `verl`. verl 0.9 divides
a loss by the tokens or responses of the whole batch of a step; so do the objectives here.
"""

from pathlib import Path
from typing import Any

import yaml

from isentrope.checkpoint.infer.arguments import SavedArguments
from isentrope.system.reading import read_text, reading

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_CORRECTION = "algorithm.rollout_correction"

_FIELDS = (
    (_ACTOR, "clip_ratio", "epsilon"),
    (_ACTOR, "clip_ratio", "epsilon_high"),
    (_ACTOR, "clip_ratio_low", "epsilon"),
    (_ACTOR, "clip_ratio_high", "epsilon_high"),
    (_ACTOR, "clip_ratio_c", "delta"),
    (_ACTOR, "entropy_coeff", "entropy_coef"),
    (_ACTOR, "grad_clip", "max_grad_norm"),
    (_ACTOR, "loss_agg_mode", "loss_type"),
    (_ACTOR, "loss_scale_factor", "loss_scale_factor"),
    (_ACTOR, "ppo_mini_batch_size", "ppo_mini_batch_size"),
    (f"{_ACTOR}.fsdp_config", "dtype", "bf16"),
    (_ROLLOUT, "temperature", "temperature"),
    (_ROLLOUT, "top_k", "top_k"),
    (_ROLLOUT, "top_p", "top_p"),
    (_ROLLOUT, "n", "num_generations"),
    ("data", "max_response_length", "max_completion_length"),
    ("data", "train_batch_size", "train_batch_size"),
    ("algorithm", "norm_adv_by_std_in_grpo", "scale_rewards"),
)
"""Section, setting, and its name in the table of fields; of several the last one acts."""

_USUAL = (
    (_ACTOR, "use_kl_loss", False),
    (_ACTOR, "ppo_epochs", 1),
    (f"{_ACTOR}.policy_loss", "loss_mode", "vanilla"),
    (f"{_ROLLOUT}.multi_turn", "enable", False),
    ("algorithm", "adv_estimator", "grpo"),
    ("algorithm", "use_kl_in_reward", False),
    ("algorithm", "use_pf_ppo", False),
    (_CORRECTION, "rollout_is", None),
    (_CORRECTION, "rollout_rs", None),
    (_CORRECTION, "bypass_mode", False),
    ("distillation", "enabled", False),
    ("trainer", "use_legacy_worker_impl", "disable"),
    ("trainer.v1", "trainer_mode", "sync"),
)
"""Section, setting, and the value with which the step is computed here; unset is usual too."""

LOSSES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum": "rloo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
"""Objective by how verl adds the tokens' losses up (`loss_agg_mode`)."""


def read_verl_settings(path: Path) -> SavedArguments:
    """Read the settings of a verl run.

    Args:
        path: A copy of .hydra/config.yaml.

    Returns:
        The settings as arguments of a trainer.

    Raises:
        ValueError: If they are not those of a run, or a value of them refers to another.
    """
    cure = "Give .hydra/config.yaml of the run, with values in place of references (${...})."
    text = read_text(path, cure)
    fields: dict[str, Any] = {}
    unusual: list[str] = []
    with reading(path, cure):
        content = yaml.safe_load(text)
        loss = content["actor_rollout_ref"]["actor"]["loss_agg_mode"]
        for place, setting, field in _FIELDS:
            value = _read_setting(content, place, setting)
            if isinstance(value, str) and "${" in value:
                raise ValueError(f"{place}.{setting} is {value}")
            fields[field] = fields.get(field) if value is None else value
        for place, setting, usual in _USUAL:
            value = _read_setting(content, place, setting)
            if str(value) not in (str(usual), "None"):
                unusual.append(f"{place}.{setting}={value}")
    mini_batch = fields.pop("ppo_mini_batch_size")
    batch = fields.pop("train_batch_size")
    if mini_batch != batch:
        unusual.append(f"ppo_mini_batch_size={mini_batch} of {batch}")
    fields["loss_type"] = LOSSES.get(loss, loss)
    if fields["loss_type"] == "dr_grpo" and fields["loss_scale_factor"] is None:
        unusual.append("loss_scale_factor=None")  # the width of a pass, which no file says
    fields["verl"] = ", ".join(unusual) or None
    fields["bf16"] = fields["bf16"] == "bfloat16"
    return SavedArguments("verl", fields)


def _read_setting(content: Any, place: str, setting: str) -> Any:
    """The value of a setting in its section; None where it is not set."""
    section = content
    for key in place.split("."):
        section = section.get(key) or {}
    return section.get(setting)
