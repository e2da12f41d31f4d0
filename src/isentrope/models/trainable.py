"""The model that a training names: located, and refused where it cannot be trained so.

Nothing of it is loaded.
"""

from pathlib import Path

from isentrope.checkpoint.files import ADAPTER_CONFIG, CheckpointFolder
from isentrope.models.base_model import HUB_NAME, adapter_base
from isentrope.models.checkpoint_folder import require_checkpoint

TOY = "toy"
"""The path of the toy policy with random weights."""


def require_trainable_model(
    path: str, lora_rank: int, lora_alpha: float, *, allow_hub: bool = False
) -> tuple[str, str | None]:
    """Find a model for training, and the base under it where it is an adapter.

    Args:
        path: Folder of a model or an adapter, a name on the model hub, or "toy".
        lora_rank: Rank of the adapter, new or existing; 0 to train all weights.
        lora_alpha: Scale of the adapter's output, times the rank.
        allow_hub: Whether the base that an adapter names may come from the model hub.

    Returns:
        The result of `find_model`, and the base; None where it is no adapter.

    Raises:
        FileNotFoundError: If there is no such model, or no base.
        ValueError: If the folder holds an adapter of another rank or scale, or full training of it
            was requested, or a new adapter over the toy.
    """
    if path == TOY and lora_rank:
        raise ValueError(
            "The toy's random weights are not on disk, so an adapter over them could not be "
            "loaded again: set model.lora_rank=0."
        )
    source = find_model(path)
    folder = Path(source)
    if path == TOY or not (folder / ADAPTER_CONFIG).exists():
        return source, None
    _require_same_adapter(folder, lora_rank, lora_alpha)
    return source, adapter_base(folder, allow_hub=allow_hub)


def find_model(path: str) -> str:
    """Resolve `model.path` of a configuration.

    Args:
        path: Folder of a model or an adapter, a name on the model hub, or "toy".

    Returns:
        The folder, absolute; or the name, unchanged.

    Raises:
        FileNotFoundError: If it is neither a checkpoint folder nor a valid name.
    """
    folder = Path(path).expanduser()
    if path == TOY or (not folder.exists() and HUB_NAME.fullmatch(path)):
        return path
    if not folder.exists():
        remedy = ""
        if folder.name == "model":  # where fine-tuning leaves it
            remedy = f": `isentrope sft CONFIG --out {folder.parent}` makes it"
        raise FileNotFoundError(f"There is no model folder {path} (model.path){remedy}.")
    return str(require_checkpoint(folder).resolve())


def _require_same_adapter(folder: Path, lora_rank: int, lora_alpha: float) -> None:
    """Refuse an adapter of another rank or scale, or with dropout."""
    settings = CheckpointFolder(folder).adapter
    for key, name, requested in (("r", "rank", lora_rank), ("lora_alpha", "alpha", lora_alpha)):
        if (saved := settings.get(key)) != requested:
            raise ValueError(
                f"{folder} holds an adapter of {name} {saved}, and model.lora_{name} is "
                f"{requested}: set it to {saved} to continue training that adapter, or set "
                "model.path to the folder of the base model for a new one."
            )
    if settings.get("lora_dropout"):
        raise ValueError(
            f"The adapter in {folder} has dropout {settings['lora_dropout']}: its update would be "
            "random. Set lora_dropout to 0 in its adapter_config.json."
        )
