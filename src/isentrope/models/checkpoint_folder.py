"""What a folder needs to be a checkpoint; nothing of it is loaded."""

from collections.abc import Sequence
from pathlib import Path

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.system import manifest

HOW_TO_CONVERT = (
    "What verl, OpenRLHF, DeepSpeed, FSDP or torch.distributed.checkpoint wrote is converted: "
    "run isentrope convert FOLDER --out OUT (--model BASE, where the trained model lies elsewhere)."
)
"""What to do with shards of other trainers."""

_NAMED = 4
"""Folders that a message names."""
_BY_HAND = (
    "write the model by model.save_pretrained(FOLDER) and the tokenizer by "
    "tokenizer.save_pretrained(FOLDER), and torch.save(optimizer.state_dict(), "
    "'FOLDER/optimizer.pt')"
)


def require_checkpoint(path: str | Path) -> Path:
    """Refuse a folder that holds no model in safetensors, or one that was changed.

    Args:
        path: A folder.

    Returns:
        The same path.

    Raises:
        FileNotFoundError: If the folder or a weights file is missing.
        FileError: If a file differs from the manifest, or the folder has another step's name.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no checkpoint folder {folder}: {_BY_HAND}.")
    described = any((folder / x).exists() for x in ("config.json", "adapter_config.json"))
    if not described or not any(folder.glob("*.safetensors")):
        hint = "".join(
            " Or set checkpoint.checkpoint_path to the one that was trained, such as "
            f"{path.parent}."
            for path in sorted(folder.glob("*/adapter_config.json"))[:1]
        )
        if not hint and (below := checkpoints_below(folder)):
            raise FileNotFoundError(f"{folder} is not a checkpoint. {below}")
        raise FileNotFoundError(
            f"{folder} is not a checkpoint: it needs adapter_config.json or config.json, and "
            "weights in *.safetensors (pickled weights are refused, because loading them can run "
            f"code).{hint} {way_out(folder) or f'{HOW_TO_CONVERT} From a plain loop, {_BY_HAND}.'}"
        )
    manifest.verify(folder)
    _ = CheckpointFolder(folder).step  # refused where name and files differ
    return folder


def require_optimizer(
    folder: Path, place: str | Path | None = None, folders: Sequence[Path] = ()
) -> Path:
    """Refuse a checkpoint without the state of its optimizer; the file is not read.

    Args:
        folder: The checkpoint.
        place: A file, or a folder with optimizer.pt; None for the checkpoint's own.
        folders: The checkpoints that are measured, of which a message names those that have one.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If there is none.
    """
    source = Path(place or folder).expanduser()
    file = source / "optimizer.pt" if source.is_dir() else source
    if not file.is_file():
        names = ", ".join(path.name for path in folders if (path / "optimizer.pt").is_file())
        alternative = names and (
            f" Or leave {folder.name} out, and give {names} by a pattern in quotes, such as "
            "'runs/mine/step_[12]*'."
        )
        raise FileNotFoundError(
            f"There is no optimizer state at {file}, so the step is not known: save "
            "optimizer.pt with the checkpoint, or set checkpoint.optimizer_path, such as to "
            f"an optimizer.bin of accelerate. {HOW_TO_CONVERT}{alternative}"
        )
    return file


def checkpoints_below(folder: Path) -> str:
    """The checkpoints that lie in a folder which is none, or the command that converts one.

    Args:
        folder: A folder that is not a checkpoint itself.

    Returns:
        A sentence; empty where nothing lies below it.
    """
    shards = _folders_of(folder, *(f"{depth}model_world_*" for depth in ("", "*/", "*/*/")))
    if shards:
        return f"{shards[0]} is verl's: run isentrope convert {shards[0]} --out OUT."
    depths = ("*/", "*/*/", "*/*/*/")
    paths = [*map(str, _folders_of(folder, *(f"{depth}*.safetensors" for depth in depths)))]
    if not paths:
        return ""
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"Below it are models: give one of {', '.join(paths[:_NAMED])}{more}."


def _folders_of(folder: Path, *patterns: str) -> list[Path]:
    """The folders below one with files of some names, each once, those of the first name first."""
    files = (file for pattern in patterns for file in sorted(folder.glob(pattern)))
    return [*dict.fromkeys(file.parent for file in files)]


def way_out(folder: Path) -> str:
    """What to do with a folder that no conversion helps.

    Args:
        folder: A folder that is not a checkpoint in the layout of Hugging Face.

    Returns:
        A sentence; empty where nothing is known of it.
    """
    files = {file.name for file in folder.iterdir()}
    weights = {name for name in files if name.endswith(".safetensors")}
    if weights and not files & {"config.json", "adapter_config.json"}:
        states = [name for name in ("optimizer.bin", "optimizer.pt") if name in files]
        state = f", and set checkpoint.optimizer_path to {folder / states[0]}" if states else ""
        return (
            "It has weights without their configuration, as accelerate's save_state leaves them: "
            "write that by config.save_pretrained(FOLDER), of a PEFT model all by "
            "model.save_pretrained(FOLDER), and the tokenizer by tokenizer.save_pretrained(FOLDER)"
            f"{state}."
        )
    if any(name.endswith(".gguf") for name in files):
        return "GGUF holds no weights to train: give the folder from which it was made."
    pickled = [n for n in sorted(files) if n.startswith(("pytorch_model", "adapter_model"))]
    if not weights and any(n.endswith(".bin") and "_fsdp" not in n for n in pickled):
        return (
            f"{pickled[0]} is pickled: load it by transformers where you trust it, and write it by "
            "model.save_pretrained(FOLDER), which is in safetensors."
        )
    return ""
