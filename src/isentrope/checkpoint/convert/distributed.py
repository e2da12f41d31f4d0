"""torch.distributed.checkpoint (DCP), alone and as accelerate and transformers use it for FSDP.

dcp folder                  .metadata, __0_0.distcp, ...        {"model": ..., "optim": ...}
weights/, optimizer/        two dcp folders side by side
pytorch_model_fsdp_0/       a dcp folder of weights alone
optimizer_0/                a dcp folder of the optimizer alone, by name
pytorch_model_fsdp.bin, optimizer.bin    the same, gathered by the trainer
"""

import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.checkpoint.convert.gathered import Gathered, State
from isentrope.checkpoint.files import DCP_METADATA
from isentrope.system.file_contents import read_torch
from isentrope.system.inert import Inert, Loaded, load_pickle, load_torch
from isentrope.system.reading import reading

_BYTES = "BytesStorageMetadata"
_WRITTEN_BY_TORCH = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    f"torch.distributed.checkpoint.metadata.{_BYTES}",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
}
"""Classes that torch itself names in .metadata."""
FSDP_WEIGHTS = "pytorch_model_fsdp"
FSDP_OPTIMIZER = "optimizer"


def is_dcp(folder: Path) -> bool:
    """Whether a folder is a checkpoint of torch.distributed.checkpoint."""
    return (folder / DCP_METADATA).exists()


def read_dcp(folder: Path) -> Gathered | None:
    """Weights and optimizer of a DCP folder.

    Args:
        folder: With .metadata.

    Returns:
        Both, wherever in its content they are; None of any other folder.
    """
    if not is_dcp(folder):
        return None
    content = _read_content(folder)
    beside = folder.with_name("optimizer")
    if folder.name == "weights" and is_dcp(beside):  # two folders, as NeMo-RL writes them
        content = {"weights": content, "optimizer": _read_content(beside)}
    return _gather("torch.distributed.checkpoint", content, folder)


def read_fsdp(folder: Path) -> Gathered | None:
    """Weights and optimizer of an FSDP checkpoint of accelerate or transformers.

    Args:
        folder: With pytorch_model_fsdp_0 or pytorch_model_fsdp.bin.

    Returns:
        Both, no optimizer where none was saved; None of any other folder.
    """
    if not any(folder.glob(f"{FSDP_WEIGHTS}*")):
        return None
    parts: dict[str, Any] = {}
    for name in (FSDP_WEIGHTS, FSDP_OPTIMIZER):
        if is_dcp(folder / f"{name}_0"):
            parts[name] = _read_content(folder / f"{name}_0")
        elif (file := folder / f"{name}.bin").exists():
            parts[name] = read_torch(file)
    return _gather("FSDP of accelerate or transformers", parts, folder)


def _gather(layout: str, content: Any, folder: Path) -> Gathered:
    """The one model and the optimizer, if any, of what was saved."""
    mappings = [*_walk_mappings(content)]
    weights = [mapping for mapping in mappings if _is_weights(mapping)]
    optimizers = [mapping for mapping in mappings if _is_optimizer(mapping)]
    if len(weights) != 1 or len(optimizers) > 1:
        raise ValueError(
            f"{folder} holds {len(weights)} sets of weights by name and {len(optimizers)} "
            "optimizers, not those of one model."
        )
    return Gathered(layout, weights[0], optimizers[0] if optimizers else None)


def require_inert(folder: Path) -> None:
    """Refuse a DCP folder of which torch, which unpickles it freely, would run code.

    Raises:
        ValueError: Naming what it would call.
    """
    with reading(folder / DCP_METADATA):
        saved = _Saved(folder)
        classes = set(saved.classes)
        for name, entry in saved.entries.items():
            classes |= saved.loaded(name, None).classes if entry.name == _BYTES else set()
        for name in sorted(classes - _WRITTEN_BY_TORCH):
            raise ValueError(f"it names {name}, which could run code")


