"""Readers of the arguments of other trainers, which run no code of a file.

training_args.bin of transformers and TRL is a pickle, and `inert` reads it: its attributes are read
as plain values. So files of other versions of TRL and of subclasses of its configuration are read,
and TRL does not have to be installed. A call of anything but an enum, a device, a path or a
container does not occur in training arguments, and is refused.

verl's settings are YAML: hydra writes them to .hydra/config.yaml of the folder that it makes for a
run, and `isentrope convert --settings` puts that file beside the checkpoint. Settings that TRL has
too go by TRL's names. All others that put something else into the step are the field `verl`. verl
0.9 divides a loss by the tokens or responses of the whole batch of a step; so do the objectives
here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import yaml
from torch import Tensor

from isentrope.system.inert import Inert, load_torch
from isentrope.system.reading import read_text, reading
from isentrope.system.secrets import secrets_in

TRAINING_ARGS = "training_args.bin"
_LARGEST = 16 * 2**20
"""Largest size in bytes; the file of a real run has a few thousand."""

_LIBRARIES = (
    "trl",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "deepspeed",
    "huggingface_hub",
)
_CALLABLE = {"torch.device", "datetime.timedelta"} | {
    f"{module}.{pure}{system}Path"
    for module in ("pathlib", "pathlib._local")
    for pure in ("", "Pure")
    for system in ("Posix", "Windows")
}

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


@dataclass(frozen=True)
class SavedArguments:
    """The arguments of a trainer.

    Attributes:
        kind: Name of their class, such as "GRPOConfig".
        fields: Value of every argument by name; an enum by its value. Values that are not plain
            (a device, a plug-in) are omitted.
        processes: Number of training processes; 1 if the file does not contain it.
    """

    kind: str
    fields: Mapping[str, Any]
    processes: int = 1

    @property
    def trainer(self) -> Literal["grpo", "rloo", "sft", "other"]:
        """The trainer, by class or, for a subclass, by fields; "other" if unknown."""
        names = set(self.fields)
        if self.kind == "GRPOConfig" or {"num_generations", "loss_type"} <= names:
            return "grpo"
        if {"num_generations", "normalize_advantages"} <= names:
            return "rloo"
        plain = self.kind in ("TrainingArguments", "Seq2SeqTrainingArguments")
        return "sft" if plain or "completion_only_loss" in names else "other"


def read_training_arguments(path: Path) -> SavedArguments:
    """Read training_args.bin.

    Returns:
        The arguments.

    Raises:
        ValueError: If the file does not hold arguments of a trainer, or would run code.
    """
    with reading(path, "Remove the file, and set the training settings in the configuration."):
        if (size := path.stat().st_size) > _LARGEST:
            raise ValueError(f"{size} bytes are too many")
        loaded = load_torch(path)
        if unknown := sorted(call for call in loaded.calls if not _occurs(call)):
            raise ValueError(
                f"it calls {unknown[0]}, which training arguments never do, so it may be meant to "
                "run code"
            )
        if not isinstance(content := loaded.value, Inert):
            raise ValueError(f"it holds a {type(content).__name__}, not training arguments")
    state = content.attributes()
    fields = {k: v for k, v in _plain(state).items() if not any(secrets_in({k: v}))}
    distributed = state.get("distributed_state")
    held = distributed.attributes() if isinstance(distributed, Inert) else {}
    number = held.get("num_processes")
    return SavedArguments(content.name, fields, number if isinstance(number, int) else 1)


def _occurs(call: str) -> bool:
    """Whether training arguments hold such calls."""
    library, *_, name = call.split(".")
    return (library in _LIBRARIES and name[:1].isupper()) or call in _CALLABLE


_OPAQUE = object()


def _plain(value: Any) -> Any:
    """A value as plain JSON; `_OPAQUE` if it is not plain."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Inert):  # an enum is called with its value
        enum = len(value.arguments) == 1 and value.module.split(".")[0] in _LIBRARIES
        return _plain(value.arguments[0]) if enum else _OPAQUE
    if isinstance(value, dict):
        plain = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item is not _OPAQUE}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [v for item in value if (v := _plain(item)) is not _OPAQUE]
    return _OPAQUE


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
    found = dict[str, Any]()
    with reading(path, cure):
        content = yaml.safe_load(text)
        mode = content["actor_rollout_ref"]["actor"]["loss_agg_mode"]
        others = [*_settings(content, _USUAL)]
        for place, name, value in _settings(content, _NAMES):
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


def _settings(content: Any, table: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Place, word and value of each setting of a table; None where it is not set."""
    for place, names in table.items():
        section = reduce(lambda x, key: x.get(key) or {}, place.split("."), content)
        for name, _, word in (x.partition("=") for x in names.split()):
            yield f"{place}.{name}", word or name, section.get(name)
