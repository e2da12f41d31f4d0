"""Training stops at a number that is not finite, and does not save it."""

import math
from typing import Any

from torch import Tensor, nn

from isentrope.parallel.sharded import first_false, local_part
from isentrope.system.processes import gather
from isentrope.training.run_files import RunFiles


class TrainingDivergedError(RuntimeError):
    """A loss, gradient norm, parameter or optimizer moment is NaN or infinite."""


def require_finite_number(step: int, name: str, number: float, files: RunFiles) -> None:
    """Stop training at a number that is not finite; every process must have the same number.

    Args:
        step: The step.
        name: Its name in the message.
        number: The number.
        files: Files of the run, whose latest checkpoint is named.

    Raises:
        TrainingDivergedError: If it is not; the message names the step, the number and the latest
            checkpoint.
    """
    if not math.isfinite(number):
        raise TrainingDivergedError(_explain(step, f"{name} is {number}", files))


def require_finite_state(step: int, model: nn.Module, optimizer: Any, files: RunFiles) -> None:
    """Stop training at a parameter or moment that is not finite; every process must call this.

    Args:
        step: The step.
        model: The model; frozen parameters are not checked.
        optimizer: Its optimizer, or None.
        files: Files of the run, whose latest checkpoint is named.

    Raises:
        TrainingDivergedError: If a value is not finite; the message names the step, the parameter
            and the latest checkpoint.
    """
    states = getattr(optimizer, "state", {})
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors[f"Parameter {name!r}"] = parameter.detach()
            for key, value in (states.get(parameter) or {}).items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    tensors[f"The optimizer's {key!r} of parameter {name!r}"] = value
    finite = {name: local_part(x).isfinite().all() for name, x in tensors.items()}
    diverged = next((name for name in gather(first_false(finite)) if name), None)
    if diverged is not None:
        raise TrainingDivergedError(_explain(step, f"{diverged} holds NaN or infinity", files))


def _explain(step: int, cause: str, files: RunFiles) -> str:
    latest = files.latest()
    saved = f"the last good checkpoint is {latest}" if latest else "no checkpoint was saved"
    cause = cause[0].lower() + cause[1:]
    return (
        f"Training stops at step {step}, which is not saved: {cause}; {saved}."
        " Resuming would fail again at the same step: start a new run with a lower learning rate, "
        "or correct the setting that is not a number."
    )
