"""What every verb on a checkpoint starts from: the policy, E and U, and the optimizer's step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.attribution.gradients.options import GradientOptions
from isentrope.config.analysis import AnalysisConfig, EntropiesConfig, KernelConfig
from isentrope.config.as_trained import allowed, refuse
from isentrope.config.control import TrialConfig
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.config.stages import LoggingConfig
from isentrope.manifest import NOT_VERIFIED, verifying
from isentrope.pipelines.batches import Batches, Sampler
from isentrope.pipelines.header import header_of
from isentrope.pipelines.precision_stages import at_precision
from isentrope.pipelines.real_step import Rounding, real_step
from isentrope.pipelines.replayable import model_obstacles, stale_batch
from isentrope.policy.language_model import Policy
from isentrope.processes import all_ranks
from isentrope.progress import Clock, Progress
from isentrope.recording.next_update import NEXT_UPDATE, read_control
from isentrope.rollouts import Rollouts
from isentrope.runs.checkpoints import Subject
from isentrope.runs.header import Header
from isentrope.sharded_tensors import sharded_like
from isentrope.update.objective import RECORDED
from isentrope.update.off_policy import importance_ratios
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import Step, optimizer_step
from isentrope.vectors import Vector, norm, require_same_names

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
        sampler: Draws and rewards further batches.
        estimator: Which entropy, at which rates, by which estimator.
        analysis: What influence, noise and audit attribute.
        gradients: How the gradients of sequences are computed and held.
        kernel: Which blocks of the Fisher kernel, and what is looked at in them.
        trial: Which controls are tried.
        entropies: What a trainer logged, and how.
        logging: What the log of a measurement holds.
        where: How checkpoints are loaded.
        run_folder: The folder that the configuration names; None where it names none.
        along: Δθ/η by learning rate where training rounds the step; None where it is v.
    """

    subject: Subject
    policy: Policy
    batches: Batches
    step: Step
    header: Header
    clock: Clock
    sampler: Sampler
    estimator: EstimatorConfig
    analysis: AnalysisConfig
    gradients: GradientOptions
    kernel: KernelConfig
    trial: TrialConfig
    entropies: EntropiesConfig
    logging: LoggingConfig
    where: CheckpointConfig
    run_folder: Path | None = None
    along: Callable[[float], Vector] | None = None

    @property
    def rate(self) -> float:
        """The learning rate of interest."""
        return self.estimator.rate(self.step.learning_rate)


def prepare_checkpoint(
    config: MeasureConfig, subject: Subject, progress: Progress, clock: Clock
) -> Prepared:
    """Load a checkpoint, draw E and U, and compute the step."""
    estimator, data = config.estimator, config.batch_config
    with clock.stage("load"):
        policy = subject.load(config.checkpoint, config.sampling)
        policy.ranks = all_ranks()
        state = load_optimizer_state(policy, subject.optimizer)
        estimator.etas(state.learning_rate)  # refuses a rate of 0 before any work
        log.info("%s: optimizer %s matched by %s", subject.name, state.rule, state.matched_by)
    sampler = Sampler(
        policy, data, config.sampling, config.precision.sampling, progress, subject.path
    )
    with clock.stage("batches"):
        of_model = model_obstacles(policy, subject)
        refuse(of_model, estimator.ignore_training_settings, subject.name)
        batches = sampler.batches(estimator)
    with clock.stage("update"), at_precision(policy, config.precision.updating):
        stale, notes = stale_batch(policy, batches.U, estimator, drawn_here=data.U_file is None)
        refuse(stale, estimator.ignore_training_settings, subject.name)
        differences = allowed([*of_model, *stale], estimator.ignore_training_settings)
        unverified = () if verifying() else (NOT_VERIFIED,)
        warnings = (*unverified, *subject.as_trained.warnings, *differences, *notes)
        if estimator.off_policy:
            batches, clipped = _stale(sampler, batches, estimator)
            warnings += clipped
        step = update_step(sampler, batches.U, subject.optimizer, estimator)
        step, of_control = with_control(policy, subject.path, data.U_file, step)
        rounding = Rounding.of(
            policy, subject, state, master_weights=config.checkpoint.master_weights
        )
        real = real_step(subject, rounding, step, estimator)
        step = replace(real.step, warnings=(*warnings, *of_control, *real.step.warnings))
    precision = config.precision
    directory = config.output.directory
    return Prepared(
        subject=subject,
        policy=policy,
        batches=batches,
        step=step,
        header=header_of(subject, sampler, batches, step, real.facts, estimator, precision),
        clock=clock,
        sampler=sampler,
        estimator=estimator,
        analysis=config.analysis,
        gradients=GradientOptions(config.analysis.gradient_backend, config.fisher_kernel.held),
        kernel=config.fisher_kernel,
        trial=config.trial,
        entropies=config.entropies,
        logging=config.detailed_logging,
        where=config.checkpoint,
        run_folder=None if directory is None else Path(directory),
        along=real.along,
    )


def _stale(
    sampler: Sampler, batches: Batches, estimator: EstimatorConfig
) -> tuple[Batches, tuple[str, ...]]:
    """U with its tokens weighted by the ratio to the policy that drew them."""
    clip = estimator.clip_pair
    capped = estimator.objective == "cispo"
    ratios = importance_ratios(sampler.policy, batches.U, None if capped else clip)
    weighted = ratios.weighted(
        batches.U,
        estimator.objective,
        normalising_length(sampler, batches.U, estimator),
        cap=clip[1] if clip else None,
        micro_batch=estimator.micro_batch,
    )
    return replace(batches, U=weighted), ratios.warnings


def normalising_length(sampler: Sampler, U: Rollouts, estimator: EstimatorConfig) -> int:
    """The constant length L of Dr. GRPO, in tokens: as configured, or where U's sampler cut."""
    return estimator.max_response_length or sampler.longest(U)


def update_step(sampler: Sampler, U: Rollouts, optimizer: Path, estimator: EstimatorConfig) -> Step:
    """The optimizer's step on U.

    Args:
        sampler: Has the policy, and knows how long responses may be.
        U: The update batch.
        optimizer: The optimizer's file.
        estimator: The objective, and its settings.

    Returns:
        The step.

    Raises:
        ValueError: If it is zero.
    """
    step = optimizer_step(
        sampler.policy,
        U,
        optimizer,
        objective=RECORDED if estimator.off_policy else estimator.objective,
        max_response_length=normalising_length(sampler, U, estimator),
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
    policy: Policy, checkpoint: Path, U_file: str | None, step: Step
) -> tuple[Step, tuple[str, ...]]:
    """The step as training took it, where a step control corrected it and U is training's own.

    Args:
        policy: The policy.
        checkpoint: Its folder.
        U_file: The file of U; None where it was drawn here.
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
    if U_file is None or Path(U_file).resolve() != (record / "rollouts.parquet").resolve():
        return step, (
            "Training corrected the step from this checkpoint by a control. U is another batch, so "
            "what is measured is the optimizer's step without a correction.",
        )
    theta = policy.theta
    require_same_names(control, theta)
    own = {n: sharded_like(x, theta[n]) for n, x in control.items()}
    return step.corrected(own), (
        "The step has a part that a control added in training. Attributions to sequences and "
        "tokens are of the optimizer's own step.",
    )
