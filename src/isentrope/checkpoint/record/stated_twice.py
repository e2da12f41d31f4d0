"""What a contract states twice: the only place where its statements are compared.

    contract.json    its keys, the configuration in it, and its param groups
    beside it        trainer_state.json, parameter_names.json, adapter_config.json, the adapter

A contract that was edited in one place contradicts itself in another. Facts that stand in one place
alone cannot be compared: `tests/checkpoint/record/test_contract_edits.py` lists them.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from isentrope.checkpoint.files import ADAPTER, CheckpointFolder
from isentrope.nouns.choices import RECORDED
from isentrope.system.reading import read_json
from isentrope.update.optimizer_rules import choose_rule
from isentrope.update.parameter_names import SIDECAR

_Content = Mapping[str, Any]

_SAME_KEYS = {
    "sampling": {"max_new_tokens": "max_new_tokens", "temperature": "temperature"},
    "training": {k: k for k in ("prompts_per_step", "group_size", "normaliser", "seed")},
    "data": {"dataset": "dataset_name"},
}
"""Keys that the configuration has with the same values, and their names there, by section."""

_CLASSES = {"adamw": ("AdamW", "Adam"), "adam": ("Adam",), "sgd": ("SGD",), "rmsprop": ("RMSprop",)}
"""Optimizers of torch by the rule of their param groups; decay of 0 does not tell Adam's two."""


class Statement(NamedTuple):
    """One fact, as two places have it.

    Attributes:
        key: Of the contract.
        value: There.
        other_value: In the other place.
        where: The other place.
    """

    key: str
    value: Any
    other_value: Any
    where: str


def contradiction(statements: Iterator[Statement]) -> str:
    """The first of some statements whose two places differ, in words; empty if there is none."""
    for key, value, other_value, where in statements:
        if value != other_value:
            return f"{key} is {value!r}, and {other_value!r} in {where}"
    return ""


def stated_within(contract: _Content) -> Iterator[Statement]:
    """Facts that stand twice in a contract; keys that it lacks are passed over.

    Yields:
        One statement each.
    """
    config: _Content = contract.get("config", {})
    for section, names in _SAME_KEYS.items():
        for key, name in names.items():
            if key in contract and name in config.get(section, {}):
                yield Statement(key, contract[key], config[section][name], f"its config.{section}")
    training: _Content = config.get("training", {})
    if "max_grad_norm" in contract and "max_grad_norm" in training:
        clip = training["max_grad_norm"] or None
        yield Statement("max_grad_norm", contract["max_grad_norm"], clip, "its config.training")
    if "micro_batch" in contract and training.get("micro_batch") is not None:
        sequences = training["micro_batch"]
        groups = contract["micro_batch"]
        # an earlier version counted groups in both
        recorded = groups if groups == sequences else groups * contract.get("group_size", 1)
        yield Statement("micro_batch", recorded, sequences, "its config.training")
    yield from _compare_objectives(contract, config)
    yield from _compare_optimizers(contract)


def _compare_objectives(contract: _Content, config: _Content) -> Iterator[Statement]:
    control = contract.get("control")
    trainer = config.get("trainer")
    plain = contract.get("plain_objective")
    if "control" in contract and "control" in config:
        section: _Content = config["control"]
        name = None if section.get("name") == "none" else section.get("name")
        yield Statement("control.name", (control or {}).get("name"), name, "its config.control")
        options: _Content = (control or {}).get("options") or {}
        for option, value in (section.get("options") or {}).items():
            if control:
                yield Statement(f"control.{option}", options.get(option), value, "its config")
        if control and section.get("strength") is not None and "strength" in options:
            strength = section["strength"]
            yield Statement("control.strength", options["strength"], strength, "its config")
    if {"objective", "control"} <= contract.keys() and plain is not None:
        if control is None:
            yield Statement("objective", contract["objective"], plain, "its plain_objective")
        else:
            yield Statement("objective", contract["objective"], RECORDED, "its control")
    if trainer is not None:
        scaled = trainer.get("scale_rewards", "none") in ("group", True)
        sampler = "vllm" if trainer.get("use_vllm") else "transformers"
        rule = "grpo" if scaled else "dr_grpo"
        by_trainer = {"advantages": rule, "sampler": sampler}
        if control is None:  # a control may set the loss
            by_trainer["loss_type"] = trainer.get("loss_type", "dr_grpo")
        for key in by_trainer.keys() & contract.keys():
            yield Statement(key, contract[key], by_trainer[key], "its config.trainer")
    if control is None and plain not in (None, RECORDED) and "loss_type" in contract:
        longest = contract.get("normaliser") == "longest"
        by_loss = "dr_grpo_longest" if longest else contract["loss_type"]
        yield Statement("plain_objective", plain, by_loss, "its loss_type and normaliser")


def _compare_optimizers(contract: _Content) -> Iterator[Statement]:
    groups: list[_Content] = contract.get("param_groups", [])
    if groups and "learning_rate_next" in contract:
        rate = contract["learning_rate_next"]
        yield Statement("learning_rate_next", rate, groups[0]["lr"], "its param_groups")
    name = contract.get("optimizer")
    if not groups or not hasattr(torch.optim, str(name)):
        return  # other packages have classes of these rules too
    try:
        rule = choose_rule(groups)
    except ValueError:  # not followed here, which is said where a step is computed
        return
    classes = _CLASSES[rule]
    if {group.get("decoupled_weight_decay") for group in groups} == {True}:
        classes = ("AdamW",)
    yield Statement("optimizer", name, name if name in classes else classes[0], "its param_groups")


def stated_beside(contract: _Content, folder: Path) -> Iterator[Statement]:
    """Facts that stand in a contract and in another file of its checkpoint.

    Args:
        contract: Of this version's form.
        folder: The checkpoint.

    Yields:
        One statement each; those about files that are not there are left out.

    Raises:
        FileError: If the step of the checkpoint is not that of its contract, or a file cannot be
            read.
    """
    checkpoint = CheckpointFolder(folder)
    yield Statement("step", contract["step"], checkpoint.step, "its files")
    trained: _Content = contract.get("trainable", {})
    trainer: _Content = contract.get("config", {}).get("trainer", {})
    sidecar = folder / SIDECAR
    if sidecar.is_file() and not {"fsdp", "deepspeed"} & trainer.keys():
        names: list[Any] = read_json(sidecar, kind=list)
        if names and isinstance(names[0], list):
            groups = len(contract["param_groups"])
            yield Statement("number of param_groups", groups, len(names), SIDECAR)
            names = [*chain(*names)]
        differing = [x for x in names if x not in trained] + [*trained.keys() - set(names)]
        for name in differing[:1]:
            yield Statement("trainable", name in trained, name in names, f"{SIDECAR} ({name})")
    if checkpoint.is_adapter and (folder / ADAPTER).is_file():
        shapes = {name: shape for name, (_, shape) in checkpoint.header(ADAPTER).items()}
        for name, shape in trained.items():
            stored = shapes.get(name.replace(".default", ""))
            if stored is not None:
                yield Statement(f"trainable.{name}", [*shape], [*stored], ADAPTER)
    model: _Content = contract.get("config", {}).get("model", {})
    if model.get("lora_rank") and contract.get("base_model") == model.get("path"):
        for key, setting in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
            if key in model and setting in checkpoint.adapter:
                other_value = checkpoint.adapter[setting]
                yield Statement(
                    f"config.model.{key}", model[key], other_value, "adapter_config.json"
                )
