"""What is known of a checkpoint's optimizer, and the step that its arithmetic really takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from isentrope.checkpoint.checkpoint import Subject
from isentrope.checkpoint.files import CheckpointFolder
from isentrope.checkpoint.infer.arguments import TRAINING_ARGS
from isentrope.checkpoint.infer.settings import TRAINER_STATE
from isentrope.checkpoint.record.next_update import NEXT_UPDATE, read_control
from isentrope.checks.checkpoint import describe_groups, disagreement, fit_of_order
from isentrope.checks.state_order import describe_misplaced
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import MeasureConfig
from isentrope.models.adapter import stored_types
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import axpy, norm, require_same_names
from isentrope.parallel.sharded import sharded_like
from isentrope.policy.language_model import Policy
from isentrope.update.objective import RECORDED
from isentrope.update.off_policy import importance_ratios
from isentrope.update.optimizer_rules import SHORT_MOMENTS, short_types
from isentrope.update.optimizer_state import OptimizerState
from isentrope.update.rounding import MAX_ROUNDING, RoundedStep, rounded_step
from isentrope.update.step import Step, optimizer_step
from isentrope.verbs.printed_measure import FEWER_STEPS, OTHER_GROUPS


@dataclass(frozen=True)
class RealStep:
    """A step with what limits it.

    Attributes:
        U: The batch that it is of.
        step: v, or the rounded step where that is to be measured.
        facts: Param groups, whether an order is confirmed, and rounding, for the results.
        along: The rounded step by learning rate; None where it is v at every rate.
    """

    U: Rollouts
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
        config: Which step is asked for, and whether training kept float32 weights.
    """

    policy: Policy
    subject: Subject
    state: OptimizerState
    config: MeasureConfig

    def rounding(self, step: Step) -> tuple[RoundedStep, Callable[[float], RoundedStep]] | None:
        """The step that training takes, at the rate of interest and at any rate.

        Args:
            step: v.

        Returns:
            The step, and what gives it at a rate; None where nothing is rounded.
        """
        policy, state, estimator = self.policy, self.state, self.config.estimator
        # at the largest rate of the sweep where that of interest is 0
        rate = estimator.rate(step.learning_rate) or max(estimator.eta_list or [0.0])
        if self.config.checkpoint.master_weights or not rate:
            return None
        types = short_types(policy, state.types, stored_types(self.subject.path, policy.names))
        take = partial(rounded_step, policy, state, step, types)
        return (take(rate), take) if types else None


def update_step(
    policy: Policy,
    U: Rollouts,
    optimizer: OptimizerState,
    estimator: EstimatorConfig,
    longest: int | None,
) -> tuple[Rollouts, Step]:
    """The optimizer's step on U; `longest` is L of dr_grpo where none is set.

    Returns:
        U, with its tokens weighted by the ratio to the policy that drew them where it is stale, and
        the step.

    Raises:
        ValueError: If it is zero.
    """
    objective, weighting = estimator.objective, estimator.weighting(longest)
    clipped: tuple[str, ...] = ()
    if estimator.off_policy:
        ratios = importance_ratios(policy, U, None if objective == "cispo" else estimator.clip_pair)
        U = ratios.weighted(U, objective, **weighting)
        objective, clipped = RECORDED, ratios.warnings
    step = optimizer_step(
        policy,
        U,
        optimizer,
        objective=objective,
        max_grad_norm=estimator.max_grad_norm,
        **weighting,
    )
    if norm(step.direction) == 0:
        raise ValueError(
            "The step is zero, so there is no change to measure: no response of U has an "
            "advantage, and the optimizer has neither momentum nor decay."
        )
    return U, replace(step, warnings=(*clipped, *step.warnings))


def with_control(policy: Policy, checkpoint: Path, U: Rollouts, step: Step) -> Step:
    """The step with the part of a step control, where U is training's own; a warning says so."""
    record = checkpoint / NEXT_UPDATE
    control = read_control(checkpoint) if (record / "update.json").is_file() else None
    if control is None:
        return step
    note = (
        "Training corrected the step from this checkpoint by a control. U is another batch, so "
        "what is measured is the optimizer's step without a correction."
    )
    if Rollouts.load(record / "rollouts.parquet").fingerprint == U.fingerprint:
        require_same_names(control, policy.theta)
        own = {name: sharded_like(x, policy.theta[name]) for name, x in control.items()}
        step = step.corrected(own)
        note = (
            "The step has a part that a control added in training. Attributions to sequences and "
            "tokens are of the optimizer's own step."
        )
    return replace(step, warnings=(*step.warnings, note))


