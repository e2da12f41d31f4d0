"""Are the checkpoints of a study one model at several steps? From their files alone.

Checkpoints of one study share the base model, the settings of its architecture, the shapes of
their adapters and the tokenizer. Otherwise a curve over them would join what does not belong
together: it is refused by the names of two checkpoints and of what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isentrope.runs.checkpoints import Checkpoint
from isentrope.system.checkpoint_folder import ADAPTER, CheckpointFolder
from isentrope.system.manifest import file_digest
from isentrope.system.reading import read_json

_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
"""Settings of a model that say how it was saved, not what it is."""


def require_one_model(checkpoints: Sequence[Checkpoint], base_model: str | None) -> None:
    """Refuse checkpoints of different models.

    Args:
        checkpoints: At least one.
        base_model: Base of all adapters, where the one that they name is not to be used.

    Raises:
        ValueError: Naming two checkpoints and what differs between them.
    """
    first, *others = checkpoints
    known = _description(first.path, base_model)
    for other in others:
        description = _description(other.path, base_model)
        both = [key for key in known if None not in (known[key], description[key])]
        differing = next((key for key in both if known[key] != description[key]), None)
        if differing is None and both in ([], ["tokenizer"]):
            differing = "kind"
        if differing is not None:
            raise ValueError(
                f"The checkpoints {first.name} ({first.path}) and {other.name} ({other.path}) are "
                f"not of one model: they differ in their {_words(differing, known, description)}. "
                "Evaluate them in studies of their own, each with its own --out."
            )


def _description(path: Path, base_model: str | None) -> dict[str, Any]:
    """What a checkpoint is, by aspect; None where its files do not tell."""
    settings = CheckpointFolder(path).adapter
    if not settings:
        return {
            "base model": None,
            "adapter": None,
            "architecture": _architecture(path),
            "tokenizer": _tokenizer(path),
        }
    base = base_model or settings.get("base_model_name_or_path")
    return {
        "base model": base,
        "adapter": _shapes(CheckpointFolder(path)),
        "architecture": _architecture(Path(base or path)),
        "tokenizer": _tokenizer(path) or _tokenizer(Path(base or path)),
    }


def _architecture(folder: Path) -> dict[str, Any] | None:
    file = folder / "config.json"
    if not file.is_file():
        return None
    return {k: v for k, v in read_json(file).items() if k not in _VOLATILE}


def _tokenizer(folder: Path) -> str | None:
    file = folder / "tokenizer.json"
    return file_digest(file) if file.is_file() else None


def _shapes(folder: CheckpointFolder) -> dict[str, list[int]]:
    return {name: shape for name, (_, shape) in folder.header(ADAPTER).items()}


def _words(aspect: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    """Which aspect, and where it holds many things the first that differs."""
    a, b = one.get(aspect) or {}, other.get(aspect) or {}
    if aspect == "kind":
        return "kind (one is an adapter whose base model is not here to be compared)"
    if aspect == "tokenizer":
        return "tokenizer (tokenizer.json)"
    if aspect == "base model":
        return f"base model ({a} and {b})"
    key = next(k for k in sorted({*a, *b}) if a.get(k) != b.get(k))
    return f"{aspect} ({key}: {a.get(key)} and {b.get(key)})"
