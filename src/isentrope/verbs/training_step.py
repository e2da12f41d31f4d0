"""The step that training takes from a checkpoint: one way for the command line and for Python.

Settings that are left out are those of the checkpoint's files (`trainers.as_trained`). What differs
from them, or is in training's step and not in the computed one, is refused.
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from isentrope.config.estimator import AnyObjective, EstimatorConfig
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import norm, require_same_names, sharded_like
from isentrope.policy.language_model import Policy
from isentrope.recording.next_update import NEXT_UPDATE, read_control
from isentrope.runs.checkpoints import Subject
from isentrope.system.manifest import NOT_VERIFIED, verifying
from isentrope.trainers.as_trained import allowed, refuse
from isentrope.trainers.settings import GivenBatch
from isentrope.update import step as update
from isentrope.update.objective import RECORDED
from isentrope.update.off_policy import importance_ratios
from isentrope.update.optimizer_state import (
    OptimizerLike,
    OptimizerState,
    file_of,
    load_optimizer_state,
)
from isentrope.update.parameter_names import Names
from isentrope.update.step import Step
from isentrope.verbs.check_batches import model_obstacles, stale_batch, unlike_advantages
from isentrope.verbs.real_step import OptimizerOf, RealStep, real_step

_AS_TRAINED = "as_trained"


def optimizer_step(
    policy: Policy,
    rollouts: Rollouts,
    optimizer: OptimizerLike,
    *,
    objective: AnyObjective | None = None,
    max_response_length: int | None = None,
    max_grad_norm: float | Literal["as_trained"] | None = _AS_TRAINED,
    clip: float | tuple[float, float] | Literal["as_trained"] | None = _AS_TRAINED,
    micro_batch: int | None = None,
    off_policy: bool = False,
    rounded_step: bool | None = None,
    master_weights: bool = False,
    ignore_training_settings: Collection[str] = (),
    rule: str | None = None,
    names: Names | None = None,
) -> Step:
    """The direction in which the optimizer would move θ on an update batch.

    A setting that is left out is training's, where a file beside the optimizer's state says it
    (contract.json, training_args.bin, trainer_state.json); else it is the default of the command
    line, and the step's warnings name it. A setting that differs from training's is refused, as on
    the command line. A state_dict and a torch optimizer have no such files: the defaults are
    dr_grpo, max_grad_norm 1 and clip 0.2.

    Args:
        policy: The policy at θ, at the temperature of training.
        rollouts: The update batch U, with advantages (or recorded weights; given responses for
            "sft").
        optimizer: State before the step: a checkpoint's folder, a path to optimizer.pt, a
            state_dict or a torch optimizer; none of them is changed.
        objective: One of `update.objective.OBJECTIVES`, "sft" or "recorded".
        max_response_length: L in tokens, the constant normaliser of "dr_grpo"; where no file says
            it, the length at which the rollouts' sampler cut responses.
        max_grad_norm: Largest gradient norm let through, as clip_grad_norm_; None for no clipping.
        clip: How far from 1 a ratio may go: one number, (low, high), or None for any; the upper
            bound is the cap of "cispo".
        micro_batch: Responses per backward pass of "bnpo" and in 16 bits, in the order of the
            rollouts; None for one pass over all.
        off_policy: Whether an earlier policy drew the rollouts: their tokens are weighted by the
            ratio to it.
        rounded_step: Where weights are trained in 16 bits: True for the rounded step, False for v.
        master_weights: Whether training kept float32 copies of 16-bit weights.
        ignore_training_settings: Settings of training that may differ, by the names that a refusal
            has; each leaves a warning.
        rule: "adamw", "adam", "sgd" or "rmsprop"; None infers it from the param groups.
        names: Names of the optimizer's parameters in its order, where they cannot be found.

    Returns:
        The step.

    Raises:
        ValueError: If a setting is not training's, advantages are missing, an argument or the
            optimizer does not fit, or the gradient or the direction is not finite.
    """
    file = file_of(optimizer) if isinstance(optimizer, (str, Path)) else None
    given = {
        "objective": objective,
        "max_response_length": max_response_length,
        "micro_batch": micro_batch,
        "rounded_step": rounded_step,
        "off_policy": off_policy,
        "ignore_training_settings": list(ignore_training_settings),
    }
    optional = {"max_grad_norm": max_grad_norm, "clip": clip}
    given = {key: value for key, value in given.items() if value is not None}
    given |= {key: value for key, value in optional.items() if value != _AS_TRAINED}
    config = _config(policy, "." if file is None else str(file.parent), given)
    longest = rollouts.max_new_tokens
    if file is None:
        state = load_optimizer_state(policy, optimizer, rule=rule, names=names)
        return update_step(policy, rollouts, state, config.estimator, longest)[1]
    brings = rollouts.advantages is not None, rollouts.entropy_weights is not None, longest
    config, settled = config.as_trained(file.parent, GivenBatch(*brings))
    refuse(settled.obstacles, settled.ignored, str(file.parent))
    subject = Subject(file.parent, file.parent.name, file, as_trained=settled)
    state = load_optimizer_state(policy, file, rule=rule, names=names)
    of = OptimizerOf(policy, subject, state, master_weights)
    return training_step(of, rollouts, config.estimator, longest, drawn_here=False)[1].step


def _config(policy: Policy, checkpoint: str, estimator: dict[str, Any]) -> MeasureConfig:
    """What a measurement with this policy would be configured by."""
    autocast, rounding = policy.precision.autocast, policy.precision.rounding
    amp = {"use_amp": True, "amp_dtype": autocast}
    return load_config(
        {
            "checkpoint": {"checkpoint_path": checkpoint},
            "estimator": estimator,
            "sampling": {"temperature": policy.temperature},
            "precision": {"update_vector": amp if autocast else rounding},
        }
    )


def training_step(
    of: OptimizerOf,
    U: Rollouts,
    estimator: EstimatorConfig,
    longest: int | None,
    *,
    drawn_here: bool,
) -> tuple[Rollouts, RealStep]:
    """The step on U, refused if it is not training's.

    `longest` is where U's sampler cut responses, in tokens, and `drawn_here` says that U is
    on-policy.

    Returns:
        U, with token weights where it is stale, and the step.
    """
    policy, subject = of.policy, of.subject
    stale, notes = stale_batch(policy, U, estimator, drawn_here=drawn_here)
    unlike = [] if drawn_here else unlike_advantages(U, subject.as_trained)
    obstacles = [*model_obstacles(policy, subject), *stale, *unlike]
    refuse(obstacles, estimator.ignore_training_settings, subject.name)
    differences = allowed(obstacles, estimator.ignore_training_settings)
    unverified = () if verifying() else (NOT_VERIFIED,)
    U, step = update_step(policy, U, of.state, estimator, longest)
    real = real_step(of, with_control(policy, subject.path, U, step), estimator)
    warnings = (*unverified, *subject.as_trained.warnings, *differences, *notes)
    return U, replace(real, step=replace(real.step, warnings=warnings + real.step.warnings))


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
    step = update.optimizer_step(
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
