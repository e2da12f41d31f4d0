"""What a conversion is given: folders and files, looked at before any of them is read."""

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from isentrope.checkpoint.files import ADAPTER_CONFIG, DCP_METADATA
from isentrope.models.checkpoint_folder import checkpoints_below, way_out
from isentrope.system.outputs import require_apart

_SHARDS = (DCP_METADATA, "pytorch_model_fsdp*", "model_world_size_*", "*_optim_states.pt", "latest")
"""Names of which every layout that is converted has one; `latest` of DeepSpeed names a folder."""


def places_of_shards(folder: Path) -> list[Path]:
    """Where the shards of a checkpoint may lie.

    Args:
        folder: Of the checkpoint.

    Returns:
        The folder itself, and those that verl and NeMo-RL make in it, as far as they are there.
    """
    places = (folder, folder / "actor", folder / "policy" / "weights")
    return [place for place in places if place.is_dir()]


def require_convertible(
    folder: Path, out: Path, model: str | Path | None, run_settings: str | Path | None
) -> None:
    """Refuse folders and files with which nothing can be converted.

    Args:
        folder: The checkpoint of the other trainer.
        out: Folder to create.
        model: With the configuration of the model; None where the checkpoint has it.
        run_settings: .hydra/config.yaml of verl's run.

    Raises:
        FileNotFoundError: If one is missing, or of no known layout.
        FileExistsError: If `out` is there.
        FileError: If `out` is in the source or the model.
        ValueError: If there is nothing to convert.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no checkpoint folder {folder}.")
    require_apart(out, [folder] if model is None else [folder, model])
    if not any(any(place.glob(name)) for place in places_of_shards(folder) for name in _SHARDS):
        refuse_layout(folder)
    if model is not None:
        described_by([Path(model)], model)
    if run_settings is not None and not Path(run_settings).is_file():
        raise FileNotFoundError(
            f"There is no file {run_settings}: give .hydra/config.yaml of the run (--settings)."
        )
    if out.exists():
        raise FileExistsError(f"{out} exists already: choose another folder, or remove it.")


def described_by(places: Iterable[Path], name: str | Path) -> Path:
    """The folder that describes the model of a checkpoint.

    Args:
        places: Folders.
        name: What messages call them.

    Returns:
        The first with the configuration of a model or an adapter.

    Raises:
        FileNotFoundError: If none of them has one.
    """
    described = next(filter(_describes_model, places), None)
    if described is None:
        raise FileNotFoundError(
            f"{name} has no config.json or {ADAPTER_CONFIG}: give --model, the folder of the base "
            "model that was trained, or of an adapter of the same shape."
        )
    return described


def refuse_layout(folder: Path) -> NoReturn:
    """Refuse a folder that no conversion reads.

    Args:
        folder: A folder.

    Raises:
        FileNotFoundError: With what is read.
        ValueError: If it needs no conversion.
    """
    if _describes_model(folder) and any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} needs no conversion: `isentrope check {folder}` says whether it can be "
            "measured."
        )
    cure = (
        way_out(folder)
        or checkpoints_below(folder)
        or "It needs .metadata (torch.distributed.checkpoint), pytorch_model_fsdp* (accelerate, "
        "transformers), model_world_size_* (verl) or *_optim_states.pt (DeepSpeed)."
    )
    raise FileNotFoundError(f"{folder} is in no layout that is converted. {cure}")


def _describes_model(folder: Path) -> bool:
    """Whether a folder has the configuration of a model or an adapter."""
    return any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))
