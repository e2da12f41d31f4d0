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
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
_PLACES = {
    "temperature": _ROLLOUT + "temperature",
    "top_k": _ROLLOUT + "top_k",
    "top_p": _ROLLOUT + "top_p",
    "num_generations": _ROLLOUT + "n",
    "max_completion_length": "data.max_response_length",
    "max_grad_norm": _ACTOR + "grad_clip",
    "epsilon": _ACTOR + "clip_ratio_low",
    "epsilon_high": _ACTOR + "clip_ratio_high",
    "clip_ratio": _ACTOR + "clip_ratio",
    "clip_ratio_c": _ACTOR + "clip_ratio_c",
    "loss_mode": _ACTOR + "policy_loss.loss_mode",
    "loss_agg_mode": _ACTOR + "loss_agg_mode",
    "loss_scale_factor": _ACTOR + "loss_scale_factor",
    "entropy_coeff": _ACTOR + "entropy_coeff",
    "use_kl_loss": _ACTOR + "use_kl_loss",
    "ppo_epochs": _ACTOR + "ppo_epochs",
    "ppo_mini_batch_size": _ACTOR + "ppo_mini_batch_size",
    "train_batch_size": "data.train_batch_size",
    "dtype": _ACTOR + "fsdp_config.dtype",
    "multi_turn": _ROLLOUT + "multi_turn.enable",
    "adv_estimator": "algorithm.adv_estimator",
    "norm_adv_by_std_in_grpo": "algorithm.norm_adv_by_std_in_grpo",
    "use_kl_in_reward": "algorithm.use_kl_in_reward",
    "rollout_is": "algorithm.rollout_correction.rollout_is",
    "rollout_rs": "algorithm.rollout_correction.rollout_rs",
    "use_legacy_worker_impl": "trainer.use_legacy_worker_impl",
}
"""Where each stands in the file."""

LOSSES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum": "rloo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
"""Objective by how verl adds the tokens' losses up (`loss_agg_mode`)."""

REFUSALS = {
    "loss_mode": Refusal("its loss is not known here", ("vanilla",)),
    "loss_agg_mode": Refusal("its loss is not known here", tuple(LOSSES)),
    "use_legacy_worker_impl": Refusal("the loss divides by the tokens of a pass", ("disable",)),
    "entropy_coeff": Refusal("an entropy term is in the loss", (0,), step.UNHELD, of_recorded=True),
    "use_kl_loss": Refusal("a KL term is in the loss", (False,)),
    "use_kl_in_reward": Refusal("a KL term is in the rewards", (False,), step.ADVANTAGES),
    "adv_estimator": Refusal("its advantages are not known here", ("grpo",), step.ADVANTAGES),
    "ppo_epochs": Refusal("most steps are on stale responses", (1,)),
    "ppo_mini_batch_size": Refusal("a batch of responses is used in several steps"),
    "clip_ratio_c": Refusal("a second clip is in the loss", (), step.RATIOS),
    "rollout_is": Refusal("tokens are weighted by ratios to their sampler"),
    "rollout_rs": Refusal("responses far from their sampler are masked"),
    "multi_turn": Refusal("texts do not say which tokens the policy drew", (False,)),
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
    cure = "Give .hydra/config.yaml of the run."
    with reading(path, cure):
        content = yaml.safe_load(read_text(path, cure))
    found = {name: _at(content, place) for name, place in _PLACES.items()}
    if missing := [_PLACES[n] for n in ("temperature", "loss_agg_mode") if found[n] is None]:
        raise UnreadableError(path, f"it has no {missing[0]}", cure)
    if open_ := [n for n, value in found.items() if isinstance(value, str) and "${" in value]:
        raise UnreadableError(path, f"{_PLACES[open_[0]]} is {found[open_[0]]}", "Write its value.")
    low, mode = found.pop("clip_ratio"), found["loss_agg_mode"]
    found["epsilon"] = low if found["epsilon"] is None else found["epsilon"]
    found["loss_type"] = LOSSES.get(mode)
    if LOSSES.get(mode) == "dr_grpo":
        found["_max_response_length"] = found["loss_scale_factor"]
        if found["loss_scale_factor"] is None:  # the width of a padded pass, which no file says
            found["loss_agg_mode"] = f"{mode} without loss_scale_factor"
    del found["loss_scale_factor"]
    found["scale_rewards"] = "none" if found.pop("norm_adv_by_std_in_grpo") is False else "group"
    if found.pop("train_batch_size") == found["ppo_mini_batch_size"]:
        found["ppo_mini_batch_size"] = None  # a generation is one step
    found["bf16"] = found.pop("dtype") == "bfloat16"
    return SavedArguments("verl", found)


def _at(content: Any, place: str) -> Any:
    """The value at a place such as "data.seed"; None where there is none."""
    return reduce(
        lambda x, key: x.get(key) if isinstance(x, dict) else None, place.split("."), content
    )
