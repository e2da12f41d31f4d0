"""The settings of a verl run, in the words of the table of fields.

hydra writes them to .hydra/config.yaml of the folder that it makes for a run, and `isentrope
convert --settings` puts that file beside the checkpoint. Settings that TRL has too go by TRL's
names. All others that put something else into the step are the field `verl`. verl 0.9 divides a
loss by the tokens or responses of the whole batch of a step; so do the objectives here.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from isentrope.system.reading import read_text, reading
from isentrope.trainers.arguments import SavedArguments

VERL_SETTINGS = "verl.yaml"
_NAMES = {
    "actor_rollout_ref.actor": """
        clip_ratio=epsilon clip_ratio=epsilon_high clip_ratio_low=epsilon
        clip_ratio_high=epsilon_high clip_ratio_c=delta entropy_coeff=entropy_coef
        grad_clip=max_grad_norm loss_agg_mode=loss_type loss_scale_factor ppo_mini_batch_size
    """,
    "actor_rollout_ref.actor.fsdp_config": "dtype=bf16",
    "actor_rollout_ref.rollout": "temperature top_k top_p n=num_generations",
    "data": "max_response_length=max_completion_length train_batch_size",
    "algorithm": "norm_adv_by_std_in_grpo=scale_rewards",
}
"""Settings by their section, with the name in the table of fields: the last one acts."""

_USUAL = {
    "actor_rollout_ref.actor": "use_kl_loss=False ppo_epochs=1",
    "actor_rollout_ref.actor.policy_loss": "loss_mode=vanilla",
    "actor_rollout_ref.rollout.multi_turn": "enable=False",
    "algorithm": "adv_estimator=grpo use_kl_in_reward=False use_pf_ppo=False",
    "algorithm.rollout_correction": "rollout_is=None rollout_rs=None bypass_mode=False",
    "distillation": "enabled=False",
    "trainer": "use_legacy_worker_impl=disable",
    "trainer.v1": "trainer_mode=sync",
}
"""The values with which the step is computed here; unset is usual too."""

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
    text, found = read_text(path, cure), dict[str, Any]()
    with reading(path, cure):
        content = yaml.safe_load(text)
        mode = content["actor_rollout_ref"]["actor"]["loss_agg_mode"]
        others = [*_values(content, _USUAL)]
        for place, name, value in _values(content, _NAMES):
            if isinstance(value, str) and "${" in value:
                raise ValueError(f"{place} is {value}")
            found[name] = found.get(name) if value is None else value
    odd = [f"{place}={x}" for place, usual, x in others if str(x) not in (usual, "None")]
    sizes = found.pop("ppo_mini_batch_size"), found.pop("train_batch_size")
    if sizes[0] != sizes[1]:
        odd.append("ppo_mini_batch_size={} of {}".format(*sizes))
    found["loss_type"] = LOSSES.get(mode, mode)
    if found["loss_type"] == "dr_grpo" and found["loss_scale_factor"] is None:
        odd.append("loss_scale_factor=None")  # the width of a pass, which no file says
    found |= {"verl": ", ".join(odd) or None, "bf16": found["bf16"] == "bfloat16"}
    return SavedArguments("verl", found)


def _values(content: Any, table: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Place, word and value of each setting of a table; None where it is not set."""
    for place, names in table.items():
        section = reduce(lambda x, key: x.get(key) or {}, place.split("."), content)
        for name, _, word in (x.partition("=") for x in names.split()):
            yield f"{place}.{name}", word or name, section.get(name)
