"""The arguments of transformers and TRL, read without running code of the file.

training_args.bin of transformers and TRL is a pickle, and `inert` reads it: its attributes are read
as plain values. So files of other versions of TRL and of subclasses of its configuration are read,
and TRL does not have to be installed. A call of anything but an enum, a device, a path or a
container does not occur in training arguments, and is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from isentrope.system.inert import Inert, load_torch
from isentrope.system.one_line import one_line, plural, quoted
from isentrope.system.reading import reading
from isentrope.system.secrets import secrets_in

_LARGEST_FILE = 16 * 2**20
"""In bytes; the file of a real run has a few thousand."""

_LIBRARIES = (
    "trl",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "deepspeed",
    "huggingface_hub",
)
_CALLABLE = {"torch.device", "datetime.timedelta"} | {
    f"{module}.{pure}{system}Path"
    for module in ("pathlib", "pathlib._local")
    for pure in ("", "Pure")
    for system in ("Posix", "Windows")
}


@dataclass(frozen=True)
class SavedArguments:
    """The arguments of a trainer.

    Attributes:
        kind: Name of their class, such as "GRPOConfig".
        fields: Value of every argument by name; an enum by its value. Values that are not plain
            (a device, a plug-in) are omitted.
        processes: Number of training processes; 1 if the file does not contain it.
    """

    kind: str
    fields: Mapping[str, Any]
    processes: int = 1

    def __repr__(self) -> str:
        size = plural(len(self.fields), "argument")
        return one_line(
            self, f"{size} of {quoted(self.kind)}", f"{self.processes} of training's processes"
        )

    @property
    def trainer(self) -> Literal["grpo", "rloo", "sft", "other"]:
        """The trainer, by class or, for a subclass, by fields; "other" if unknown."""
        names = set(self.fields)
        if self.kind == "GRPOConfig" or {"num_generations", "loss_type"} <= names:
            return "grpo"
        if {"num_generations", "normalize_advantages"} <= names:
            return "rloo"
        plain = self.kind in ("TrainingArguments", "Seq2SeqTrainingArguments")
        return "sft" if plain or "completion_only_loss" in names else "other"

    @property
    def prompts_per_step(self) -> int | None:
        """Prompt groups of one step; None where the arguments do not say how many.

        As transformers has it: sequences of a pass, times passes, times processes.
        """
        passes = self.fields.get("gradient_accumulation_steps") or 1
        sequences = self.fields.get("per_device_train_batch_size")
        group_size = self.fields.get("num_generations")
        if self.trainer not in ("grpo", "rloo") or not (sequences and group_size):
            return None
        prompts, remainder = divmod(sequences * passes * self.processes, group_size)
        return prompts or None if remainder == 0 else None


def read_training_arguments(path: Path) -> SavedArguments:
    """Read training_args.bin.

    Returns:
        The arguments.

    Raises:
        ValueError: If the file does not hold arguments of a trainer, or would run code.
    """
    with reading(path, "Remove the file, and set the training settings in the configuration."):
        if (size := path.stat().st_size) > _LARGEST_FILE:
            raise ValueError(f"{size} bytes are too many")
        loaded = load_torch(path)
        if unknown := sorted(call for call in loaded.calls if not _may_occur(call)):
            raise ValueError(
                f"it calls {unknown[0]}, which training arguments never do, so it may be meant to "
                "run code"
            )
        if not isinstance(content := loaded.value, Inert):
            raise ValueError(f"it holds a {type(content).__name__}, not training arguments")
    state = content.attributes()
    fields = {
        name: value
        for name, value in _make_plain(state).items()
        if not any(secrets_in({name: value}))
    }
    distributed = state.get("distributed_state")
    processes = None
    if isinstance(distributed, Inert):
        processes = distributed.attributes().get("num_processes")
    return SavedArguments(content.name, fields, processes if isinstance(processes, int) else 1)


def _may_occur(call: str) -> bool:
    """Whether training arguments hold such calls."""
    library, *_, name = call.split(".")
    return (library in _LIBRARIES and name[:1].isupper()) or call in _CALLABLE


_OPAQUE = object()


def _make_plain(value: Any) -> Any:
    """A value as plain JSON; `_OPAQUE` if it is not plain."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Inert):  # an enum is called with its value
        enum = len(value.arguments) == 1 and value.module.split(".")[0] in _LIBRARIES
        return _make_plain(value.arguments[0]) if enum else _OPAQUE
    if isinstance(value, dict):
        plain = {str(key): _make_plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item is not _OPAQUE}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [v for item in value if (v := _make_plain(item)) is not _OPAQUE]
    return _OPAQUE
