"""A plan: the stages of a verb, what they hold, whether that fits, and if not what would.

What is held without any pass (weights, the step, stored gradients) is exact arithmetic on the
shapes in the configuration files of a checkpoint: N parameters, d of them trainable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isentrope.attribution.gradients.storage_plan import Storage, plan_storage
from isentrope.checkpoint.files import CheckpointFolder
from isentrope.models.adapter import read_adapter
from isentrope.models.base_model import adapter_base, has_weights, loading, model_config
from isentrope.models.checkpoint import train_only
from isentrope.models.precision import Precision
from isentrope.system.errors import IsentropeError


def meta_model(
    folder: str | Path,
    *,
    base_model: str | Path | None = None,
    allow_hub: bool = False,
    trainable_patterns: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, bool]:
    """The model of a checkpoint without its weights, on the device meta.

    Args:
        folder: Folder with `config.json`, or with `adapter_config.json`; a name on the model hub.
        base_model: Base of the adapter, where the one its config names is not to be used.
        allow_hub: Whether a base that the adapter's config names may come from the model hub.
        trainable_patterns: Names (with * and ?) of what moved; None: the adapter, or all weights.
        dtype: Of the weights.

    Returns:
        The model, and whether its weights are on this machine.

    Raises:
        FileNotFoundError: If the base model is a path that is not there.
        FileError: If a configuration cannot be read.
    """
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    source, folder = str(folder), Path(folder)
    adapter = read_adapter(folder) if CheckpointFolder(folder).is_adapter else None
    if adapter is not None:
        source = adapter_base(folder, base_model, allow_hub=allow_hub)
    with torch.device("meta"):
        config = model_config(source)
        with loading("model", source, "config.json"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if adapter is not None:
            adapter.inference_mode = False
            adapter.base_model_name_or_path = model.name_or_path or None  # else peft warns
            model = get_peft_model(model, adapter)
    if trainable_patterns is not None:
        train_only(model, trainable_patterns)
    return model, has_weights(source)


STEP_VECTORS = 5
"""v, P, and the components momentum, decay and gradient; computing them takes as much: twice two
moments of Adam, and the gradient."""


class DoesNotFitError(IsentropeError, ValueError):
    """A verb that takes more memory than there is."""


@dataclass(frozen=True)
class Stage:
    """One stage of a verb.

    Attributes:
        name: As the verb's own clock calls it.
        seconds: Of one process; None where nothing was timed.
        peak: Bytes at once.
        fixed: Those of them that no smaller micro-batch would save.
        setting: What the others are in proportion to.
        value: Of that setting, as far as it acts.
    """

    name: str
    seconds: float | None
    peak: int
    fixed: int
    setting: str = "sampling.max_tokens"
    value: int = 1


@dataclass(frozen=True)
class Plan:
    """What a verb takes at a checkpoint.

    Attributes:
        verb: Its name.
        checkpoint: Name of the checkpoint.
        held: Bytes that are held without any pass, by what they are; they are in the stages too.
        libraries: Bytes of Python and its libraries, or of CUDA, without any model.
        memory: Bytes that there are.
        stages: In the order in which they run; none where nothing is known of them.
        not_run: What is missing where no stage was run, and why; None where they were.
        otherwise: What to change where no smaller micro-batch would fit.
    """

    verb: str
    checkpoint: str
    held: dict[str, int]
    libraries: int
    memory: int
    stages: tuple[Stage, ...] = ()
    not_run: str | None = None
    otherwise: str = (
        "fisher_kernel.where=disk, fewer analysis.groups, precision.runtime_dtype=float32"
    )

    @property
    def largest(self) -> tuple[int, str]:
        """Bytes of the stage that takes most, and its name."""
        least = (sum(self.held.values()), "held without any pass")
        return max(((stage.peak, stage.name) for stage in self.stages), default=least)

    @property
    def peak(self) -> int:
        """Bytes at once, libraries included."""
        return self.largest[0] + self.libraries

    @property
    def fits(self) -> bool:
        """Whether that is at most the memory."""
        return self.peak <= self.memory

    @property
    def seconds(self) -> float | None:
        """Of all stages; None where one was not timed."""
        times = [stage.seconds for stage in self.stages]
        return sum(x for x in times if x is not None) if times and None not in times else None

    @property
    def cure(self) -> str:
        """The change that would fit, by the straight line of each stage."""
        room = self.memory - self.libraries
        wanted: dict[str, int] = {}
        for stage in (stage for stage in self.stages if stage.peak > room):
            share = (room - stage.fixed) / max(1, stage.peak - stage.fixed)
            most = max(0, int(share * stage.value))
            size = 2 ** (most.bit_length() - 1)
            if "micro_batch" in stage.setting:  # a step is a whole number of them
                size = next((k for k in range(most, 0, -1) if stage.value % k == 0), 0)
            wanted[stage.setting] = min(size, wanted.get(stage.setting, size))
        if wanted and min(wanted.values()) >= 1:
            changes = " ".join(f"--set {name}={value}" for name, value in wanted.items())
            return f"{changes} would fit."
        return (
            f"Most of it is held whatever is read at a time: {self.otherwise} or a machine with "
            "more memory."
        )


def held(
    model: Any,
    precision: Precision,
    storage: Storage,
    groups: int = 0,
    sides: Sequence[tuple[int, int | None]] = (),
) -> dict[str, int]:
    """What is held at once without any pass, where it is most.

    Args:
        model: The checkpoint's, from `meta_model`.
        precision: Of the measurement.
        storage: How gradients are stored.
        groups: Gradients of error groups that are.
        sides: Rows of the left and right side of each block of a kernel; None: with itself.

    Returns:
        Bytes by what they are.
    """
    n = sum(p.numel() for p in model.parameters())
    d = sum(p.numel() for p in model.parameters() if p.requires_grad)
    kind = precision.runtime_dtype
    size = {"float64": 8, "bfloat16": 2}.get(kind, 4)
    terms = {"weights": 4 * n, f"weights in {kind}": size * n if size != 4 else 0}
    terms["step"] = STEP_VECTORS * 8 * d
    if storage.where != "disk":
        blocks = [plan_storage(*rows, d, size, storage) for rows in sides]
        terms["stored gradient groups"] = groups * max(4, size) * d
        terms["stored gradients"] = max((block.held_bytes for block in blocks), default=0)
    return {name: term for name, term in terms.items() if term}


CONTEXT = 500 * 2**20
"""Bytes of a device that CUDA and its libraries take in a process, about, before any tensor."""


def libraries_bytes(device: str) -> int:
    """Memory of this process on cpu, cuda or cuda:N that holds libraries and no model."""
    import psutil

    return CONTEXT if device.startswith("cuda") else int(psutil.Process().memory_info().rss)


def memory_of(device: str) -> int:
    """Bytes that are free on cpu, cuda or cuda:N, or hold libraries; the host's without CUDA."""
    from isentrope.system.memory import free_memory

    here = device if torch.cuda.is_available() else "cpu"
    return free_memory(here) + libraries_bytes(here)


def bytes_of(text: str) -> int:
    """A size with its unit in bytes.

    Args:
        text: Such as "16GB" or "24 GiB".

    Returns:
        Bytes.

    Raises:
        ValueError: If it is no such size.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size < 1e6:
        raise ValueError(f"--memory {text!r} is not a size: write 16GB, 24GiB or 500MB.")
    return size
