"""What is known of a checkpoint's optimizer, and the step that its arithmetic really takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from isentrope.checks.checkpoint import describe_misplaced, misplaced_states
from isentrope.checks.finding import Finding
from isentrope.checks.rates import describe_groups, disagreement
from isentrope.config.measure import MeasureConfig
from isentrope.policy.language_model import Policy
from isentrope.policy.stored_types import stored_types
from isentrope.runs.checkpoints import Subject
from isentrope.update.optimizer_state import OptimizerState
from isentrope.update.rounding import MAX_ROUNDING, SHORT_MOMENTS, rounded_step, short_types
from isentrope.update.step import Step
from isentrope.vectors import Vector, axpy

ROUNDING = "the step survives rounding"


@dataclass(frozen=True)
class RealStep:
    """A step with what limits it.

    Attributes:
        step: v, or the rounded step where that is to be measured.
        facts: Param groups, whether an order is confirmed, and rounding, for the results.
        along: Δθ/η by learning rate where the step is rounded; None where it is v at every rate.
    """

    step: Step
    facts: dict[str, Any] = field(default_factory=dict)
    along: Callable[[float], Vector] | None = None


def real_step(
    config: MeasureConfig, policy: Policy, subject: Subject, state: OptimizerState, step: Step
) -> RealStep:
    """Hold a step against the checkpoint's records and the type of its weights.

    Args:
        config: What was asked.
        policy: The policy at θ.
        subject: The checkpoint.
        state: Its optimizer's state.
        step: v.

    Returns:
        The step to be measured; its warnings say what was found.

    Raises:
        ValueError: If the state is matched by an order that it does not fit, or training rounds the
            step to another one and the configuration does not say which is to be measured.
    """
    confirmed, notes = _order(state, step)
    notes += _rates(state, subject)
    facts = {"param_groups": state.distinct_groups, "order_confirmed": confirmed}
    found = _rounding(config, policy, subject, state, step)
    if found is not None:
        facts["rounding"] = {
            "dtype": found.dtype,
            "moved": found.moved,
            "error": found.error,
            "eta": found.eta,
        }
    measured, along = step, None
    if found is not None and config.estimator.rounded_step:
        types = _types(config, policy, subject, state)
        along = lambda eta: rounded_step(policy, state, step, types, eta).direction  # noqa: E731
        rounding = axpy(-1.0, step.direction, found.direction)
        measured = replace(
            step, direction=found.direction, components=step.components | {"rounding": rounding}
        )
        notes += (f"The step is the one that rounding takes: {found}.",)
    elif found is not None:
        notes += (_unrounded(config, found),)
    said = tuple(w for w in measured.warnings if w != SHORT_MOMENTS)  # the notes have numbers
    return RealStep(replace(measured, warnings=(*said, *notes)), facts, along)


def check_rounding(
    config: MeasureConfig, policy: Policy, subject: Subject, state: OptimizerState, step: Step
) -> Finding:
    """Is v the step that training takes in the type of its weights?"""
    stored = set(stored_types(subject.path, policy.names).values())
    kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in stored))
    found = _rounding(config, policy, subject, state, step)
    if found is None:
        short = stored & {torch.bfloat16, torch.float16}
        kept = "; training kept a float32 copy of them" if short else ""
        return Finding(ROUNDING, True, f"weights on disk are {kinds}{kept}")
    if found.error <= MAX_ROUNDING or config.estimator.rounded_step:
        measured = "; the rounded step is measured" if config.estimator.rounded_step else ""
        return Finding(ROUNDING, True, f"{found}{measured}")
    return Finding(ROUNDING, False, f"{found} (bound {MAX_ROUNDING:g})", _ways_out())


def _order(state: OptimizerState, step: Step) -> tuple[bool | None, tuple[str, ...]]:
    """Whether second moments confirm a match by order."""
    if state.matched_by != "order":
        return None, ()
    wrong = misplaced_states(state, step.loss_gradient)
    if wrong is None:
        return None, (
            "The optimizer's parameters were matched by their order, which no name confirms: put "
            "parameter_names.json beside the optimizer's file to be sure.",
        )
    if wrong:
        raise ValueError(
            "The optimizer's parameters were matched by their order, and "
            f"{describe_misplaced(wrong)}: put their names, in the optimizer's order, into "
            "parameter_names.json beside its file."
        )
    return True, (
        "The optimizer's parameters were matched by their order; its second moments fit the "
        "gradients of these parameters.",
    )


def _rates(state: OptimizerState, subject: Subject) -> tuple[str, ...]:
    record, difference = disagreement(state, subject.path)
    notes = []
    if difference:
        notes.append(
            f"THE PARAM GROUPS ARE NOT THOSE OF TRAINING ({record}): {difference}. The step is "
            "another one than training would take; run isentrope check."
        )
    if len({float(group["lr"]) for group in state.distinct_groups}) > 1:
        notes.append(f"Learning rates differ: {describe_groups(state)}.")
    return tuple(notes)


def _types(
    config: MeasureConfig, policy: Policy, subject: Subject, state: OptimizerState
) -> dict[str, torch.dtype]:
    if config.checkpoint.master_weights:
        return {}
    return short_types(policy, state, stored_types(subject.path, policy.names))


def _rounding(
    config: MeasureConfig, policy: Policy, subject: Subject, state: OptimizerState, step: Step
) -> Any:
    """The rounded step at the rate of interest; None where nothing is rounded."""
    types = _types(config, policy, subject, state)
    rate = config.estimator.single_eta or step.learning_rate
    if not rate and config.estimator.eta_list:
        rate = max(config.estimator.eta_list)
    return rounded_step(policy, state, step, types, rate) if types and rate else None


def _unrounded(config: MeasureConfig, found: Any) -> str:
    if found.error <= MAX_ROUNDING:
        return f"Training rounds its weights: {found}."
    if config.estimator.rounded_step is None:
        raise ValueError(
            f"Training rounds its weights, so its step is not v: {found}. {_ways_out()}"
        )
    return (
        f"THIS IS NOT THE STEP THAT TRAINING TAKES: its weights are rounded, {found}. "
        "estimator.rounded_step=true measures the real one."
    )


def _ways_out() -> str:
    return (
        "Set estimator.rounded_step=true to measure the step that was rounded, false to measure v "
        "all the same, or checkpoint.master_weights=true if training kept float32 weights."
    )
