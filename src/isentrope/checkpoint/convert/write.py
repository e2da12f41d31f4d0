"""A gathered checkpoint written in the layout of Hugging Face, with the optimizer by name."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from isentrope.checkpoint.convert.deepspeed import read_deepspeed
from isentrope.checkpoint.convert.distributed import read_dcp, read_fsdp
from isentrope.checkpoint.convert.gathered import Gathered, described_model
from isentrope.checkpoint.convert.source import (
    described_by,
    places_of_shards,
    refuse_layout,
    require_convertible,
)
from isentrope.checkpoint.convert.verl import read_verl
from isentrope.checkpoint.files import ADAPTER_CONFIG, TRAINER_STATE, TRAINING_ARGS, VERL_SETTINGS
from isentrope.checkpoint.infer.verl_settings import read_verl_settings
from isentrope.system.files import whole_folder, write_json
from isentrope.system.inert import without_stand_ins
from isentrope.system.reading import read_json, reading
from isentrope.update.parameter_names import plain_name, unwrapped

_KEPT = (
    "config.json",
    ADAPTER_CONFIG,
    "generation_config.json",
    "*token*",
    "vocab*",
    "merges.txt",
    "*.model",
    "chat_template*",
)
"""Beside the weights: configuration and tokenizer."""
_OF_TRAINING = (TRAINING_ARGS, TRAINER_STATE, "scheduler.pt")
"""What the verbs read of a trainer's settings."""

_AGAIN = "Copy the checkpoint anew, or let its trainer save it again."


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        folder: The checkpoint.
        layout: What it was read from.
        tensors: Number of weights written.
        parameters: Parameters with an optimizer state; None where the source has no optimizer.
    """

    folder: Path
    layout: str
    tensors: int
    parameters: int | None


def convert(
    source: str | Path,
    out: str | Path,
    model: str | Path | None = None,
    run_settings: str | Path | None = None,
) -> Converted:
    """Write a checkpoint of another trainer as one that every verb reads.

    Known are torch.distributed.checkpoint, FSDP of accelerate and transformers, verl's FSDP 1 and
    2, and DeepSpeed's ZeRO stages 1 to 3, which OpenRLHF writes too.

    Args:
        source: The checkpoint's folder.
        out: Folder to create.
        model: Folder with config.json and the tokenizer, or with adapter_config.json where an
            adapter was trained; None where the checkpoint has them itself.
        run_settings: .hydra/config.yaml of verl's run, to be read with the checkpoint.

    Returns:
        The folder and what is in it.

    Raises:
        FileNotFoundError: If the source is not there, incomplete or of no known layout.
        FileExistsError: If `out` exists.
        FileError: If `out` is in the source or the model.
        ValueError: If weights and configuration do not fit, or there is nothing to convert.
    """
    folder = Path(source)
    out = Path(out)
    require_convertible(folder, out, model, run_settings)
    if run_settings is not None:
        read_verl_settings(Path(run_settings))
    gathered = _read(folder)
    places = [gathered.config, folder] if model is None else [Path(model)]
    config = described_by([place for place in places if place is not None], model or folder)
    adapter = (config / ADAPTER_CONFIG).is_file()
    weights = {unwrapped(name): tensor for name, tensor in gathered.weights.items()}
    weights = (
        _name_adapter_weights(weights, gathered) if adapter else _check_weights(weights, config)
    )
    with whole_folder(out) as partial:
        name = f"{'adapter_' if adapter else ''}model{{suffix}}.safetensors"
        largest_file = 2**63 if adapter else "5GB"  # PEFT reads an adapter from one file
        save_torch_state_dict(weights, partial, filename_pattern=name, max_shard_size=largest_file)
        copied = [file for pattern in _KEPT for file in config.glob(pattern)]
        for file in (*copied, *(folder / name for name in _OF_TRAINING)):
            if file.is_file():
                shutil.copy(file, partial)
        if gathered.training and not (partial / TRAINING_ARGS).is_file():
            state = partial / TRAINER_STATE
            written = read_json(state, finite=False) if state.is_file() else {}
            write_json(state, {**gathered.training, **written})
        if run_settings is not None:
            shutil.copy(run_settings, partial / VERL_SETTINGS)
        if gathered.optimizer is not None:
            torch.save(gathered.optimizer, partial / "optimizer.pt")
    states = None if gathered.optimizer is None else len(gathered.optimizer.get("state", {}))
    return Converted(out, gathered.layout, len(weights), states)


def _read(folder: Path) -> Gathered:
    """The checkpoint, without objects of other classes."""
    for reader in (read_verl, read_fsdp, read_dcp, read_deepspeed):
        for place in places_of_shards(folder):
            with reading(place, _AGAIN):
                if not place.is_dir() or (gathered := reader(place)) is None:
                    continue
                weights = gathered.weights.items()
                if not all(isinstance(n, str) and isinstance(x, Tensor) for n, x in weights):
                    raise ValueError("its weights are not tensors by name")
                optimizer = without_stand_ins(gathered.optimizer)
                for group in (optimizer or {}).get("param_groups", ()):
                    group["params"] = [*map(str, group["params"])]
                return replace(gathered, optimizer=optimizer)
    refuse_layout(folder)


def _name_adapter_weights(weights: Mapping[str, Tensor], gathered: Gathered) -> dict[str, Tensor]:
    """The adapter's tensors by the names that PEFT gives them in a file."""
    groups = (gathered.optimizer or {}).get("param_groups", ())
    trained = {plain_name(name) for group in groups for name in group["params"]}
    chosen = {
        name: tensor
        for name, tensor in weights.items()
        if "lora_" in name or plain_name(name) in trained
    }
    if not chosen:
        raise ValueError("The checkpoint holds no weights of an adapter: give the model's folder.")
    saved = {}
    for name, tensor in chosen.items():
        short = name.replace(".modules_to_save.default", "").replace(".default", "")
        saved[short if short.startswith("base_model.") else f"base_model.model.{short}"] = tensor
    return saved


def _check_weights(weights: Mapping[str, Tensor], config: Path) -> dict[str, Tensor]:
    """All weights of the model that config.json describes, checked by name and shape."""
    model = described_model(config)
    expected = model.state_dict()
    of_modules = [*model.named_parameters(), *model.named_buffers()]  # a tied weight once
    needed = {name for name, _ in of_modules if name in expected}
    for name in sorted(needed | weights.keys()):
        shape = tuple(weights[name].shape) if name in weights else None
        expected_shape = tuple(expected[name].shape) if name in expected else None
        if shape != expected_shape:
            raise ValueError(
                f"{name!r} has shape {shape} in the checkpoint and {expected_shape} in the model "
                f"of {config}: give the folder of the model that was trained, or of its adapter, "
                "with --model."
            )
    return {name: weights[name] for name in expected if name in needed}
