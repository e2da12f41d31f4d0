"""Adapters: loaded into their base, compared with their file, and the types of weights on disk.

The file of an adapter is compared with its settings before PEFT reads either. The tensors in the
model are then compared with those on disk by name, so that none is missed without a word.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.checkpoint.files import (
    ADAPTER,
    ADAPTER_CONFIG,
    RESTORE_CHECKPOINT,
    CheckpointFolder,
)
from isentrope.models.base_model import NOT_GATHERED, adapter_base
from isentrope.parallel.sharded import first_false
from isentrope.system.errors import FileError
from isentrope.system.file_contents import read_tensors
from isentrope.system.log import quiet_libraries
from isentrope.system.reading import reading

WEIGHT_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Types of weights, by their names in a header of safetensors."""
_SHORT = ("F8_E4M3", "F8_E5M2")


def read_adapter(folder: Path) -> Any:
    """The PEFT configuration of an adapter.

    Args:
        folder: The adapter's folder.

    Returns:
        It.

    Raises:
        FileError: If it cannot be read.
        ValueError: If it is an adapter of virtual tokens, naming its kind.
    """
    from peft import PeftConfig

    with reading(folder / ADAPTER_CONFIG):
        config: Any = PeftConfig.from_pretrained(str(folder))
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise ValueError(
            f"The adapter in {folder} is {config.peft_type.value}: its virtual tokens are added to "
            "every prompt, and sequences are scored here by their own tokens alone. Adapters that "
            "change layers (LoRA and its variants, IA3, VeRA, OFT, trainable tokens) are measured."
        )
    return config


def with_adapter(model: Any, folder: Path) -> Any:
    """A base model with the adapter of a folder, trainable.

    Args:
        model: The base model, which is changed.
        folder: The adapter's folder.

    Returns:
        The PEFT model.

    Raises:
        FileError: If the adapter cannot be read, or does not fit the model.
        ValueError: If it is one of virtual tokens, or its tensors do not all arrive in the model.
    """
    from peft import PeftModel

    read_adapter(folder)
    require_own_tensors(folder)
    _fit_vocabulary(model, folder)
    with reading(folder), quiet_libraries():
        adapted = PeftModel.from_pretrained(
            model, folder, is_trainable=True, torch_device=str(model.device)
        )
    if missing := adapter_mismatch(adapted, folder):
        raise ValueError(f"The adapter in {folder} did not load: {missing}")
    return adapted


def require_own_tensors(folder: Path) -> None:
    """Refuse tensors that are not weights of the adapter which the settings beside them describe.

    Args:
        folder: The adapter's folder.

    Raises:
        FileError: Naming the first that is of a type without weights, empty, or of another rank.
    """
    file = folder / ADAPTER
    settings = CheckpointFolder(folder).adapter
    rank = settings.get("r") if settings.get("peft_type") == "LORA" else None
    if settings.get("rank_pattern") or settings.get("target_parameters"):
        rank = None  # others than one for all
    for key, (kind, shape) in CheckpointFolder(folder).header(ADAPTER).items():
        if kind not in WEIGHT_TYPES and kind not in _SHORT:
            raise FileError(
                f"{file}: {key!r} is of type {kind}, which holds no weights: an adapter that keeps "
                f"indices beside them (peft_type {settings.get('peft_type')}) cannot be measured. "
                "If it should hold weights alone, restore the checkpoint."
            )
        if 0 in shape:
            raise FileError(f"{file}: {key!r} is {NOT_GATHERED}.")
        if isinstance(rank, int) and key.endswith("lora_A.weight") and shape[0] != rank:
            raise FileError(
                f"{folder / ADAPTER_CONFIG} says rank {rank}, and {key!r} of {ADAPTER} has shape "
                f"{list(shape)}, which is of rank {shape[0]}: restore the file that is not of this "
                "training."
            )


def _fit_vocabulary(model: Any, folder: Path) -> None:
    """Give the base as many rows as the embeddings that are saved with its adapter have.

    Every row comes from the adapter's file afterwards, so none is invented.

    Raises:
        ValueError: If the vocabulary was resized and one of two untied embeddings is not saved.
    """
    headers = CheckpointFolder(folder).header(ADAPTER)
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    name_of = {module: name for name, module in model.named_modules()}
    saved = {_plain_tensor(key): shape[0] for key, (_, shape) in headers.items() if shape}
    rows = [saved.get(f"{name_of.get(end)}.weight") for end in ends]
    sizes = {size for size in rows if size is not None}
    base_rows = ends[0].weight.shape[0]
    if sizes <= {base_rows}:
        return
    tied = ends[1] is None or ends[0].weight is ends[1].weight
    if len(sizes) > 1 or (None in rows and not tied):
        raise ValueError(
            f"The adapter in {folder} was trained with {max(sizes)} embeddings on a base of "
            f"{base_rows}, and not all rows of both embeddings are saved with it: save the resized "
            "base model, and set checkpoint.base_model to it."
        )
    model.resize_token_embeddings(sizes.pop(), mean_resizing=False)


