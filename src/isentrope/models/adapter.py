"""The adapter in a model, compared with the one on disk by the names of its tensors."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.nouns.vectors import first_false
from isentrope.system.checkpoint_folder import ADAPTER, CURE, CheckpointFolder
from isentrope.system.errors import FileError
from isentrope.system.reading import read_tensors

PROMPT_LEARNING = (
    "PROMPT_TUNING",
    "PREFIX_TUNING",
    "P_TUNING",
    "MULTITASK_PROMPT_TUNING",
    "CPT",
    "CARTRIDGE",
    "ADAPTION_PROMPT",
)
"""Kinds of PEFT whose tensors are virtual tokens, not a change of the model's layers."""


_FLOATING = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def require_tunable(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse an adapter of virtual tokens.

    Args:
        folder: The adapter's folder.
        settings: Its adapter_config.json.

    Raises:
        ValueError: Naming the kind of adapter.
    """
    kind = str(settings.get("peft_type"))
    if kind in PROMPT_LEARNING:
        raise ValueError(
            f"The adapter in {folder} is {kind}: its virtual tokens are added to every prompt, and "
            "sequences are scored here by their own tokens alone. Adapters that change layers "
            "(LoRA and its variants, IA3, VeRA, OFT, trainable tokens) are measured."
        )


def fit_vocabulary(model: Any, folder: Path) -> None:
    """Give the base as many rows as the embeddings that are saved with its adapter have.

    Every row comes from the adapter's file afterwards, so none is invented.

    Args:
        model: The base model.
        folder: The adapter's folder.

    Raises:
        FileError: If a tensor of the adapter is of a type that holds no weights.
        ValueError: If the vocabulary was resized and one of two untied embeddings is not saved.
    """
    headers = CheckpointFolder(folder).header(ADAPTER)
    for key, (kind, _) in headers.items():
        if kind not in _FLOATING:
            raise FileError(
                folder / ADAPTER,
                f"{folder / ADAPTER}: {key!r} is of type {kind}, which holds no weights. {CURE}",
            )
    modules = dict(model.named_modules())
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    names = [next((n for n, m in modules.items() if m is end), None) for end in ends]
    saved = {plain_tensor(key): shape[0] for key, (_, shape) in headers.items() if shape}
    rows = [saved.get(f"{name}.weight") for name in names]
    sizes = {size for size in rows if size is not None}
    here = ends[0].weight.shape[0]
    if sizes <= {here}:
        return
    tied = ends[1] is None or ends[0].weight is ends[1].weight
    if len(sizes) > 1 or (None in rows and not tied):
        raise ValueError(
            f"The adapter in {folder} was trained with {max(sizes)} embeddings on a base of {here},"
            " and not all rows of both embeddings are saved with it: save the resized base model, "
            "and set checkpoint.base_model to it."
        )
    model.resize_token_embeddings(sizes.pop(), mean_resizing=False)


def plain_tensor(key: str) -> str:
    """A tensor's name on disk without what PEFT adds to it."""
    return key.removeprefix("base_model.model.").replace(".base_layer.", ".")


def adapter_mismatch(model: nn.Module, folder: str | Path) -> str | None:
    """Compare the adapter in a model with the one on disk.

    What counts is on disk: PEFT saves base embeddings and output heads beside an adapter by rules
    that depend on its settings, and such tensors are looked up among the model's own.

    Args:
        model: A PEFT model.
        folder: Checkpoint folder with `adapter_model.safetensors`.

    Returns:
        None if every tensor on disk is in the model with equal values, and the model's adapter has
        no other; else a sentence.
    """
    from peft import get_peft_model_state_dict

    stored = read_tensors(Path(folder) / ADAPTER, CURE)
    adapters: Any = getattr(model, "peft_config", {})
    if not adapters:
        return (
            f"The model has no adapter, but {len(stored)} adapter tensors are on disk: load the "
            "checkpoint with Policy.from_checkpoint."
        )
    name = "default" if "default" in adapters else next(iter(adapters))
    loaded = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    loaded |= _of_the_base(model, set(stored) - set(loaded))
    if other := sorted(stored.keys() ^ loaded.keys()):
        return (
            f"{len(other)} tensors are on disk or in the model's adapter alone, the first is "
            f"{other[0]!r}: the file is incomplete, or the base model or the adapter's settings "
            "differ."
        )
    if key := first_false({key: _equal(loaded[key], tensor) for key, tensor in stored.items()}):
        return f"Tensor {key!r} differs from the one on disk: reload the checkpoint."
    return None


def _equal(loaded: Tensor, stored: Tensor) -> Tensor:
    """Whether two tensors are the same in the type of the second one, NaN included."""
    if loaded.shape != stored.shape:
        return torch.zeros((), device=loaded.device)
    here, there = loaded.to(stored.dtype), stored.to(loaded.device)
    return here.isclose(there, rtol=0, atol=0, equal_nan=True).all()


def _of_the_base(model: nn.Module, keys: set[str]) -> dict[str, Tensor]:
    """Tensors of the base that are saved with an adapter, wherever PEFT has wrapped them."""
    here = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for key in keys:
        module, _, tensor = key.rpartition(".")
        places = (key, f"{module}.base_layer.{tensor}", f"{module}.original_module.{tensor}")
        if place := next((p for p in places if p in here), None):
            tensors[key] = here[place]
    return tensors
