"""The parameters of a checkpoint that training changed: by name, by type, and as they are on disk.

The tensors of an adapter in a model are compared with those on disk by name, so that none is missed
without a word. Of a model that was trained in part, patterns choose the parameters: those of
fnmatch, on the names of `model.named_parameters()`, where * is any text, ? one character and [ab]
one of two. "model.layers.*" is every layer, "*norm*" every norm.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
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
        if kind not in (*_TYPES, "F8_E4M3", "F8_E5M2"):
            raise FileError(
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
    from peft import get_peft_model_state_dict  # pyright: ignore[reportUnknownVariableType]

    stored = read_tensors(Path(folder) / ADAPTER, CURE)
    adapters: Any = getattr(model, "peft_config", {})
    if not adapters:
        return (
            f"The model has no adapter, but {len(stored)} adapter tensors are on disk: load the "
            "checkpoint with Policy.from_checkpoint."
        )
    name = "default" if "default" in adapters else next(iter(adapters))
    loaded = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    here = model.state_dict()
    for key in stored.keys() - loaded.keys():  # of the base, wherever PEFT has wrapped them
        module, _, tensor = key.rpartition(".")
        places = (key, f"{module}.base_layer.{tensor}", f"{module}.original_module.{tensor}")
        if place := next((p for p in places if p in here), None):
            loaded[key] = here[place]
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


_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


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
    stored = {
        plain_tensor(key): _TYPES[kind]
        for header in chosen
        for key, (kind, _) in header.items()
        if kind in _TYPES
    }
    only = set(stored.values())
    types: dict[str, torch.dtype] = {}
    for name in names:
        parts = plain_tensor(name).split(".")  # PEFT's files leave two of them out
        on_disk = ".".join(p for p in parts if p not in ("default", "modules_to_save"))
        kind = stored.get(on_disk) or (next(iter(only)) if len(only) == 1 else None)
        if kind is not None:
            types[name] = kind
    return types


def base_type(source: str | Path) -> torch.dtype:
    """The type in which a base can be mapped from its files.

    Args:
        source: Folder of the model, or its name on the hub, whose files are not looked at.

    Returns:
        bfloat16 where all tensors have that type, else float32; float16 overflows in a pass.
    """
    headers = CheckpointFolder(Path(source)).headers.values()
    kinds = {kind for header in headers for kind, _ in header.values()}
    return torch.bfloat16 if kinds == {"BF16"} else torch.float32


def train_only(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make θ the parameters whose names fit a pattern, and freeze the rest.

    Args:
        model: A model whose parameters that could have been trained require a gradient: all of a
            full model, those of the adapter of a PEFT model.
        patterns: At least one, each of which has to fit a parameter.

    Raises:
        ValueError: Naming the first pattern that fits nothing.
    """
    open_names = [name for name, p in model.named_parameters() if p.requires_grad]
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in open_names):
            continue
        raise ValueError(
            f"The pattern {pattern!r} of checkpoint.trainable fits no parameter (under an adapter, "
            f"none of its own): the parameters have names such as {open_names[0]!r} and "
            f"{open_names[-1]!r} (* stands for any text)."
        )
    for name, parameter in model.named_parameters():
        keep = parameter.requires_grad and any(fnmatchcase(name, p) for p in patterns)
        parameter.requires_grad_(keep)
