"""Checkpoint folders of other frameworks, recognised by their files, with a remedy for each.

They are not read here: each sentence names the framework, what it wrote, and what to run.
"""

from pathlib import Path

_CONVERT = "run isentrope convert {place} --out OUT"
_OF_BASE = " --model BASE, the folder of the model that was trained"
_LAYOUTS = {
    "a checkpoint of verl (FSDP shards)": (
        ("model_world_size_*_rank_*.pt", "optim_world_size_*_rank_*.pt"),
        _CONVERT,
    ),
    "a checkpoint folder of OpenRLHF (DeepSpeed in _actor)": (
        ("_actor",),
        "run isentrope convert {place}/_actor --out OUT --model HF, where HF is the model that "
        "--save_hf_ckpt writes (a folder global_step*_hf)",
    ),
    "a checkpoint of DeepSpeed": (
        (
            *("*_optim_states.pt", "global_step*/*_optim_states.pt", "*_model_states.pt"),
            "zero_to_fp32.py",
        ),
        _CONVERT + _OF_BASE,
    ),
    "an FSDP checkpoint of accelerate or transformers": (
        ("pytorch_model_fsdp*", "optimizer_[0-9]*"),
        _CONVERT + _OF_BASE,
    ),
    "a checkpoint of torch.distributed.checkpoint": ((".metadata",), _CONVERT + _OF_BASE),
    "a checkpoint of accelerate's save_state": (
        ("random_states_*.pkl", "optimizer.bin"),
        "put the model's config.json (or, for an adapter, adapter_config.json and "
        "adapter_model.safetensors) beside its weights, and set "
        "checkpoint.optimizer_path={place}/optimizer.bin, which is read",
    ),
    "a folder of adapters": (
        ("*/adapter_config.json",),
        "set checkpoint.checkpoint_path to the one that was trained, such as {first.parent}, and "
        "checkpoint.optimizer_path to the optimizer's file, such as {place}/optimizer.pt",
    ),
}
"""What a folder is, the files by which it is recognised, and the remedy; verl and OpenRLHF first,
as they wrap the layouts of FSDP and DeepSpeed."""
_OF_COMPLETE = tuple(_LAYOUTS)[-2:]
"""What a folder with a configuration of its own is not."""


def foreign_layout(folder: Path) -> str | None:
    """What another framework wrote into a folder, the one around it, or one in it.

    Args:
        folder: A folder.

    Returns:
        A sentence with the framework's name and what to do, or None.
    """
    inside = sorted(path for path in folder.glob("*") if path.is_dir())
    complete = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    for name, (patterns, remedy) in _LAYOUTS.items():
        places = (folder,) if name in _OF_COMPLETE else (folder, *inside, folder.parent)
        for place in () if complete and name in _OF_COMPLETE else places:
            if found := sorted(path for pattern in patterns for path in place.glob(pattern)):
                return f"{place} is {name}: {remedy.format(place=place, first=found[0])}."
    return None


def foreign_file(file: Path) -> str | None:
    """What another framework writes under this file name.

    Args:
        file: An optimizer's file.

    Returns:
        A sentence with the framework's name and what to do, or None.
    """
    for name, (patterns, remedy) in _LAYOUTS.items():
        if remedy.startswith(_CONVERT) and any(file.match(pattern) for pattern in patterns):
            return f"It is a part of {name}: {remedy.format(place=file.parent)}."
    return None