def _plain_tensor(key: str) -> str:
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

    stored = read_tensors(Path(folder) / ADAPTER, RESTORE_CHECKPOINT)
    adapters: Any = getattr(model, "peft_config", {})
    if not adapters:
        return (
            f"The model has no adapter, but {len(stored)} adapter tensors are on disk: load the "
            "checkpoint with Policy.from_checkpoint."
        )
    name = "default" if "default" in adapters else next(iter(adapters))
    loaded = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    model_tensors = model.state_dict()
    for key in stored.keys() - loaded.keys():  # of the base, wherever PEFT has wrapped them
        module, _, tensor = key.rpartition(".")
        for place in (key, f"{module}.base_layer.{tensor}", f"{module}.original_module.{tensor}"):
            if place in model_tensors:
                loaded[key] = model_tensors[place]
    if unmatched := sorted(stored.keys() ^ loaded.keys()):
        return (
            f"{len(unmatched)} tensors are on disk or in the model's adapter alone, the first is "
            f"{unmatched[0]!r}: the file is incomplete, or the base model or the adapter's "
            "settings differ."
        )
    agreements: dict[str, Tensor] = {}
    for key, tensor in stored.items():  # in the type of the file, where the model is
        in_model = loaded[key].to(tensor.dtype)
        on_disk = tensor.to(in_model.device)
        alike = in_model.shape == on_disk.shape
        agreements[key] = in_model.isclose(on_disk, 0, 0, True).all() if alike else torch.zeros(())
    if key := first_false(agreements):
        return f"Tensor {key!r} differs from the one on disk: reload the checkpoint."
    return None


def stored_types(folder: str | Path, names: Iterable[str]) -> dict[str, torch.dtype]:
    """The type on disk of each trained parameter.

    Args:
        folder: Checkpoint folder.
        names: Names of the trained parameters, as the model has them.

    Returns:
        A type for each name. A parameter that is stored under another name (fused experts, a tied
        head) has the type of the checkpoint where that is one; else it is omitted.
    """
    headers = CheckpointFolder(Path(folder)).headers
    adapter = Path(folder) / ADAPTER
    chosen = [headers[adapter]] if adapter in headers else headers.values()
    tensors = [(key, kind) for header in chosen for key, (kind, _) in header.items()]
    stored = {
        _plain_tensor(key): WEIGHT_TYPES[kind] for key, kind in tensors if kind in WEIGHT_TYPES
    }
    single_type = next(iter(stored.values())) if len(set(stored.values())) == 1 else None
    types: dict[str, torch.dtype] = {}
    for name in names:
        parts = _plain_tensor(name).split(".")  # PEFT's files leave two of them out
        on_disk = ".".join(p for p in parts if p not in ("default", "modules_to_save"))
        if kind := stored.get(on_disk, single_type):
            types[name] = kind
    return types


def base_type(folder: str | Path, chosen: str | Path | None = None) -> torch.dtype | None:
    """The type of the weights of an adapter's base, by its files.

    Args:
        folder: Checkpoint folder.
        chosen: `checkpoint.base_model`.

    Returns:
        The type of most of its values; None where there is no adapter, or no base on this machine.
    """
    if not CheckpointFolder(Path(folder)).is_adapter:
        return None
    try:
        source = Path(adapter_base(Path(folder), chosen))
    except FileNotFoundError:
        return None
    if not source.is_dir():
        return None
    sizes: dict[str, int] = {}
    for header in CheckpointFolder(source).headers.values():
        for kind, shape in header.values():
            sizes[kind] = sizes.get(kind, 0) + math.prod(shape)
    return WEIGHT_TYPES.get(max(sizes, key=lambda kind: sizes[kind])) if sizes else None


def mapped_type(path: str | Path, source: str | Path) -> torch.dtype:
    """The type in which a base can be mapped from its files.

    Args:
        path: Folder of a whole model, or of an adapter.
        source: Folder of the model, or its name on the hub, whose files are not looked at.

    Returns:
        bfloat16 where all tensors have that type, and an adapter keeps all weights of its base;
        else float32. float16 overflows in a pass.
    """
    folder = CheckpointFolder(Path(path))
    if folder.is_adapter:
        begun = folder.adapter.get("init_lora_weights", True)
        plain = isinstance(begun, bool) or begun in ("gaussian", "orthogonal")
        tensors = folder.header(ADAPTER) if plain and (folder.path / ADAPTER).exists() else [""]
        if not all("lora_" in name for name in tensors):
            return torch.float32
    headers = CheckpointFolder(Path(source)).headers.values()
    kinds = {kind for header in headers for kind, _ in header.values()}
    return torch.bfloat16 if kinds == {"BF16"} else torch.float32
