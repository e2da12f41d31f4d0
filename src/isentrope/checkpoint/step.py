"""The step that training would take from a checkpoint: one way for the command line and for Python.

Settings that are left out are those of the checkpoint's files (`checkpoint.settle`). What differs
from them, or is in training's step and not in the computed one, is refused. The step is then
compared with the records of the checkpoint and the type of its weights: a control that training
added, the order of the optimizer's states, and what rounding leaves of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from isentrope.checkpoint.facts import CheckpointFacts
from isentrope.checkpoint.files import NEXT_UPDATE, TRAINING_ARGS
from isentrope.checkpoint.in_force import SettingsInForce, allowed, refuse
from isentrope.checkpoint.infer.unshown import notes_on_base, notes_on_batch
from isentrope.checkpoint.limits import (
    confirm_order,
    model_obstacles,
    note_missing_steps,
    require_rate,
    stale_batch,
    unlike_advantages,
)
from isentrope.checkpoint.record.next_update import read_control
from isentrope.checks.checkpoint import describe_groups, disagreement
from isentrope.config.estimator import EstimatorConfig
from isentrope.models.adapter import base_type, stored_types
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import axpy, norm, require_same_names
from isentrope.parallel.sharded import sharded_like
from isentrope.policy.language_model import Policy
from isentrope.system.manifest import NOT_VERIFIED, verifying
from isentrope.update.off_policy import importance_ratios
from isentrope.update.optimizer_rules import SHORT_MOMENTS, short_types
from isentrope.update.optimizer_state import OptimizerState
from isentrope.update.rounding import MAX_ROUNDING, RoundedStep, rounded_step
from isentrope.update.step import Step, compute_step

OTHER_GROUPS = "THE PARAM GROUPS ARE NOT THOSE OF TRAINING"
"""Begins the note on param groups that differ from those that training recorded."""


@dataclass(frozen=True, repr=False)
class CheckpointStep(Step):
    """The step from a checkpoint, with what limits it.

    Attributes:
        rollouts: The batch, its tokens weighted by ratios to their sampler where it is stale.
        param_groups: Settings of the optimizer's distinct groups.
        order_confirmed: Whether second moments confirm the order; None where that was not needed.
        rounding: The step in the type of the weights, where that is shorter than float32.
        along: The rounded step by learning rate; None where it is v at every rate.
    """

    rollouts: Rollouts | None = None
    param_groups: tuple[dict[str, Any], ...] = ()
    order_confirmed: bool | None = None
    rounding: RoundedStep | None = None
    along: Callable[[float], RoundedStep] | None = None


def take_step(
    checkpoint: CheckpointFacts,
    policy: Policy,
    state: OptimizerState,
    settings: SettingsInForce,
    U: Rollouts,
    longest: int | None,
    *,
    drawn_here: bool,
) -> CheckpointStep:
    """The step on U, refused if it is not training's.

    A batch that was drawn here is on-policy by construction and is not scored again.

    Args:
        checkpoint: The checkpoint.
        policy: The policy in it, at the precision of the update.
        state: The state of its optimizer.
        settings: The settings in force.
        U: The update batch.
        longest: Where its sampler cut responses, in tokens.
        drawn_here: Whether this process drew it from the policy.

    Returns:
        The step.

    Raises:
        ValueError: If it is not training's, or cannot be computed.
    """
    config = settings.config
    estimator = config.estimator
    obstacles = model_obstacles(policy, checkpoint)
    notes: tuple[str, ...] = ()
    if not drawn_here:
        stale, notes = stale_batch(policy, U, estimator)
        obstacles += stale + unlike_advantages(U, checkpoint, settings)
    refuse(obstacles, settings.ignored, checkpoint.name)
    step = step_of_files(checkpoint, policy, state, settings, U, longest)
    arguments = checkpoint.argument_fields
    stored = base_type(checkpoint.path, config.checkpoint.base_model)
    warnings = (
        *(() if verifying() else (NOT_VERIFIED,)),
        *settings.warnings,
        *allowed(obstacles, settings.ignored),
        *notes_on_base(arguments, stored, policy.precision.rounding),
        *notes_on_batch(arguments, U, config.batch_config.U_file),
        *notes,
        *step.warnings,
    )
    return replace(step, warnings=warnings)


def step_of_files(
    checkpoint: CheckpointFacts,
    policy: Policy,
    state: OptimizerState,
    settings: SettingsInForce,
    U: Rollouts,
    longest: int | None,
) -> CheckpointStep:
    """The step on U as far as the files of the checkpoint decide it; `check` takes it too.

    Returns:
        The step.

    Raises:
        ValueError: If the optimizer's rate is 0 and no other is given, the step is zero, a file
            does not fit the others, the state is matched by an order that it does not fit, or
            training rounds the step to another one and the configuration does not say which is
            to be measured.
    """
    estimator = settings.config.estimator
    require_rate(checkpoint, estimator, state.learning_rate)
    U, plain = step_on_batch(policy, U, state, estimator, longest)
    plain = with_control(checkpoint, policy, U, plain)
    step = CheckpointStep(**vars(plain), rollouts=U, param_groups=tuple(state.distinct_groups))
    notes: list[str] = []
    of_transformers = (checkpoint.path / TRAINING_ARGS).is_file()
    confirmed = confirm_order(state, step, notes, of_transformers=of_transformers)
    record, difference = disagreement(state, checkpoint.path)
    if difference:
        notes.append(
            f"{OTHER_GROUPS} ({record}): {difference}. The step is "
            "another one than training would take; run isentrope check."
        )
    notes += note_missing_steps(state, checkpoint)
    if len({float(group["lr"]) for group in state.distinct_groups}) > 1:
        notes.append(f"Learning rates differ: {describe_groups(state)}.")
    step = replace(step, order_confirmed=confirmed)
    along = _round_along(checkpoint, policy, state, settings, step)
    rounding = None if along is None else along(_rounding_rate(settings, step))
    if rounding is not None:
        notes += _note_rounding(policy, rounding, estimator)
        step = replace(step, rounding=rounding)
        if estimator.rounded_step:
            added = {"rounding": axpy(-1.0, step.direction, rounding.direction)}
            step = replace(
                step,
                direction=rounding.direction,
                components=step.components | added,
                along=along,
            )
    # the numbers of these notes replace the general sentence on moments
    warnings = (sentence for sentence in step.warnings if sentence != SHORT_MOMENTS)
    return replace(step, warnings=(*warnings, *notes))


def step_on_batch(
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
    objective = estimator.objective
    weighting = estimator.weighting(longest)
    clipped: tuple[str, ...] = ()
    if estimator.off_policy:
        ratios = importance_ratios(policy, U, None if objective == "cispo" else estimator.clip_pair)
        U = ratios.weighted(U, objective, **weighting)
        objective = RECORDED
        clipped = ratios.warnings
    step = compute_step(
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


def with_control(checkpoint: CheckpointFacts, policy: Policy, U: Rollouts, step: Step) -> Step:
    """The step with the part of a step control, where U is training's own; a warning says so."""
    record = checkpoint.path / NEXT_UPDATE
    control = read_control(checkpoint.path) if (record / "update.json").is_file() else None
    if control is None:
        return step
    note = (
        "Training corrected the step from this checkpoint by a control. U is another batch, so "
        "what is measured is the optimizer's step without a correction."
    )
    if Rollouts.load(record / "rollouts.parquet").fingerprint == U.fingerprint:
        require_same_names(control, policy.theta)
        shards = {name: sharded_like(x, policy.theta[name]) for name, x in control.items()}
        step = step.corrected(shards)
        note = (
            "The step has a part that a control added in training. Attributions to sequences and "
            "tokens are of the optimizer's own step."
        )
    return replace(step, warnings=(*step.warnings, note))


