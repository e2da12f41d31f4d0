"""The settings of a verl run, in the words of the table of fields.

hydra writes them to .hydra/config.yaml of the folder that it makes for a run, and `isentrope
convert --settings` puts that file beside the checkpoint. Settings that TRL has too go by TRL's
names, all others by verl's. verl 0.9 divides a loss by the tokens or responses of the whole batch
of a step; so do the objectives here.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from isentrope.system.reading import UnreadableError, read_text, reading
from isentrope.trainers import step
from isentrope.trainers.arguments import SavedArguments
from isentrope.trainers.step import Refusal

VERL_SETTINGS = "verl.yaml"
_NAMES = {
    "actor_rollout_ref.actor": (
        "clip_ratio=epsilon clip_ratio=epsilon_high clip_ratio_low=epsilon "
        "clip_ratio_high=epsilon_high clip_ratio_c loss_agg_mode loss_scale_factor entropy_coeff "
        "use_kl_loss ppo_epochs ppo_mini_batch_size grad_clip=max_grad_norm"
    ),
    "actor_rollout_ref.actor.policy_loss": "loss_mode",
    "actor_rollout_ref.actor.fsdp_config": "dtype=bf16",
    "actor_rollout_ref.rollout": "temperature top_k top_p n=num_generations",
    "actor_rollout_ref.rollout.multi_turn": "enable=multi_turn",
    "data": "max_response_length=max_completion_length train_batch_size",
    "algorithm": (
        "adv_estimator norm_adv_by_std_in_grpo=scale_rewards use_kl_in_reward use_pf_ppo"
    ),
    "algorithm.rollout_correction": "rollout_is rollout_rs bypass_mode",
    "distillation": "enabled=distillation",
    "trainer": "use_legacy_worker_impl",
    "trainer.v1": "trainer_mode",
}
"""Settings by their section, with the name in the table of fields behind "=": the last one acts."""

LOSSES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum": "rloo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
"""Objective by how verl adds the tokens' losses up (`loss_agg_mode`)."""

_USUAL = {
    (False,): (
        "use_kl_loss use_kl_in_reward entropy_coeff distillation use_pf_ppo bypass_mode multi_turn"
    ),
    (): "clip_ratio_c ppo_mini_batch_size rollout_is rollout_rs",
    (1,): "ppo_epochs",
    ("disable",): "use_legacy_worker_impl",
    ("grpo",): "adv_estimator",
    ("sync",): "trainer_mode",
    ("vanilla",): "loss_mode",
    tuple(LOSSES): "loss_agg_mode",
}
_WHERE = {
    "clip_ratio_c": step.RATIOS,
    "entropy_coeff": step.UNHELD,
    "adv_estimator": step.ADVANTAGES,
    "use_kl_in_reward": step.ADVANTAGES,
}
REFUSALS = {
    name: Refusal("a part of it is not computed here", usual, _WHERE.get(name, step.SAMPLED))
    for usual, names in _USUAL.items()
    for name in names.split()
}
"""What is refused of settings that TRL does not have, by verl's name."""


def read_verl_settings(path: Path) -> SavedArguments:
    """Read the settings of a verl run.

    Args:
        path: A copy of .hydra/config.yaml.

    Returns:
        The settings as arguments of a trainer.

    Raises:
        UnreadableError: If they are not those of a run, or a value of them refers to another.
    """
    cure = "Give .hydra/config.yaml of the run, with values in place of references (${...})."
    text, found = read_text(path, cure), dict[str, Any]()
    with reading(path, cure):
        content = yaml.safe_load(text)
        for place, names in _NAMES.items():
            section = reduce(lambda x, key: x.get(key) or {}, place.split("."), content)
            for name, _, ours in (x.partition("=") for x in names.split()):
                if isinstance(value := section.get(name), str) and "${" in value:
                    raise UnreadableError(path, f"{place}.{name} is {value}", cure)
                found[ours or name] = found.get(ours) if value is None else value
    if (mode := found["loss_agg_mode"]) is None:
        raise UnreadableError(path, "it has no actor_rollout_ref.actor.loss_agg_mode", cure)
    found["loss_type"] = LOSSES.get(mode)
    if found["loss_type"] == "dr_grpo" and found["loss_scale_factor"] is None:
        found["loss_agg_mode"] = f"{mode} without loss_scale_factor"  # a width that no file says
    if found.pop("train_batch_size") == found["ppo_mini_batch_size"]:
        found["ppo_mini_batch_size"] = None  # a generation is one step
    found["bf16"] = found["bf16"] == "bfloat16"
    return SavedArguments("verl", found)
