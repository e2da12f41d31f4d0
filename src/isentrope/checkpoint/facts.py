"""What the files of a checkpoint say, each read once and only when it is asked for.

Training's settings are read from the first file that has them: `contract.json` of `isentrope
train`, then `training_args.bin` of TRL and transformers or `verl.yaml`, then `trainer_state.json`
if a script wrote such keys there (`checkpoint.infer.settings`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from isentrope.checkpoint.digests import Digests, checkpoint_digests
from isentrope.checkpoint.files import (
    ADAPTER,
    ADAPTER_CONFIG,
    NEXT_UPDATE,
    TRAINING_ARGS,
    VERL_SETTINGS,
    CheckpointFolder,
    named_path,
    step_name,
    step_of_folder,
)
from isentrope.checkpoint.infer.arguments import SavedArguments, read_training_arguments
from isentrope.checkpoint.infer.settings import Setting, settings_in_files
from isentrope.checkpoint.infer.verl_settings import read_verl_settings
from isentrope.checkpoint.record.contract import read_contract
from isentrope.checkpoint.record.next_update import read_control, read_next_update
from isentrope.config.measure import CheckpointConfig, PolicyConfig
from isentrope.config.stages import SamplingConfig
from isentrope.models.checkpoint_folder import (
    checkpoints_below,
    require_checkpoint,
    require_optimizer,
)
from isentrope.models.sharding import shard_base
from isentrope.nouns.choices import OBJECTIVES
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.parallel.ranks import gather_lists
from isentrope.policy.language_model import Policy
from isentrope.policy.short_memory import tokens_in
from isentrope.system.log import log
from isentrope.system.memory import free_memory, require_device
from isentrope.system.one_line import one_line, quoted
from isentrope.system.processes import world_size


@dataclass(frozen=True)
class RecordedStep:
    """The step that training took from a checkpoint, as it was recorded.

    Attributes:
        rollouts: Its batch, with the weights of tokens.
        facts: Learning rate, gradient norm, clip norm and loss of the step.
        control: λu that a control added per unit learning rate, by parameter; None where none did.
    """

    rollouts: Rollouts
    facts: Mapping[str, Any]
    control: Vector | None

    def __repr__(self) -> str:
        names = ", ".join(self.facts)
        return one_line(self, repr(self.rollouts)[1:-1], f"with {names}" if names else "no facts")


class CheckpointFacts:
    """What the files of a checkpoint say.

    Attributes:
        path: The folder.
        files: What it holds, each file opened once by the process.
        name: What results call it: step_40 for step_40 and checkpoint-40, else the folder's name.
        base_model: Base under the adapter; None for the one that the adapter names.
        allow_hub: Whether a base that the adapter names may come from the model hub.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        optimizer: str | Path | None = None,
        base_model: str | None = None,
        allow_hub: bool = False,
    ) -> None:
        """Open a checkpoint; nothing is read yet.

        Args:
            path: A folder with an adapter or a full model.
            name: What results call it; None for the folder's name.
            optimizer: State of its optimizer, a file or a folder; None for the checkpoint's own.
            base_model: Base under the adapter; None for the one that the adapter names.
            allow_hub: Whether a base that the adapter names may come from the model hub.

        Raises:
            FileNotFoundError: If there is no such folder, or it holds checkpoints and is none.
        """
        self.path = named_path(path)
        described = any((self.path / name).is_file() for name in ("config.json", ADAPTER_CONFIG))
        if not self.path.is_dir() or (not described and checkpoints_below(self.path)):
            require_checkpoint(self.path)  # says what is missing, or which checkpoints are inside
        self.files = CheckpointFolder(self.path)
        self.name = name or short_name(self.path)
        self.base_model = base_model
        self.allow_hub = allow_hub
        self._optimizer = optimizer

    def __repr__(self) -> str:
        path = str(self.path)
        return one_line(self, quoted(self.name), f"in {path!r}")

    @property
    def step_number(self) -> int | None:
        """Its training step, where the folder's name tells it."""
        return step_of_folder(self.path.name)

    @cached_property
    def contract(self) -> Mapping[str, Any]:
        """The contract of the run that wrote it; empty where there is none.

        Raises:
            FileError: If it has a key or a value that no run writes, or contradicts itself.
        """
        return {} if self.files.contract is None else read_contract(self.path)

    @cached_property
    def _arguments(self) -> dict[str, SavedArguments]:
        """Arguments of trainers by the name of the file that has them."""
        readers = {TRAINING_ARGS: read_training_arguments, VERL_SETTINGS: read_verl_settings}
        files = {self.path / name: reader for name, reader in readers.items()}
        return {file.name: reader(file) for file, reader in files.items() if file.is_file()}

    @property
    def arguments(self) -> SavedArguments | None:
        """The arguments of the trainer; None where no file has them."""
        return next(reversed(self._arguments.values()), None)

    @property
    def argument_fields(self) -> Mapping[str, Any]:
        """The trainer's arguments by name; empty where no file has them."""
        return {} if self.arguments is None else self.arguments.fields

    @property
    def prompts_per_step(self) -> int | None:
        """Prompt groups of a step of another trainer, whether they have an advantage or not."""
        foreign = None if self.contract else self.arguments
        return None if foreign is None else foreign.prompts_per_step

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Training's settings by key of the configuration, each with the file that says it."""
        return settings_in_files(self.contract, self._arguments, self.files.trainer_state)

    def uncontrolled_objective(self, objective: str | None, *, drawn: bool) -> str | None:
        """The objective of the run without its control, where that is the step in question.

        A token control acts through the recorded weights of training's own batch. A fresh batch
        has none, and an objective by name leaves them out.

        Args:
            objective: The one that a configuration sets; None where it sets none.
            drawn: Whether the update batch is drawn here.

        Returns:
            Its name; None where the step has the control, or there was none.
        """
        plain = self.contract.get("plain_objective")
        if not self.contract.get("control") or plain not in OBJECTIVES:
            return None
        without_control = drawn if objective is None else objective == plain
        return plain if without_control else None

    def settings_without_control(self, objective: str) -> dict[str, Setting]:
        """The settings where the step is that of an objective without the run's control."""
        contract = {**self.contract, "objective": objective}
        return settings_in_files(contract, self._arguments, self.files.trainer_state)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor in its weight files, by the name it has there."""
        names = [ADAPTER] if self.files.is_adapter else [file.name for file in self.files.weights]
        headers = [self.files.header(name) for name in names]
        return {key: tuple(shape) for header in headers for key, (_, shape) in header.items()}

    @cached_property
    def digests(self) -> Digests:
        """Digest of each part of its files, the base model included."""
        return checkpoint_digests(self.path, self.base_model, allow_hub=self.allow_hub)

    @cached_property
    def optimizer(self) -> Path:
        """The file with the state of its optimizer.

        Raises:
            FileNotFoundError: If there is none.
        """
        return require_optimizer(self.path, self._optimizer)

    @cached_property
    def recorded_step(self) -> RecordedStep | None:
        """The step that training took from here, if it was recorded; None where it was not.

        Raises:
            ValueError: If its record does not replay it.
        """
        if not (self.path / NEXT_UPDATE).is_dir():
            return None
        rollouts, facts = read_next_update(self.path)
        return RecordedStep(rollouts, facts, read_control(self.path))

    def load(self, where: PolicyConfig, sampling: SamplingConfig) -> Policy:
        """Load the policy in float32, the precision that weights are kept in between stages.

        Under torchrun "cuda" is the process's own GPU. A base to be sharded is mapped from its
        files on the CPU, where processes share its pages, and converted when it is spread.

        Args:
            where: Device, base model, and what of it is trained.
            sampling: Temperature, and the sizes of passes.

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
            max_tokens=sampling.most_tokens(on_card=False),
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
            memory = free_memory(policy.device) // 2
            fitting_tokens = gather_lists([tokens_in(memory, policy.model, policy.head)])
            policy.max_tokens = min(sampling.most_tokens(on_card=True), *fitting_tokens)
        return policy


def short_name(path: Path) -> str:
    """What results call a checkpoint: step_40 for checkpoint-40, else the folder's name."""
    step = step_of_folder(path.name)
    return path.resolve().name if step is None else step_name(step)
