"""The checkpoint: is its adapter in the model, and its optimizer state of these parameters?"""

from __future__ import annotations

from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from isentrope.checks.finding import Finding
from isentrope.policy.checkpoint import adapter_mismatch
from isentrope.policy.language_model import Policy
from isentrope.update.optimizer_state import OptimizerLike, load_optimizer_state
from isentrope.vectors import Vector

SECOND_MOMENTS = {"adamw": "exp_avg_sq", "adam": "exp_avg_sq", "rmsprop": "square_avg"}
MARGIN = 0.05
"""Share by which another order must fit better before the stored one is called wrong."""


def check_adapter(policy: Policy, checkpoint: str | Path) -> Finding:
    """Compare the adapter in the model with the one on disk.

    Args:
        policy: The policy.
        checkpoint: Its folder.

    Returns:
        The finding; not checked for a full model.
    """
    name = "adapter loaded"
    if not (Path(checkpoint) / "adapter_model.safetensors").exists():
        return Finding(name, None, "the checkpoint has no adapter")
    if difference := adapter_mismatch(policy.model, checkpoint):
        return Finding(
            name,
            False,
            difference,
            "The model is not this checkpoint: load it with Policy.from_checkpoint.",
        )
    idle = [n for n, p in policy.theta.items() if "lora_B" in n and not bool(p.any())]
    if idle and len(idle) == sum("lora_B" in n for n in policy.names):
        return Finding(
            name,
            False,
            "every lora_B is zero",
            "The adapter is at its initial value and changes nothing: is this step 0?",
        )
    return Finding(name, True, f"{len(policy.names)} tensors equal those on disk")


def check_optimizer(
    policy: Policy, gradient: Vector, optimizer: OptimizerLike, like_training: bool = True
) -> Finding:
    """Does the stored second moment belong to the parameters it was matched to?

    Parameters of one shape can be exchanged without any shape failing. But the second moment is a
    running mean of squared gradients, so of all ways to match moments to equally shaped
    parameters, the right one has the smallest squared distance of log moments from log squared
    gradients (an assignment problem).

    Args:
        policy: The policy.
        gradient: The gradient of the loss on an update batch, by parameter name.
        optimizer: As for `optimizer_step`.
        like_training: Whether the gradient is of prompts and rewards as training has them. Where
            it is not, an order that fits better proves nothing.

    Returns:
        The finding; not checked for optimizers without second moments.
    """
    name = "optimizer state matches"
    try:
        state = load_optimizer_state(policy, optimizer)
    except (ValueError, FileNotFoundError) as error:
        return Finding(name, False, str(error), "Save optimizer.pt with parameter names.")
    key = SECOND_MOMENTS.get(state.rule)
    if key is None or not all(state.moments.get(n) for n in policy.names):
        return Finding(name, None, f"{state.rule} has no second moments to compare")
    moments = {n: state.moments[n][key] for n in policy.names}
    wrong = misplaced(gradient, moments)
    detail = f"matched by {state.matched_by}"
    if wrong and not like_training:
        detail += "; their order is not confirmed by these prompts, which are not those of training"
        return Finding(name, None, detail)
    if wrong:
        first, better = next(iter(wrong.items()))
        return Finding(
            name,
            False,
            f"{detail}; {len(wrong)} states fit other parameters better, the first is that of "
            f"{first}, which fits {better}",
            "The optimizer state is in the wrong order: save its parameter names beside it "
            "(parameter_names.json) or build the optimizer from named_parameters().",
        )
    return Finding(name, True, f"{detail}; second moments fit the gradients of their parameters")


def misplaced(gradient: Vector, moments: Vector) -> dict[str, str]:
    """Parameters whose stored second moment fits another parameter of their shape better.

    Args:
        gradient: Gradient by parameter name.
        moments: Second moments by the parameter name they were matched to.

    Returns:
        Parameter name → the name that its state fits; empty if the stored order is the best or
        no other is clearly better.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, moment in moments.items():
        groups.setdefault(tuple(moment.shape), []).append(name)
    wrong: dict[str, str] = {}
    stored = best = 0.0
    for names in groups.values():
        squares = [_log(gradient[n].square()) for n in names]
        costs = torch.stack([_distances(_log(moments[n]), squares) for n in names]).numpy()
        rows, columns = linear_sum_assignment(costs)
        stored += float(costs.trace())
        best += float(costs[rows, columns].sum())
        wrong |= {names[r]: names[c] for r, c in zip(rows, columns, strict=True) if r != c}
    return wrong if best < (1 - MARGIN) * stored else {}


def _log(values: Tensor) -> Tensor:
    floor = values[values > 0].min() if bool((values > 0).any()) else 1e-300
    return values.double().clamp_min(float(floor)).log().flatten()


def _distances(moment: Tensor, squares: list[Tensor]) -> Tensor:
    """Mean squared distance of one log moment from each log squared gradient."""
    return torch.stack([(moment - s).square().mean() for s in squares])
