"""What every verb on a checkpoint starts from: the policy, E and U, and the optimizer's step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.config.measure import MeasureConfig
from isentrope.pipelines.batches import Batches, make_batches
from isentrope.pipelines.header import header_of
from isentrope.pipelines.precision_stages import at_precision
from isentrope.pipelines.real_step import real_step
from isentrope.pipelines.replayable import model_obstacles, stale_batch
from isentrope.policy.language_model import Policy
from isentrope.progress import Clock, Progress
from isentrope.recording.contract import NEXT_UPDATE, read_control
from isentrope.rollouts import Rollouts
from isentrope.runs.as_trained import allowed, refuse
from isentrope.runs.checkpoints import Subject
from isentrope.runs.header import Header
from isentrope.training.settings_rules import Obstacle
from isentrope.update.objective import RECORDED
from isentrope.update.off_policy import importance_ratios
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import Step, optimizer_step
from isentrope.vectors import Vector, norm

log = logging.getLogger("isentrope")


@dataclass(frozen=True)
class Prepared:
    """A checkpoint ready to be looked at.

    Attributes:
        subject: The checkpoint.
        policy: In float32, to be set to a precision for each stage (`at_precision`).
        batches: E and U.
        step: The optimizer's step on U.
        header: What results say of all that.
        clock: Counts the time of each stage.
        along: Δθ/η by learning rate where training rounds the step; None where it is v.
    """

    subject: Subject
    policy: Policy
    batches: Batches
    step: Step
    header: Header
    clock: Clock
    along: Callable[[float], Vector] | None = None


def prepare_checkpoint(
    config: MeasureConfig, subject: Subject, progress: Progress, clock: Clock
) -> Prepared:
    """Load a checkpoint, draw E and U, and compute the step."""
    with clock.stage("load"):
        policy = subject.load(config)
        state = load_optimizer_state(policy, subject.optimizer)
        config.estimator.etas(state.learning_rate)  # refuses a rate of 0 before any work
        log.info("%s: optimizer %s matched by %s", subject.name, state.rule, state.matched_by)
    with clock.stage("batches"):
        of_model = model_obstacles(policy, subject)
        refuse(of_model, config.estimator.ignore_training_settings, subject.name)
        batches = make_batches(config, policy, progress)
    with clock.stage("update"), at_precision(policy, config.precision.updating):
        said = _of_training(config, policy, batches, subject, of_model)
        if config.estimator.off_policy:
            batches, clipped = _stale(config, policy, batches)
            said += clipped
        step = update_step(config, policy, batches.U, subject.optimizer)
        step, of_control = with_control(config, policy, subject.path, step)
        said += of_control
        real = real_step(config, policy, subject, state, step)
        step = replace(real.step, warnings=(*said, *real.step.warnings))
    header = header_of(config, policy, subject, batches, step, real.facts)
    return Prepared(subject, policy, batches, step, header, clock, real.along)


def _of_training(
    config: MeasureConfig,
    policy: Policy,
    batches: Batches,
    subject: Subject,
    of_model: list[Obstacle],
) -> tuple[str, ...]:
    """Sentences on where the step is not training's; refuses what may not differ."""
    ignored = config.estimator.ignore_training_settings
    stale, note = stale_batch(config, policy, batches.U)
    refuse(stale, ignored, subject.name)
    return (*subject.as_trained.warnings, *allowed([*of_model, *stale], ignored), *note)


def _stale(
    config: MeasureConfig, policy: Policy, batches: Batches
) -> tuple[Batches, tuple[str, ...]]:
    """U with its tokens weighted by the ratio to the policy that drew them."""
    estimator, clip = config.estimator, config.estimator.clip_pair
    capped = estimator.objective == "cispo"
    ratios = importance_ratios(policy, batches.U, None if capped else clip)
    weighted = ratios.weighted(
        batches.U,
        estimator.objective,
        normalising_length(config, batches.U),
        cap=clip[1] if clip else None,
        micro_batch=estimator.micro_batch,
    )
    return replace(batches, U=weighted), ratios.warnings


def normalising_length(config: MeasureConfig, U: Rollouts) -> int:
    """The constant length L of Dr. GRPO: as configured, or where the sampler of U cut.

    Args:
        config: What was asked.
        U: The update batch, drawn here or read from a file that says how long it was let run.

    Returns:
        Tokens.
    """
    own = U.max_new_tokens or config.sampling.max_new_tokens
    return config.estimator.max_response_length or own


def update_step(config: MeasureConfig, policy: Policy, U: Rollouts, optimizer: Path) -> Step:
    """The optimizer's step on U, as the configuration says.

    Args:
        config: What was asked.
        policy: The policy.
        U: The update batch.
        optimizer: The optimizer's file.

    Returns:
        The step.

    Raises:
        ValueError: If it is zero.
    """
    estimator = config.estimator
    step = optimizer_step(
        policy,
        U,
        optimizer,
        objective=RECORDED if estimator.off_policy else estimator.objective,
        max_response_length=normalising_length(config, U),
        max_grad_norm=estimator.max_grad_norm,
        clip_high=estimator.clip_pair[1] if estimator.clip_pair else None,
        micro_batch=estimator.micro_batch,
    )
    if norm(step.direction) == 0:
        raise ValueError(
            "The step is zero, so there is no change to measure: no response of U has an "
            "advantage, and the optimizer has neither momentum nor decay."
        )
    return step


def with_control(
    config: MeasureConfig, policy: Policy, checkpoint: Path, step: Step
) -> tuple[Step, tuple[str, ...]]:
    """The step as training took it, where a step control corrected it and U is training's own.

    Args:
        config: What was asked.
        policy: The policy.
        checkpoint: Its folder.
        step: The optimizer's step on U.

    Returns:
        The step with the part "control", and a sentence; the step as it is where none was added.

    Raises:
        ValueError: If the record of what was added is missing.
    """
    record = checkpoint / NEXT_UPDATE
    control = read_control(checkpoint) if (record / "update.json").is_file() else None
    if control is None:
        return step, ()
    U_file = config.batch_config.U_file
    if U_file is None or Path(U_file).resolve() != (record / "rollouts.parquet").resolve():
        return step, (
            "Training corrected the step from this checkpoint by a control. U is another batch, so "
            "what is measured is the optimizer's step without a correction.",
        )
    own = {n: x.to(policy.device) for n, x in control.items()}
    return step.corrected(own), (
        "The step has a part that a control added in training. Attributions to sequences and "
        "tokens are of the optimizer's own step.",
    )