def _rounding_rate(settings: SettingsInForce, step: Step) -> float:
    """The rate at which rounding is looked at: that of interest, or the largest of the sweep."""
    estimator = settings.config.estimator
    return estimator.rate(step.learning_rate) or max(estimator.eta_list or [0.0])


def rounding_of(
    checkpoint: CheckpointFacts,
    policy: Policy,
    state: OptimizerState,
    settings: SettingsInForce,
    step: Step,
) -> RoundedStep | None:
    """The step that training takes at the rate of interest; None where nothing is rounded."""
    along = _round_along(checkpoint, policy, state, settings, step)
    return None if along is None else along(_rounding_rate(settings, step))


def _round_along(
    checkpoint: CheckpointFacts,
    policy: Policy,
    state: OptimizerState,
    settings: SettingsInForce,
    step: Step,
) -> Callable[[float], RoundedStep] | None:
    """The step that training takes, by learning rate; None where nothing is rounded."""
    if settings.config.checkpoint.master_weights or not _rounding_rate(settings, step):
        return None
    types = short_types(policy, state.types, stored_types(checkpoint.path, policy.names))
    return partial(rounded_step, policy, state, step, types) if types else None


WAYS_OUT = (
    "Set estimator.rounded_step=true to measure the step that was rounded, false to measure v, "
    "which training does not take, or checkpoint.master_weights=true if training kept float32 "
    "weights (this is believed)."
)


def _note_rounding(policy: Policy, rounded: RoundedStep, estimator: EstimatorConfig) -> list[str]:
    """Say what rounding does to the step, or refuse a step that it makes another one."""
    if estimator.rounded_step:
        exact = (
            "Its gradient is not rounded as in training, where passes are in 16 bits too: in tests "
            "this changed the step by 3 to 15 %. precision.update_vector: bfloat16 rounds it."
        )
        exact_notes = [] if policy.precision.rounding else [exact]
        return [f"The step is the one that rounding takes: {rounded}.", *exact_notes]
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