def real_step(optimizer: OptimizerOf, U: Rollouts, step: Step) -> RealStep:
    """Hold a step against the checkpoint's records and the type of its weights.

    Args:
        optimizer: That of the checkpoint.
        U: The batch.
        step: v.

    Returns:
        The step to be measured; its warnings say what was found.

    Raises:
        ValueError: If the state is matched by an order that it does not fit, or training rounds the
            step to another one and the configuration does not say which is to be measured.
    """
    state, estimator, notes = optimizer.state, optimizer.config.estimator, list[str]()
    of_transformers = (optimizer.subject.path / TRAINING_ARGS).is_file()
    confirmed = _confirmed_order(state, step, notes, of_transformers=of_transformers)
    record, difference = disagreement(state, optimizer.subject.path)
    if difference:
        notes.append(
            f"{OTHER_GROUPS} ({record}): {difference}. The step is "
            "another one than training would take; run isentrope check."
        )
    notes += _note_missing_steps(state, optimizer.subject.path)
    if len({float(group["lr"]) for group in state.distinct_groups}) > 1:
        notes.append(f"Learning rates differ: {describe_groups(state)}.")
    facts = {"param_groups": tuple(state.distinct_groups), "order_confirmed": confirmed}
    along, rounding = None, optimizer.rounding(step)
    if rounding is not None:
        facts["rounding"], take = rounding
        notes += _of_rounding(optimizer.policy, rounding[0], estimator)
        if estimator.rounded_step:
            direction, along = rounding[0].direction, take
            added = {"rounding": axpy(-1.0, step.direction, direction)}
            step = replace(step, direction=direction, components=step.components | added)
    # the numbers of these notes replace the general sentence on moments
    kept = (sentence for sentence in step.warnings if sentence != SHORT_MOMENTS)
    return RealStep(U, replace(step, warnings=(*kept, *notes)), facts, along)


def _note_missing_steps(state: OptimizerState, checkpoint: Path) -> list[str]:
    """Say where the optimizer has counted fewer steps than its checkpoint; a scaler skips some."""
    if not (checkpoint / TRAINER_STATE).is_file():
        return []
    here = CheckpointFolder(checkpoint).step
    counts = [float(moments["step"]) for moments in state.moments.values() if "step" in moments]
    taken = max(counts, default=0.0)
    scaled = (checkpoint / "scaler.pt").is_file()
    if here is None or not counts or scaled or taken >= here:
        return []
    return [
        f"{FEWER_STEPS} {taken:g} steps, and {checkpoint.name} is of step {here}: it "
        "began anew in training, or steps were left out. The step that is measured is the one from "
        "its state."
    ]


def _confirmed_order(
    state: OptimizerState, step: Step, notes: list[str], *, of_transformers: bool
) -> bool | None:
    """Whether second moments confirm a match that no name confirms; notes say what is known."""
    by = {"order": "their order", "sidecar": "parameter_names.json"}.get(state.matched_by)
    if by is None:
        return None
    order, by_sidecar = fit_of_order(state, step.loss_gradient), state.matched_by == "sidecar"
    # names in a file are refused on a test alone; an order without names on less
    wrong = {} if order is None else order.wrong if by_sidecar else order.better
    matched = f"The optimizer's parameters were matched by {by}"
    if wrong:
        raise ValueError(
            f"{matched}, and {describe_misplaced(wrong)}: put their names, in the optimizer's "
            "order, into parameter_names.json beside its file."
        )
    if by_sidecar:
        return None
    if order is None or order.open:
        if of_transformers:
            return None  # its own order, which the sizes of its groups fit
        notes.append(
            f"{matched}, which no name confirms and second moments do not decide: put "
            "parameter_names.json beside the optimizer's file to be sure."
        )
        return None
    better = "its second moments fit these parameters better than any exchange of two"
    notes.append(f"{matched}; {better}.")
    return True


WAYS_OUT = (
    "Set estimator.rounded_step=true to measure the step that was rounded, false to measure v, "
    "which training does not take, or checkpoint.master_weights=true if training kept float32 "
    "weights (this is believed)."
)


def _of_rounding(policy: Policy, rounded: RoundedStep, estimator: EstimatorConfig) -> list[str]:
    if estimator.rounded_step:
        exact = (
            "Its gradient is not rounded as in training, where passes are in 16 bits too: in tests "
            "this changed the step by 3 to 15 %. precision.update_vector: bfloat16 rounds it."
        )
        notes = [] if policy.precision.rounding else [exact]
        return [f"The step is the one that rounding takes: {rounded}.", *notes]
    if rounded.error <= MAX_ROUNDING:
        return [f"Training rounds its weights: {rounded}."]
    if estimator.rounded_step is None:
        raise ValueError(
            f"Training rounds its weights, so its step is not v: {rounded}. {WAYS_OUT}"
        )
    return [
        f"THIS IS NOT THE STEP THAT TRAINING TAKES: its weights are rounded, {rounded}. "
        "estimator.rounded_step=true measures the real one."
    ]
