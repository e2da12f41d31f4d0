"""The record of the step that was taken from a checkpoint, from which it is replayed.

training_state/step_N/next_update/    written when step N + 1 is done: the step from θ_N to θ_N+1
  rollouts.parquet       ids, rewards, advantages, sampler log-probabilities, token weights,
                         entropy weights where the loss has an entropy term
  update.json            learning rate, gradient norm, clip norm, loss of that step
  held_out.jsonl         the probe's held-out prompts, where a probe recorded the step
  control.safetensors    λu, where a step control added it: θ_N+1 = θ_N + η (v + λu)

A record is as good as the gradient that its weights replay, whose error is computed here too.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt
from safetensors.torch import save_file
from torch import Tensor

from isentrope.checkpoint.files import (
    CHECKPOINT,
    HELD_OUT_FILE,
    NEXT_UPDATE,
    require_own_update,
)
from isentrope.models.float_types import AUTOCAST
from isentrope.models.precision import AUTOCAST_FIELDS, Precision
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm, zeros
from isentrope.parallel.ranks import sum_over_processes
from isentrope.parallel.sharded import read_numbers
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.system.file_contents import read_tensors
from isentrope.system.files import MANIFEST, whole_folder
from isentrope.system.manifest import file_digest, verify
from isentrope.system.processes import together
from isentrope.system.reading import read_json, require_types
from isentrope.update.objective import entropy_weights, token_weights

REPLAY_TOLERANCE = 1e-4
"""Largest relative error of the replayed gradient where a forward pass has float32 or longer."""
ROUNDED_TOLERANCE = 3e-2
"""The same for shorter types, by their rounding."""


def precision_of(args: Any) -> Precision:
    """That of a loss: the model's own types, under autocast where the arguments ask for it."""
    autocast = (dtype for name, dtype in AUTOCAST_FIELDS.items() if getattr(args, name, False))
    return Precision("as_is", autocast=next(autocast, None))


def pass_types(model: Any, args: Any) -> set[torch.dtype]:
    """Types in which a trainer's forward pass computes: those of the weights, and of autocast."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    autocast = precision_of(args).autocast
    return types if autocast is None else types | {AUTOCAST[autocast]}


def replay_tolerance(policy: Policy) -> float:
    """Largest relative error up to which a record replays its step, by the type of the pass."""
    dtype = next(policy.model.parameters()).dtype
    rounded = dtype not in (torch.float64, torch.float32) or policy.precision.autocast
    return ROUNDED_TOLERANCE if rounded else REPLAY_TOLERANCE


def replay_error(
    policy: Policy, share: Rollouts | None, max_norm: float | None
) -> tuple[float, float]:
    """‖replayed − used‖/‖used‖ of the clipped gradient; every process must call this.

    Args:
        policy: The policy in training, .grad as the optimizer will use it.
        share: This process's sequences with their weights, or None for none.
        max_norm: Norm to which the gradient is clipped, or None.

    Returns:
        The error, and the norm of the replayed gradient before clipping.
    """

    def replay() -> Vector:
        if share is None:
            return zeros(policy.theta)
        c = token_weights(share, RECORDED)
        d = entropy_weights(share, RECORDED)
        return weighted_gradient(policy, share, -c, None if d is None else -d)

    replayed = together(replay)
    sum_over_processes(replayed.values())
    size = norm(replayed)
    clip = 1.0 if max_norm is None else min(1.0, max_norm / (size + 1e-6))

    def squares() -> Iterator[Tensor]:
        for name, part in replayed.items():
            grad = policy.model.get_parameter(name).grad
            gradient = torch.zeros_like(part) if grad is None else grad.double()
            yield from ((gradient**2).sum(), ((clip * part - gradient) ** 2).sum())

    numbers = read_numbers(squares())
    size_squared = sum(numbers[::2])
    gap = sum(numbers[1::2])
    unused = math.inf if gap else 0.0
    return (gap / size_squared) ** 0.5 if size_squared else unused, size


CONTROL_FILE = "control.safetensors"
_REMEDY = "Restore the folder, or remove it: the checkpoint itself does not need it."


class _UpdateTypes(BaseModel):
    """Types of the numbers of a recorded step."""

    step: NonNegativeInt = 0
    loss: float | None = None
    learning_rate: NonNegativeFloat | None = None
    gradient_norm: NonNegativeFloat | None = None
    max_grad_norm: NonNegativeFloat | None = None
    replayable: bool = True
    replay_error: float = 0.0
    controlled: bool = False


def write_next_update(
    checkpoint: Path,
    rollouts: Rollouts,
    update: Mapping[str, Any],
    control: Vector | None = None,
    held_out: Sequence[str] = (),
) -> None:
    """Write the step taken from a checkpoint beside it; an existing record is kept.

    Args:
        checkpoint: Folder of step N.
        rollouts: The batch of the step from θ_N to θ_N+1, with token weights.
        update: The other quantities of that step.
        control: The part that a step control added to v, or None.
        held_out: Prompts that the run does not train on, as lines of a file of prompts.
    """
    target = checkpoint / NEXT_UPDATE
    if target.exists():
        return
    with whole_folder(target) as partial:
        rollouts.save(partial / "rollouts.parquet")
        if held_out:
            (partial / HELD_OUT_FILE).write_text("".join(f"{line}\n" for line in held_out))
        if control is not None:
            save_file({n: x.contiguous().cpu() for n, x in control.items()}, partial / CONTROL_FILE)
            update = {**update, "controlled": True}
        if (manifest := checkpoint / MANIFEST).is_file():
            update = {**update, CHECKPOINT: file_digest(manifest)}
        (partial / "update.json").write_text(json.dumps(update, indent=2) + "\n")


def read_control(checkpoint: str | Path) -> Vector | None:
    """The part that a step control added to the step taken from a checkpoint.

    Returns:
        λu by parameter name, float64, per unit learning rate; None if nothing was added.
    """
    folder = Path(checkpoint) / NEXT_UPDATE
    verify(folder)
    return read_tensors(folder / CONTROL_FILE) if _read_update(folder).get("controlled") else None


def read_next_update(checkpoint: str | Path) -> tuple[Rollouts, dict[str, Any]]:
    """The record of the step from θ_N to θ_N+1.

    Returns:
        The update batch with its token weights, and the content of update.json.

    Raises:
        FileNotFoundError: If the run ended, or was stopped, before that step was done.
        ValueError: If the step was recorded and its record does not replay it.
    """
    folder = Path(checkpoint) / NEXT_UPDATE
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} does not exist: the run took no step from this checkpoint."
        )
    verify(folder)
    update = _read_update(folder)
    if update.get("replayable") is False:
        raise ValueError(
            f"{folder} does not replay its step: the gradient of its token weights is off by "
            f"{update.get('replay_error', math.nan):.2g} of the one that was used. Train without "
            "router losses, dropout and packing, or measure with an objective by name."
        )
    return Rollouts.load(folder / "rollouts.parquet"), update


def _read_update(folder: Path) -> dict[str, Any]:
    path = folder / "update.json"
    update = read_json(path, _REMEDY)
    require_types(path, update, _UpdateTypes, _REMEDY)
    require_own_update(folder, update)
    return update
