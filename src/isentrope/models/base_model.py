"""The base model of an adapter and models of the hub: located before any work, or refused.

The code of a checkpoint is never run: `trust_remote_code` is false wherever a model, a tokenizer or
a configuration is loaded.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.system.errors import FileError
from isentrope.system.manifest import verify
from isentrope.system.reading import read_json, reading

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""A name on the model hub."""


def adapter_base(folder: Path, chosen: str | Path | None = None, *, allow_hub: bool = False) -> str:
    """The source of an adapter's base model.

    A checkpoint of a run has its base in the run's folder, if its contract says so, wherever the
    run lies now.

    Args:
        folder: The adapter's folder.
        chosen: `checkpoint.base_model`, which wins.
        allow_hub: Whether the one that its configuration names may be on the model hub.

    Returns:
        A folder that is there, or a name on the model hub.

    Raises:
        FileNotFoundError: If it is a path that does not exist, no base is named, or it is a name on
            the hub that only the adapter gives.
    """
    if chosen is None and (base := _find_base_of_run(folder)) is not None:
        return str(base)
    recorded = CheckpointFolder(folder).adapter.get("base_model_name_or_path")
    source = str(chosen if chosen is not None else recorded or "")
    if source and (path := Path(source).expanduser()).exists():
        return str(path)
    if HUB_NAME.fullmatch(source) and (allow_hub or chosen is not None):
        return source
    above = (parent / source for parent in folder.resolve().parents if source)
    nearest = next((path for path in above if (path / "config.json").is_file()), None)
    example = f" (there is one in {nearest})" if nearest else ""
    raise FileNotFoundError(
        f"The base model of the adapter in {folder}, {source or 'which it does not name'}, does "
        f"not exist relative to {Path.cwd()}: give its folder{example}, or its name on the model "
        "hub, by checkpoint.base_model (base_model in Python), or, where it is one of the hub, set "
        "checkpoint.allow_hub=true (model.allow_hub in training, allow_hub=True in Python)."
    )


def _find_base_of_run(folder: Path) -> Path | None:
    """The base model in the folder of the run that a checkpoint belongs to; None if not there."""
    if folder.resolve().parent.name != "training_state":
        return None
    try:
        base = (CheckpointFolder(folder).contract or {}).get("base_model")
    except FileError:  # who needs the contract refuses it
        return None
    run = folder.resolve().parents[1]
    if not isinstance(base, str) or not (run / base).resolve().is_relative_to(run):
        return None
    return run / base if (run / base / "config.json").is_file() else None


def require_positions(source: str, max_new_tokens: int) -> None:
    """Refuse responses that leave no room for a prompt in a model's context, as its files say it.

    Args:
        source: Folder of a model; another source says nothing here.
        max_new_tokens: Longest response in tokens.

    Raises:
        ValueError: If the model has no more positions than the response may have tokens.
    """
    file = Path(source) / "config.json"
    if not file.is_file():
        return
    content = read_json(file)
    settings = content.get("text_config") or content
    positions = settings.get("max_position_embeddings") if isinstance(settings, dict) else None
    if isinstance(positions, int) and 0 < positions <= max_new_tokens:
        raise ValueError(
            f"max_new_tokens={max_new_tokens} leaves no room for a prompt in the model's "
            f"{positions} positions: lower it (sampling.max_new_tokens)."
        )


def has_weights(source: str) -> bool:
    """Whether the weights of a folder, or of a name on the hub, are on this machine."""
    if Path(source).exists():
        return any(Path(source).glob("*.safetensors"))
    from huggingface_hub import try_to_load_from_cache
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

    files = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    return any(isinstance(try_to_load_from_cache(source, file), str) for file in files)


