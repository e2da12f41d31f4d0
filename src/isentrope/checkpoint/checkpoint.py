"""Which checkpoints a configuration means, and the policy in each."""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

import torch

from isentrope.checkpoint.files import step_name, step_of_folder
from isentrope.checkpoint.infer.as_trained import AsTrained
from isentrope.config.measure import CheckpointConfig, PolicyConfig
from isentrope.config.stages import SamplingConfig
from isentrope.models.checkpoint import HOW_TO_CONVERT, require_checkpoint
from isentrope.models.sharding import shard_base
from isentrope.parallel.ranks import gather_lists
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import tokens_in
from isentrope.system.memory import free_memory, require_device
from isentrope.system.processes import world_size

log = logging.getLogger("isentrope")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        path: Its folder.
        name: What results call it: step_40 for step_40 and checkpoint-40, else the folder's name.
    """

    path: Path
    name: str

    @property
    def step(self) -> int | None:
        """Its training step, where the folder's name tells it."""
        return step_of_folder(self.path.name)

    def load(self, where: PolicyConfig, sampling: SamplingConfig) -> Policy:
        """Load the policy in float32, the precision that weights are kept in between stages.

        Under torchrun "cuda" is the process's own GPU. A base to be sharded is mapped from its
        files on the CPU, where processes share its pages, and converted when it is spread.

        Returns:
            The policy.

        Raises:
            ValueError: If it is to run on a GPU and there is none, or cannot be sharded.
        """
        device = where.device_map
        require_device(device)
        if device == "cpu" and torch.cuda.is_available():
            log.info("The GPU is not used: checkpoint.device_map=cpu.")
        if device == "cuda" and world_size() > 1:
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        patterns = where.trainable if isinstance(where, CheckpointConfig) else None
        policy = Policy.from_checkpoint(
            self.path,
            trainable_patterns=patterns,
            base_model=where.base_model,
            allow_hub=where.allow_hub,
            device_map="cpu" if where.shard_base else device,
            quantization=None if where.quantization == "none" else where.quantization,
            temperature=sampling.temperature,
            mapped=where.shard_base,
            precision="as_is" if where.shard_base else "float32",
            max_tokens=sampling.max_tokens,
            vocab_chunk=sampling.vocab_chunk,
            verify=where.verify,
        )
        if where.shard_base:
            shard_base(policy.model, device)
            policy.convert("float32")
            policy.share_work()
            policy.require_own_logits()  # in the precision that is measured
        elif policy.device.type == "cuda" and policy.precision.rounding is None:
            # rounded passes are cut as training's were; others by a number that all processes and
            # the next run share
            fitting = min(gather_lists([tokens_in(free_memory(policy.device) // 2, policy)]))
            policy.max_tokens = min(policy.max_tokens, 2 ** (max(1, fitting).bit_length() - 1))
        return policy


@dataclass(frozen=True)
class Subject(Checkpoint):
    """One checkpoint to be measured.

    Attributes:
        path: Its folder.
        name: What results call it.
        optimizer: The optimizer's saved state.
        as_trained: What the configuration has from training, and where it differs.
        made_from: Digests of what its results depend on (`run.origin`).
    """

    optimizer: Path
    as_trained: AsTrained = field(default_factory=AsTrained)
    made_from: Mapping[str, str] = field(default_factory=dict)


def find_checkpoints(where: PolicyConfig) -> list[Checkpoint]:
    """Find checkpoints on disk; nothing is loaded.

    Returns:
        In the order given, patterns and folders of checkpoints in natural order; names differ.

    Raises:
        FileNotFoundError: If nothing matches, or a checkpoint is missing.
    """
    given = where.checkpoint_path
    entries = [given] if isinstance(given, str) else given
    paths = [require_checkpoint(path) for entry in entries for path in _matches(entry)]
    return list(map(Checkpoint, paths, _names(paths)))


def find_subjects(where: CheckpointConfig) -> list[Subject]:
    """Find checkpoints and optimizer states on disk; nothing is loaded.

    Returns:
        One subject a checkpoint, in the order given, patterns in natural order; names differ.

    Raises:
        FileNotFoundError: If nothing matches, or a checkpoint or its optimizer is missing.
        ValueError: If one optimizer path is given for several checkpoints.
    """
    given = where.optimizer_path
    checkpoints = find_checkpoints(where)
    if len(checkpoints) > 1 and given is not None:
        raise ValueError(
            f"checkpoint.optimizer_path names one optimizer for {len(checkpoints)} checkpoints: "
            "leave it out, and each is read from its own folder."
        )
    return [Subject(c.path, c.name, _optimizer(c.path, given)) for c in checkpoints]


def _matches(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    if path.exists() or not any(c in entry for c in "*?["):
        return _inside(path) or [path]
    found = map(Path, glob(str(path), recursive=True))  # hidden ones are not complete
    folders = [folder for folder in found if folder.is_dir()]
    if not folders:
        raise FileNotFoundError(f"No checkpoint folder matches {entry}.")
    return sorted(folders, key=_by_number)


def _inside(folder: Path) -> list[Path]:
    """The checkpoints step_N in a folder that is none itself, such as training_state."""
    if not folder.is_dir() or any(folder.glob("*config.json")) or (folder / "_actor").is_dir():
        return []
    steps = [p for p in folder.iterdir() if p.is_dir() and step_of_folder(p.name) is not None]
    return sorted(steps, key=_by_number)


def _by_number(path: Path) -> list[int | str]:
    return [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", str(path))]


def _optimizer(checkpoint: Path, given: str | None) -> Path:
    path = Path(given).expanduser() if given else checkpoint
    file = path / "optimizer.pt" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no optimizer state at {file}, so the step is not known: save optimizer.pt "
            "with the checkpoint, or set checkpoint.optimizer_path, such as to an optimizer.bin of "
            f"accelerate. {HOW_TO_CONVERT}"
        )
    return file


def _names(paths: list[Path]) -> list[str]:
    """Short names, with the run's where two checkpoints would share one."""
    short = [
        p.resolve().name if (s := step_of_folder(p.name)) is None else step_name(s) for p in paths
    ]
    parents = [p.resolve().parent for p in paths]
    runs = [p.parent.name if p.name == "training_state" else p.name for p in parents]
    pairs = zip(runs, short, strict=True)
    names = [f"{run}_{n}" if short.count(n) > 1 else n for run, n in pairs]
    return [f"{n}_{i}" if names.count(n) > 1 else n for i, n in enumerate(names)]
