"""The step that training takes where its parameters are kept in 16 bits.

    Δθ = step(θ, g) in the type of training − θ,     v_η = Δθ/η

A parameter of bfloat16 keeps eight bits: a step below half of its last one is lost, a larger one is
rounded to a multiple of it, and moments and weight decay are rounded too. So Δθ/η is not v, and
depends on η. torch's own optimizer takes the step, on copies in the type of training, from the
gradient of float64 rounded to it; parameters that are kept in float32 move by ηv.

Training kept a parameter in the type of its stored moments, as torch.optim makes them; where there
are none, in its type on disk. Mixed precision has float32 moments, and rounds nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isentrope.nouns.vectors import Vector, axpy, norm
from isentrope.parallel.sharded import local_part, total, with_part

if TYPE_CHECKING:  # a result that is read needs no model
    from isentrope.policy.language_model import Policy
    from isentrope.update.optimizer_state import OptimizerState
    from isentrope.update.step import Step

MAX_ROUNDING = 0.1
"""|v − Δθ/η| over |Δθ/η| up to which v stands for the step that was taken."""
_OPTIMIZERS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}


@dataclass(frozen=True)
class Rounded:
    """What rounding to the type of the weights does to a step.

    Attributes:
        eta: The rate it was taken at.
        dtype: Type that training keeps its parameters in, such as "bfloat16".
        moved: Share of the parameters of that type that change at all.
        error: |v − Δθ/η| over |Δθ/η|; infinite where nothing moves.
    """

    eta: float
    dtype: str
    moved: float
    error: float

    def __str__(self) -> str:
        """One sentence with the numbers."""
        return (
            f"at η = {self.eta:.3g}, {100 * self.moved:.3g} % of the {self.dtype} parameters move, "
            f"and |v − Δθ/η| is {self.error:.2g} of |Δθ/η|"
        )


@dataclass(frozen=True)
class RoundedStep(Rounded):
    """A step as training takes it, per unit learning rate.

    Attributes:
        direction: Δθ/η, float64.
    """

    direction: Vector


def rounded_step(
    policy: Policy, state: OptimizerState, step: Step, types: Mapping[str, torch.dtype], eta: float
) -> RoundedStep:
    """The step at a learning rate, taken in the types of training.

    Args:
        policy: The policy at θ.
        state: The optimizer's state before the step.
        step: The step in float64.
        types: What `short_types` found, at least one.
        eta: Learning rate of the first param group, > 0.

    Returns:
        The rounded step.

    Raises:
        ValueError: If it is not finite.
    """
    direction = {n: v.double() for n, v in step.direction.items()}
    gradient = step.loss_gradient
    changed = size = 0
    for name, kind in types.items():
        if name in state.untrained:
            continue
        theta = local_part(policy.theta[name])
        parameter = nn.Parameter(theta.to(kind, copy=True))
        parameter.grad = local_part(gradient[name]).to(theta.device, kind)
        if step.clip_factor < 1:
            parameter.grad.mul_(step.clip_factor)
        settings = {**state.groups[name], "params": [parameter], "lr": eta * state.rate_ratio(name)}
        settings |= {"capturable": False, "differentiable": False}
        settings.pop("param_names", None)
        optimizer = _OPTIMIZERS[state.rule]([settings])
        if moments := state.moments[name]:
            counted_on = theta.device if settings.get("fused") else "cpu"
            optimizer.state[parameter] = {
                key: local_part(x).to(theta.device, kind, copy=True)
                if isinstance(x, Tensor)
                else torch.tensor(float(x), dtype=torch.float32, device=counted_on)
                for key, x in ({"step": 0.0} | moments).items()
            }
        optimizer.step()
        local_change = parameter.detach().double() - theta.double()
        change = with_part(local_change, policy.theta[name])
        direction[name] = change / eta
        counts = {
            "moved": (local_change != 0).sum(),
            "not finite": (~local_change.isfinite()).sum(),
        }
        entries, not_finite = total(counts, dict.fromkeys(counts, change))
        changed += entries
        size += change.numel()
        if not_finite:
            raise ValueError(
                f"The step in {str(kind).removeprefix('torch.')} is not finite in parameter "
                f"{name!r}: such training would diverge at once. If its weights were kept in "
                "float32, checkpoint.master_weights=true says so, and is believed."
            )
    length = norm(direction)
    gap = norm(axpy(-1.0, direction, step.direction))
    return RoundedStep(
        direction=direction,
        eta=eta,
        dtype=" and ".join(sorted({str(kind).removeprefix("torch.") for kind in types.values()})),
        moved=changed / size,
        error=gap / length if length else float("inf"),
    )
