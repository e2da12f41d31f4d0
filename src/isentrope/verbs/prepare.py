"""What every verb on a checkpoint starts from: the policy, E and U, and the optimizer's step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.config.analysis import AnalysisConfig, EntropiesConfig, KernelConfig, TrialConfig
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.config.stages import LoggingConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.results.header import Header
from isentrope.runs.checkpoints import Subject
from isentrope.system.processes import all_ranks
from isentrope.system.progress import Clock, Progress
from isentrope.trainers.as_trained import refuse
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.rounding import RoundedStep
from isentrope.update.step import Step
from isentrope.verbs.batches import Sampler
from isentrope.verbs.check_batches import model_obstacles
from isentrope.verbs.header import header_of
from isentrope.verbs.precision_stages import at_precision
from isentrope.verbs.real_step import OptimizerOf
from isentrope.verbs.training_step import training_step

log = logging.getLogger("isentrope")


@dataclass(frozen=True)
class Prepared:
    """A checkpoint ready to be looked at.

    Attributes:
        subject: The checkpoint.
        policy: In float32, to be set to a precision for each stage (`at_precision`).
        E: What entropy is measured on.
        U: What the step is computed from, with advantages.
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
        along: The step by learning rate where training rounds it; None where it is v.
    """

    subject: Subject
    policy: Policy
    E: Rollouts
    U: Rollouts
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
    along: Callable[[float], RoundedStep] | None = None

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
        of = OptimizerOf(policy, subject, state, config.checkpoint.master_weights)
        longest, drawn_here = sampler.longest(batches.U), data.U_file is None
        U, real = training_step(of, batches.U, estimator, longest, drawn_here=drawn_here)
        step = real.step
    precision, directory = config.precision, config.output.directory
    return Prepared(
        subject=subject,
        policy=policy,
        E=batches.E,
        U=U,
        step=step,
        header=header_of(
            subject, sampler, replace(batches, U=U), step, real.facts, estimator, precision
        ),
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
