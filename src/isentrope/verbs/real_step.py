"""What is known of a checkpoint's optimizer, and the step that its arithmetic really takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from isentrope.checks.checkpoint import Finding, fit_of_order
from isentrope.checks.rates import describe_groups, disagreement
from isentrope.checks.state_order import describe_misplaced
from isentrope.config.estimator import EstimatorConfig
from isentrope.models.adapter import stored_types
from isentrope.nouns.vectors import axpy
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
        along: The rounded step by learning rate; None where it is v at every rate.
    """

    step: Step
    facts: dict[str, Any]
    along: Callable[[float], RoundedStep] | None


@dataclass(frozen=True)
class OptimizerOf:
    """The optimizer of a checkpoint, and what its weights are trained in.

    Attributes:
        policy: The policy at θ.
        subject: The checkpoint.
        state: The optimizer's state.
        master_weights: Whether training kept float32 weights, so that nothing is rounded.
    """

    policy: Policy
    subject: Subject
    state: OptimizerState
    master_weights: bool

    def rounding(
        self, step: Step, estimator: EstimatorConfig
    ) -> tuple[RoundedStep, Callable[[float], RoundedStep]] | None:
        """The step that training takes, at the rate of interest and at any rate.

        Args:
            step: v.
            estimator: The rate of interest; where it is 0, the largest one of the sweep.

        Returns:
            The step, and what gives it at a rate; None where nothing is rounded.
        """
        policy, state = self.policy, self.state
        rate = estimator.rate(step.learning_rate) or max(estimator.eta_list or [0.0])
        if self.master_weights or not rate:
            return None
        types = short_types(policy, state.types, stored_types(self.subject.path, policy.names))
        take = partial(rounded_step, policy, state, step, types)
        return (take(rate), take) if types else None


def real_step(optimizer: OptimizerOf, step: Step, estimator: EstimatorConfig) -> RealStep:
    """Hold a step against the checkpoint's records and the type of its weights.

    Args:
        optimizer: That of the checkpoint.
        step: v.
        estimator: Says whether the rounded step is to be measured.

    Returns:
        The step to be measured; its warnings say what was found.

    Raises:
        ValueError: If the state is matched by an order that it does not fit, or training rounds the
            step to another one and the configuration does not say which is to be measured.
    """
    state = optimizer.state
    confirmed, notes = _order(state, step)
    notes += _rates(state, optimizer.subject)
    facts = {"param_groups": tuple(state.distinct_groups), "order_confirmed": confirmed}
    along, rounding = None, optimizer.rounding(step, estimator)
    if rounding is not None:
        rounded, take = rounding
        facts["rounding"] = rounded
        notes += _of_rounding(optimizer.policy, rounded, estimator)
        if estimator.rounded_step:
            added, along = axpy(-1.0, step.direction, rounded.direction), take
            parts = step.components | {"rounding": added}
            step = replace(step, direction=rounded.direction, components=parts)
    # the numbers of these notes replace the general sentence on moments
    kept = (sentence for sentence in step.warnings if sentence != SHORT_MOMENTS)
    return RealStep(replace(step, warnings=(*kept, *notes)), facts, along)


def check_rounding(optimizer: OptimizerOf, step: Step, estimator: EstimatorConfig) -> Finding:
    """Is v the step that training takes in the type of its weights?"""
    rounding = optimizer.rounding(step, estimator)
    if rounding is None:
        stored = set(stored_types(optimizer.subject.path, optimizer.policy.names).values())
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in stored))
        short = stored & {torch.bfloat16, torch.float16}
        kept = "; training kept a float32 copy of them" if short else ""
        return Finding(ROUNDING, True, f"weights on disk are {kinds}{kept}")
    if estimator.rounded_step:
        return Finding(ROUNDING, True, f"{rounding[0]}; the rounded step is measured")
    harmless = rounding[0].error <= MAX_ROUNDING
    return Finding(
        ROUNDING, harmless, f"{rounding[0]} (bound {MAX_ROUNDING:g})", "" if harmless else _WAYS_OUT
    )


def _order(state: OptimizerState, step: Step) -> tuple[bool | None, tuple[str, ...]]:
    """Whether second moments confirm a match that no name in the optimizer's file confirms."""
    by_order, by_sidecar = state.matched_by == "order", state.matched_by == "sidecar"
    if not (by_order or by_sidecar):
        return None, ()
    order = fit_of_order(state, step.loss_gradient)
    # names in a file are refused on a test alone; an order without names on less
    wrong = {} if order is None else order.wrong if by_sidecar else order.better
    by = "parameter_names.json" if by_sidecar else "their order"
    matched = f"The optimizer's parameters were matched by {by}"
    if wrong:
        raise ValueError(
            f"{matched}, and {describe_misplaced(wrong)}: put their names, in the optimizer's "
            "order, into parameter_names.json beside its file."
        )
    if by_sidecar:
        return None, ()
    if order is None or order.open:
        return None, (
            f"{matched}, which no name confirms and second moments do not decide: put "
            "parameter_names.json beside the optimizer's file to be sure.",
        )
    better = "its second moments fit these parameters better than any exchange of two"
    return True, (f"{matched}; {better}.",)


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


_WAYS_OUT = (
    "Set estimator.rounded_step=true to measure the step that was rounded, false to measure v "
    "all the same, or checkpoint.master_weights=true if training kept float32 weights."
)


def _of_rounding(
    policy: Policy, rounded: RoundedStep, estimator: EstimatorConfig
) -> tuple[str, ...]:
    if estimator.rounded_step:
        exact = (
            "Its gradient is not rounded as in training, where passes are in 16 bits too: in tests "
            "this changed the step by 3 to 15 %. precision.update_vector: bfloat16 rounds it.",
        )
        notes = () if policy.precision.rounding else exact
        return (f"The step is the one that rounding takes: {rounded}.", *notes)
    if rounded.error <= MAX_ROUNDING:
        return (f"Training rounds its weights: {rounded}.",)
    if estimator.rounded_step is None:
        raise ValueError(
            f"Training rounds its weights, so its step is not v: {rounded}. {_WAYS_OUT}"
        )
    return (
        f"THIS IS NOT THE STEP THAT TRAINING TAKES: its weights are rounded, {rounded}. "
        "estimator.rounded_step=true measures the real one.",
    )
