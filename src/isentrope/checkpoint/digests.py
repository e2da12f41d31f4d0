"""Digests of a checkpoint's files by content, by the part that the files are.

Parts: weights, adapter settings, base weights, base settings, tokenizer, contract. File times and
paths are not looked at.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import CONTRACT, CheckpointFolder
from isentrope.models.base_model import adapter_base
from isentrope.system.files import sha256
from isentrope.system.manifest import file_digest

Digests = dict[str, str]
"""Digest of each part."""

UNKNOWN_DIGEST = "unknown"
"""Begins the digest of files that are not on this machine; a name on the hub may follow."""

NOTHING = "none"
"""Digest of what is not there."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "spiece.model",
)
_MODEL_FILES = ("config.json", "generation_config.json")


def checkpoint_digests(
    folder: Path, base_model: str | None = None, *, allow_hub: bool = False
) -> Digests:
    """Digests of the policy in a checkpoint folder.

    Args:
        folder: An adapter or a full model.
        base_model: Base of the adapter, where the one that it names is not to be used.
        allow_hub: Whether a base that the adapter names may be one on the model hub.

    Returns:
        Digest by part.
    """
    parts = {"weights": digest_of_files(sorted(folder.glob("*.safetensors")))}
    base: Path | None = folder
    if settings := CheckpointFolder(folder).adapter:
        settings.pop("base_model_name_or_path", None)
        parts["adapter settings"] = digest_of(settings)
        source = adapter_base(folder, base_model, allow_hub=allow_hub)
        base = local_folder(source)
        parts |= base_digests(base, source)
    else:
        parts["model settings"] = digest_of_names(folder, _MODEL_FILES)
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    parts["tokenizer"] = digest_of_names(folder if has_tokenizer else base, TOKENIZER_FILES)
    return parts | {"contract": digest_of_names(folder, [CONTRACT])}


def base_digests(folder: Path | None, name: str) -> Digests:
    """Digests of a base model: its weights, and its settings.

    Args:
        folder: Its folder; None for one that is not on this machine.
        name: Its name on the hub, which stands for one that is not here.

    Returns:
        Digest by part.
    """
    if folder is None:
        return dict.fromkeys(("base weights", "base settings"), f"{UNKNOWN_DIGEST} ({name})")
    weights = sorted(folder.glob("*.safetensors"))
    return {
        "base weights": digest_of_files(weights),
        "base settings": digest_of_names(folder, _MODEL_FILES),
    }


def digest_of(content: Mapping[str, Any]) -> str:
    """Digest of settings, whatever their order."""
    return sha256([json.dumps(content, sort_keys=True, default=str).encode()])


def local_folder(source: str) -> Path | None:
    """The files of a model: its folder, or those of the hub's cache; None if not here."""
    if Path(source).expanduser().is_dir():
        return Path(source).expanduser()
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(source, "config.json")
    return Path(file).parent if isinstance(file, str) else None


def digest_of_names(folder: Path | None, names: Iterable[str]) -> str:
    """Digest of the files of a folder that have these names; `UNKNOWN_DIGEST` without a folder."""
    if folder is None:
        return UNKNOWN_DIGEST
    files = list(filter(Path.is_file, map(folder.joinpath, names)))
    return digest_of_files(files) if files else NOTHING


def digest_of_files(files: Iterable[Path]) -> str:
    """Digest of the contents of files in their order."""
    return sha256(map(bytes.fromhex, map(file_digest, files)))
