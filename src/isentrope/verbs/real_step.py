"""What is known of a checkpoint's optimizer, and the step that its arithmetic really takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from isentrope.checks.checkpoint import fit_of_order
from isentrope.checks.finding import Finding
from isentrope.checks.rates import describe_groups, disagreement
from isentrope.checks.state_order import describe_misplaced
from isentrope.config.estimator import EstimatorConfig
from isentrope.models.stored_types import stored_types
from isentrope.nouns.vectors import Vector, axpy
from isentrope.policy.language_model import Policy
from isentrope.runs.checkpoints import Subject
from isentrope.update.optimizer_rules import SHORT_MOMENTS, short_types
from isentrope.update.optimizer_state import OptimizerState
from isentrope.update.rounding import (
    MAX_ROUNDING,
    RoundedStep,
    rounded_step,
)
from isentrope.update.step import Step

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


@dataclass(frozen=True)
class Rounding:
    """How training rounds a step.

    Attributes:
        policy: The policy at θ.
        state: Its optimizer's state.
        types: Parameters that training keeps in 16 bits; none where it kept float32 weights.
    """

    policy: Policy
    state: OptimizerState
    types: dict[str, torch.dtype]

    @classmethod
    def of(
        cls, policy: Policy, subject: Subject, state: OptimizerState, *, master_weights: bool
    ) -> Rounding:
        """That of a checkpoint; with master weights nothing is rounded."""
        if master_weights:
            return cls(policy, state, {})
        stored = stored_types(subject.path, policy.names)
        return cls(policy, state, short_types(policy, state.types, stored))

    def step(self, step: Step, eta: float) -> RoundedStep | None:
        """The step that training takes at a learning rate; None where nothing is rounded."""
        if not self.types or not eta:
            return None
        return rounded_step(self.policy, self.state, step, self.types, eta)

    def step_of_interest(self, step: Step, estimator: EstimatorConfig) -> RoundedStep | None:
        """That at the rate of interest, or where it is 0 at the largest one of the sweep."""
        rate = estimator.rate(step.learning_rate)
        return self.step(step, rate or max(estimator.eta_list or [0.0]))


def real_step(
    subject: Subject, rounding: Rounding, step: Step, estimator: EstimatorConfig
) -> RealStep:
    """Hold a step against the checkpoint's records and the type of its weights.

    Args:
        subject: The checkpoint.
        rounding: How its training rounds.
        step: v.
        estimator: Says whether the rounded step is to be measured.

    Returns:
        The step to be measured; its warnings say what was found.

    Raises:
        ValueError: If the state is matched by an order that it does not fit, or training rounds the
            step to another one and the configuration does not say which is to be measured.
    """
    state = rounding.state
    confirmed, notes = _order(state, step)
    notes += _rates(state, subject)
    facts = {"param_groups": tuple(state.distinct_groups), "order_confirmed": confirmed}
    rounded = rounding.step_of_interest(step, estimator)
    if rounded is None:
        return _noted(step, facts, notes)
    facts["rounding"] = rounded
    if not estimator.rounded_step:
        return _noted(step, facts, (*notes, _unrounded(rounded, estimator)))
    added = axpy(-1.0, step.direction, rounded.direction)
    measured = replace(
        step, direction=rounded.direction, components=step.components | {"rounding": added}
    )
    notes += (f"The step is the one that rounding takes: {rounded}.",)
    if rounding.policy.precision.rounding is None:
        notes += (
            "Its gradient is not rounded as in training, where passes are in 16 bits too: in tests "
            "this changed the step by 3 to 15 %. precision.update_vector: bfloat16 rounds it.",
        )

    def along(eta: float) -> Vector:
        return rounded_step(rounding.policy, state, step, rounding.types, eta).direction

    return replace(_noted(measured, facts, notes), along=along)


def _noted(step: Step, facts: dict[str, Any], notes: tuple[str, ...]) -> RealStep:
    """The step with the notes, whose numbers replace the general sentence on moments."""
    general = tuple(w for w in step.warnings if w != SHORT_MOMENTS)
    return RealStep(replace(step, warnings=(*general, *notes)), facts)


def check_rounding(
    subject: Subject, rounding: Rounding, step: Step, estimator: EstimatorConfig
) -> Finding:
    """Is v the step that training takes in the type of its weights?"""
    stored = set(stored_types(subject.path, rounding.policy.names).values())
    kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in stored))
    rounded = rounding.step_of_interest(step, estimator)
    if rounded is None:
        short = stored & {torch.bfloat16, torch.float16}
        kept = "; training kept a float32 copy of them" if short else ""
        return Finding(ROUNDING, True, f"weights on disk are {kinds}{kept}")
    if rounded.error <= MAX_ROUNDING or estimator.rounded_step:
        measured = "; the rounded step is measured" if estimator.rounded_step else ""
        return Finding(ROUNDING, True, f"{rounded}{measured}")
    return Finding(ROUNDING, False, f"{rounded} (bound {MAX_ROUNDING:g})", _ways_out())


def _order(state: OptimizerState, step: Step) -> tuple[bool | None, tuple[str, ...]]:
    """Whether second moments confirm a match that no name in the optimizer's file confirms."""
    if state.matched_by not in ("order", "sidecar"):
        return None, ()
    order = fit_of_order(state, step.loss_gradient)
    # names in a file are refused on a test alone; an order without names on less
    named = state.matched_by == "sidecar"
    wrong = {} if order is None else order.wrong if named else order.better
    if wrong:
        raise ValueError(
            f"The optimizer's parameters were matched by {_MATCH[state.matched_by]}, and "
            f"{describe_misplaced(wrong)}: put their names, in the optimizer's order, into "
            "parameter_names.json beside its file."
        )
    if state.matched_by != "order":
        return None, ()
    if order is None or order.open:
        exchange = (
            f" (exchanged, {' and '.join(order.open)} would fit)" if order and order.open else ""
        )
        return None, (
            "The optimizer's parameters were matched by their order, which no name confirms and "
            f"second moments do not decide{exchange}: put parameter_names.json beside the "
            "optimizer's file to be sure.",
        )
    return True, (
        "The optimizer's parameters were matched by their order; its second moments fit these "
        "parameters better than any exchange of two.",
    )


_MATCH = {"order": "their order", "sidecar": "parameter_names.json"}


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


def _unrounded(rounded: RoundedStep, estimator: EstimatorConfig) -> str:
    if rounded.error <= MAX_ROUNDING:
        return f"Training rounds its weights: {rounded}."
    if estimator.rounded_step is None:
        raise ValueError(
            f"Training rounds its weights, so its step is not v: {rounded}. {_ways_out()}"
        )
    return (
        f"THIS IS NOT THE STEP THAT TRAINING TAKES: its weights are rounded, {rounded}. "
        "estimator.rounded_step=true measures the real one."
    )


def _ways_out() -> str:
    return (
        "Set estimator.rounded_step=true to measure the step that was rounded, false to measure v "
        "all the same, or checkpoint.master_weights=true if training kept float32 weights."
    )
