"""`isentrope check --replay`: is the recorded step the one that was taken?

    v from θ_N, its optimizer's state and next_update/      against      (θ_N+1 − θ_N) / η

The error is relative to the step that was taken. The norm of the gradient is compared by itself,
which tells a wrong momentum from a wrong gradient. Weights are stored in a type of few bits: what
its rounding may be is given beside.

Adam's step is nearly the sign of a gradient where it has no moments of earlier ones. The rounding
of a pass in 16 bits turns the sign of a gradient near zero, so that an error of 1 % in the gradient
is one of 10 % in the step. Then the gradient that training used is read from the two states,

    g = (m_N+1 − β₁ m_N) / (1 − β₁)

and the parts are compared by themselves: the recorded gradient with g within the tolerance of
16 bits, and the rule's step from g with the one that was taken within that of 32 bits.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import torch

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.files import NEXT_UPDATE, step_of_folder
from isentrope.checkpoint.record.next_update import (
    REPLAY_TOLERANCE,
    precision_of,
    read_next_update,
    replay_tolerance,
)
from isentrope.checkpoint.settle import settle
from isentrope.checkpoint.step import with_control
from isentrope.checks import Finding
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.config.stages import SamplingConfig
from isentrope.models.adapter import stored_types
from isentrope.models.precision import Precision
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.vectors import Vector, axpy, norm
from isentrope.policy.language_model import Policy
from isentrope.run.study import require_inputs
from isentrope.system.log import log
from isentrope.system.manifest import verification
from isentrope.system.processes import join_processes
from isentrope.system.progress import progress
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import Step, compute_step, follow_rule
from isentrope.verbs.batches import at_precision

SAME_STEP = "the recorded step is the one taken"
SAME_NORM = "its gradient has the recorded norm"


class NoNextStepError(ValueError):
    """There is no step from this checkpoint to compare with."""


def replay(config: MeasureConfig) -> dict[str, list[Finding]]:
    """Replay the recorded step of every checkpoint of a configuration.

    Args:
        config: The checkpoints, and how they are loaded.

    Returns:
        Findings by checkpoint.

    Raises:
        NoNextStepError: If none of the checkpoints has a record and a checkpoint one step later.
    """
    join_processes()
    findings: dict[str, list[Finding]] = {}
    missing: list[NoNextStepError] = []
    with verification(config.checkpoint.verify), progress().bar("replaying") as report:
        checkpoints = require_inputs(config)
        for done, checkpoint in enumerate(checkpoints):
            report(done, len(checkpoints), f"the step from {checkpoint.name}")
            in_force = settle(checkpoint, config).config
            arguments = checkpoint.argument_fields
            precision = in_force.precision.updating
            # autocast as in the trainer's arguments, where the configuration has none
            autocast = precision.autocast or precision_of(SimpleNamespace(**arguments)).autocast
            if autocast is not None:
                precision = replace(precision, runtime_dtype="float32", autocast=autocast)
            rows = in_force.estimator.micro_batch or arguments.get("per_device_train_batch_size")
            try:
                replayed = _replay_one(
                    checkpoint, in_force.checkpoint, in_force.sampling, precision, rows
                )
            except NoNextStepError as error:
                missing.append(error)
                replayed = [Finding(SAME_STEP, None, str(error))]
            findings[checkpoint.name] = replayed
    if len(missing) == len(checkpoints):
        raise missing[0]
    return findings


def _replay_one(
    checkpoint: StoredCheckpoint,
    section: CheckpointConfig,
    sampling: SamplingConfig,
    precision: Precision,
    micro_batch: int | None,
) -> list[Finding]:
    after = _find_next(checkpoint)
    try:
        U, update = read_next_update(checkpoint.path)
    except FileNotFoundError as error:
        raise NoNextStepError(f"{str(error).rstrip('.')}, or recorded none.") from error
    if U.token_weights is None:
        raise NoNextStepError(f"{checkpoint.path / NEXT_UPDATE} has no token weights to replay.")
    policy = checkpoint.load(section, sampling)
    policy_after = after.load(section, sampling)
    policy.share_work()
    with at_precision(policy, precision):
        step = compute_step(
            policy,
            U,
            checkpoint.optimizer,
            objective=RECORDED,
            max_grad_norm=update.get("max_grad_norm"),
            micro_batch=micro_batch,
        )
        step = with_control(checkpoint, policy, U, step)
        limit = replay_tolerance(policy)
        # the largest rounding that the types of the stored weights allow
        kinds = stored_types(after.path, policy.names)
        spacing: Vector = {
            name: torch.finfo(kinds.get(name, torch.float32)).eps * p.double()
            for name, p in policy.theta.items()
        }
        change = axpy(-1.0, policy.theta, policy_after.theta)
        size = norm(change)
        rounding = norm(spacing)
        eta = update.get("learning_rate") or step.learning_rate
        distance = norm(axpy(-eta, step.direction, change))
        by_parts = ""
        if limit > REPLAY_TOLERANCE and max(limit * size, rounding) < distance:
            exact = max(REPLAY_TOLERANCE, rounding / size)
            by_parts = _compare_parts(checkpoint, after, policy, step, change, eta, limit, exact)
    if by_parts:
        finding = Finding(SAME_STEP, True, f"relative error {distance / size:.2g}: {by_parts}")
        log.warning(
            "What is measured of %s differs from the step taken by %.2g of its length: %s.",
            *(checkpoint.name, distance / size, by_parts),
        )
    elif size:
        finding = _judge_step(distance / size, rounding / size, limit)
    else:  # nothing moved
        finding = _judge_step(0.0 if norm(step.direction) == 0 else math.inf, math.inf, limit)
    recorded = update.get("gradient_norm")
    return [finding] if recorded is None else [finding, _judge_norm(step, recorded, limit)]


def _compare_parts(
    checkpoint: StoredCheckpoint,
    after: StoredCheckpoint,
    policy: Policy,
    step: Step,
    change: Vector,
    eta: float,
    limit: float,
    exact: float,
) -> str:
    """What gradient and rule say by themselves where both are right; empty where not, or unknown.

    Args:
        checkpoint: θ_N.
        after: θ_N+1, whose state holds the gradient of the step.
        policy: At θ_N.
        step: The one that is replayed.
        change: θ_N+1 − θ_N.
        eta: The rate of the step.
        limit: Largest relative error of the gradient.
        exact: Largest relative error of the rule's step.

    Returns:
        A clause.
    """
    try:
        state = load_optimizer_state(policy, checkpoint.optimizer)
        later = load_optimizer_state(policy, after.optimizer)
    except (ValueError, FileNotFoundError):  # there is nothing to compare with
        return ""
    gradient: Vector = {}
    for name, parameter in policy.theta.items():
        moments = later.moments[name]
        beta = state.groups[name].get("betas", (1.0,))[0]
        if "exp_avg" not in moments or not 0 <= beta < 1:
            return ""
        before = state.moments[name].get("exp_avg", torch.zeros_like(parameter).double())
        gradient[name] = (moments["exp_avg"] - beta * before) / (1 - beta)
    components, _ = follow_rule(policy, state, gradient)
    direction = step.components.get("control")
    for part in components.values():
        direction = part if direction is None else axpy(1.0, part, direction)
    assert direction is not None
    replayed = {name: step.clip_factor * x for name, x in step.loss_gradient.items()}
    gap = norm(axpy(-1.0, gradient, replayed)) / norm(gradient)
    error = norm(axpy(-eta, direction, change)) / norm(change)
    if not (gap <= limit and error <= exact):
        return ""
    return (
        "rounding turns signs of gradients near zero, of which Adam's step is made here; the "
        f"optimizer's own gradient, from which the recorded one differs by {gap:.2g} (allowed "
        f"{limit:.2g}), gives the step to {error:.2g} (allowed {exact:.2g})"
    )


def _judge_norm(step: Step, recorded: float, limit: float) -> Finding:
    """Whether the gradient has the norm that training logged."""
    gap = step.gradient_norm
    if recorded:
        gap = abs(gap - recorded) / recorded
    detail = f"relative error {gap:.2g}, allowed {limit:.2g}"
    advice = (
        "The batch, its weights or the pass differ from training's: compare the versions and the "
        "precision (training_args.bin) with those of training."
    )
    return Finding.judged(SAME_NORM, "" if gap <= limit else detail, advice, detail)


def _judge_step(error: float, rounding: float, limit: float) -> Finding:
    """Whether the recorded step is the one taken, by errors relative to that one."""
    allowed = max(limit, rounding)
    detail = (
        f"relative error {error:.2g}, allowed {allowed:.2g}; rounding of stored weights is at most "
        f"{rounding:.2g}"
    )
    advice = (
        "What is measured is not the step that training took: compare the optimizer's state and "
        "settings with those of training."
    )
    return Finding.judged(SAME_STEP, "" if error <= allowed else detail, advice, detail)


def _find_next(checkpoint: StoredCheckpoint) -> StoredCheckpoint:
    """The checkpoint one step later."""
    step = checkpoint.step_number
    if step is None:
        raise NoNextStepError(
            f"{checkpoint.path} has no step in its name: replay a checkpoint called step_N or "
            "checkpoint-N beside those of its run."
        )
    for path in checkpoint.path.resolve().parent.iterdir():
        if path.is_dir() and step_of_folder(path.name) == step + 1:
            return StoredCheckpoint(path, name=path.name)
    raise NoNextStepError(
        f"There is no checkpoint of step {step + 1} beside {checkpoint.path} to compare with: "
        "train with training.save_every=1, or take the step again by `isentrope train --from "
        f"{checkpoint.path} --set training.steps={step + 1} --out FOLDER`."
    )