def causal_lm(source: str | Path, **options: Any) -> Any:
    """A causal language model of a folder or of the hub.

    Args:
        source: Folder or name on the hub.
        **options: Passed to `from_pretrained`.

    Returns:
        The model.

    Raises:
        FileNotFoundError: If it is neither a folder nor available from the hub.
        OSError: If a file of the hub cannot be read.
        FileError: If a folder's files cannot be read, lack weights, do not fit each other or differ
            from its manifest, or if the model's own code would have to be run.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # its result has a second part, by output_loading_info
    local = Path(source).exists()
    if local:
        verify(source)
    try:
        model_config(source)
        with loading("model", source):
            model, loaded = auto.from_pretrained(
                source,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, with both shapes
                **options,
            )
    except OSError as error:
        if local:
            raise
        raise FileNotFoundError(
            f"The model {str(source)!r} is neither a folder relative to {Path.cwd()} nor in the "
            "local cache, and the model hub does not give it: give the path of its folder "
            "(checkpoint.base_model for the base of an adapter, model.path in training)."
        ) from error
    mismatched = [(name, *map(tuple, shapes)) for name, *shapes in loaded["mismatched_keys"]]
    if mismatched:
        raise FileError(_describe_other_shape(model, source, *min(mismatched)))
    if absent := sorted(loaded["missing_keys"]):
        architectures = getattr(model_config(source), "architectures", None) or []
        heads = ("CausalLM", "LMHeadModel")
        foreign = [name for name in architectures if not name.endswith(heads)]
        cure = "restore the folder, or save the model anew"
        if any(name.endswith("Classification") for name in foreign):
            cure = f"config.json says that it is a {foreign[0]}, which has no policy to measure"
        raise FileError(
            f"{source} has no weights for {len(absent)} tensors of the model, the first is "
            f"{absent[0]!r}, and they would be random: {cure}.",
        )
    return model


NOT_GATHERED = (
    "an empty tensor, as DeepSpeed's ZeRO-3 leaves where a parameter is not gathered: save it with "
    "stage3_gather_16bit_weights_on_model_save, or convert the checkpoint of DeepSpeed by "
    "isentrope convert"
)
"""What an empty tensor among weights is, and what to do."""


def _describe_other_shape(
    model: Any, source: str | Path, name: str, stored: Sequence[int], described: Sequence[int]
) -> str:
    """Why a tensor of a file does not fit its model, and what to do."""
    if 0 in stored:
        return f"{name!r} of {source} is {NOT_GATHERED}."
    words = (
        f"config.json in {source} describes {name!r} with shape {list(described)}, and its weights "
        f"have {list(stored)}"
    )
    rows = model.config.get_text_config().vocab_size
    if described[0] == rows and stored[1:] == described[1:]:
        return (
            f"{words}: if training resized the vocabulary, set vocab_size to {stored[0]} there "
            "(model.save_pretrained(FOLDER) writes both), else restore the weights."
        )
    return f"{words}: restore the one that is not of this model."


def model_config(source: str | Path) -> Any:
    """The configuration of a model.

    Args:
        source: Folder or name on the hub.

    Returns:
        It.

    Raises:
        FileError: If it cannot be read, needs its own code, or names a kernel of the hub, which
            transformers would fetch and run.
    """
    from transformers import AutoConfig

    with loading("model", source, "config.json"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        kernel = getattr(part, "_attn_implementation", None)
        if isinstance(kernel, str) and "/" in kernel:
            raise FileError(
                f"config.json in {source} names the kernel {kernel!r} as attn_implementation, "
                "which is code of others: remove the key.",
            )
    return config


@contextmanager
def loading(kind: str, source: str | Path, file: str = "") -> Generator[None]:
    """A block in which transformers reads a model or a tokenizer: its failures name the folder.

    A folder is read without bars, which notebooks and logs would keep; a download has its own.

    Args:
        kind: What is read, "model" or "tokenizer".
        source: The folder, or a name on the hub.
        file: Which file of the folder is read; empty for all.

    Yields:
        Nothing.

    Raises:
        FileError: If code would have to be run, or a folder cannot be read.
        OSError: If a model of the hub cannot be read.
        ValueError: Likewise.
    """
    from transformers.utils import logging as transformers_logging

    local = Path(source).exists()
    bars = local and transformers_logging.is_progress_bar_enabled()
    with reading(Path(source) / file) if local else nullcontext():
        try:
            if bars:
                transformers_logging.disable_progress_bar()
            yield
        except (OSError, ValueError) as error:
            if "trust_remote_code" in str(error):
                raise FileError(
                    f"The {kind} in {source} has code of its own (auto_map in its configuration), "
                    "which is never run here: save it as a model that transformers supports.",
                ) from error
            raise
        finally:
            if bars:
                transformers_logging.enable_progress_bar()