def _read_content(folder: Path) -> Any:
    """What was saved, whole: mappings and lists of values by their paths."""
    with reading(folder / DCP_METADATA):
        saved = _Saved(folder)
        root = _Node()
        for name, entry in saved.entries.items():
            *path, last = saved.paths.get(name, (name,))
            node = root
            for key in path:
                node = node.setdefault(key, _Node())
            node[last] = saved.value(name, entry)
        return root.plain()


class _Saved:
    """What a DCP folder says of itself, and what its data files hold.

    Raises:
        ValueError: If items overlap, or are outside of the folder.
    """

    def __init__(self, folder: Path) -> None:
        with (folder / DCP_METADATA).open("rb") as file:
            loaded = load_pickle(file)
        metadata = loaded.value.attributes()
        self.folder = folder
        self.classes = loaded.classes
        self.entries: Mapping[str, Inert] = metadata["state_dict_metadata"]
        self.paths = metadata.get("planner_data") or {}
        self.places = {
            (index.attributes()["fqn"], index.attributes().get("offset")): place.attributes()
            for index, place in metadata["storage_data"].items()
        }
        files = {place["relative_path"] for place in self.places.values()}
        outside = [file for file in files if Path(file).is_absolute() or ".." in Path(file).parts]
        if outside:
            raise ValueError(f"it names a file outside of the folder, {outside[0]!r}")
        self.sizes = {name: (folder / name).stat().st_size for name in files}
        if sum(place["length"] for place in self.places.values()) > sum(self.sizes.values()):
            raise ValueError("it names more bytes than the data files have")

    def value(self, name: str, entry: Inert) -> Any:
        """A tensor, or another value."""
        if entry.name == _BYTES:
            return self.loaded(name, None).value
        saved = entry.attributes()
        size = tuple(saved["size"])
        dtype = saved["properties"].state[0]
        chunks = [chunk.attributes() for chunk in saved["chunks"]]
        parts = [self.loaded(name, chunk["offsets"]).value for chunk in chunks]
        fits = all(
            isinstance(part, Tensor) and part.dtype == dtype and part.shape == chunk["sizes"]
            for part, chunk in zip(parts, chunks, strict=True)
        )
        if not fits or sum(part.numel() for part in parts) != math.prod(size):
            raise ValueError(f"the parts of {name!r} are not those of a tensor of shape {size}")
        tensor = torch.empty(size, dtype=dtype)
        for part, chunk in zip(parts, chunks, strict=True):
            extents = zip(chunk["offsets"], part.shape, strict=True)
            region = tuple(slice(start, start + length) for start, length in extents)
            tensor[region].copy_(part)
        return tensor

    def loaded(self, name: str, offset: Any) -> Loaded:
        """One item of the data files."""
        place = self.places[name, offset]
        if place.get("transform_descriptors"):
            raise ValueError(f"{name!r} was written through an extension of torch")
        path = place["relative_path"]
        start = place["offset"]
        length = place["length"]
        if not 0 <= start <= start + length <= self.sizes[path]:
            raise ValueError(f"{path} is shorter than it was written")
        with reading(self.folder / path) as data_file, data_file.open("rb") as file:
            file.seek(start)
            return load_torch(io.BytesIO(file.read(length)))


class _Node(dict[Any, Any]):
    """A mapping or a list of the saved content, by key or index."""

    def plain(self) -> Any:
        """Mappings and lists; where all keys are numbers they are indices."""
        plain = {key: x.plain() if isinstance(x, _Node) else x for key, x in self.items()}
        is_list = bool(plain) and all(isinstance(key, int) for key in plain)
        return [plain[i] for i in range(len(plain))] if is_list else plain


def _walk_mappings(content: Any) -> Iterator[State]:
    """Every mapping from the root on, without those inside weights and optimizer states."""
    if isinstance(content, Mapping):
        yield content
        if not (_is_weights(content) or _is_optimizer(content)):
            for part in content.values():
                yield from _walk_mappings(part)


def _is_weights(part: State) -> bool:
    return bool(part) and all(isinstance(value, Tensor) for value in part.values())


def _is_optimizer(part: State) -> bool:
    flat = any(str(key).startswith("state.") for key in part)
    return flat or {"state", "param_groups"} <= part.keys()
