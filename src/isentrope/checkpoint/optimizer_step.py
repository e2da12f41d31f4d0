"""The step of an optimizer on an update batch, of a checkpoint or of an object in memory."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.in_force import allowed, refuse
from isentrope.checkpoint.limits import stale_batch
from isentrope.checkpoint.overrides import configure_step
from isentrope.checkpoint.step import step_on_batch
from isentrope.nouns.choices import AnyObjective
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.update.optimizer_state import OptimizerLike, file_of, load_optimizer_state
from isentrope.update.parameter_names import Names
from isentrope.update.step import Step

_AS_TRAINED = "as_trained"


@refuse_other_types
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
        FileNotFoundError: If the path has no optimizer state.
        ValueError: If a setting is not training's, advantages are missing, an argument or the
            optimizer does not fit, or the gradient or the direction is not finite.
    """
    overrides: dict[str, Any] = {
        "objective": objective,
        "max_response_length": max_response_length,
        "micro_batch": micro_batch,
        "rounded_step": rounded_step,
        "off_policy": off_policy,
        "master_weights": master_weights,
        "ignore_training_settings": list(ignore_training_settings),
    }
    overrides = {key: value for key, value in overrides.items() if value is not None}
    if max_grad_norm != _AS_TRAINED:
        overrides["max_grad_norm"] = max_grad_norm
    if clip != _AS_TRAINED:
        overrides["clip"] = clip
    if isinstance(optimizer, (str, Path)):
        file = file_of(optimizer)
        if not file.is_file():
            raise FileNotFoundError(f"There is no optimizer state at {file}.")
        checkpoint = StoredCheckpoint(file.parent, name=file.parent.name, optimizer=file)
        return checkpoint.step(policy, rollouts, overrides, rule=rule, names=names)
    config = configure_step(Path(), policy, overrides)
    state = load_optimizer_state(policy, optimizer, rule=rule, names=names)
    stale, notes = stale_batch(policy, rollouts, config.estimator)
    refuse(stale, ignore_training_settings, "this optimizer")
    longest = rollouts.max_new_tokens
    step = step_on_batch(policy, rollouts, state, config.estimator, longest)[1]
    warnings = (*allowed(stale, ignore_training_settings), *notes, *step.warnings)
    return replace(step, warnings=warnings)
