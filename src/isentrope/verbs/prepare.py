"""What every verb on a checkpoint starts from: the policy, E and U, and the optimizer's step.

And the header, which says of all four in every result.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.influence.contributions import Influence
from isentrope.config.analysis import AnalysisConfig, EntropiesConfig, KernelConfig, TrialConfig
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import CheckpointConfig, MeasureConfig
from isentrope.config.stages import LoggingConfig, PrecisionConfig
from isentrope.models.precision import Precision
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import norm
from isentrope.policy.language_model import Policy
from isentrope.results.header import (
    BatchesRecord,
    BatchRecord,
    EstimatorRecord,
    Header,
    PolicyRecord,
    Provenance,
    SettingsRecord,
    StepRecord,
)
from isentrope.runs.checkpoints import Subject
from isentrope.runs.folder import versions
from isentrope.system.manifest import verify
from isentrope.system.processes import all_ranks
from isentrope.system.progress import Clock
from isentrope.trainers.as_trained import refuse
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.rounding import RoundedStep
from isentrope.update.step import Step
from isentrope.verbs.batches import Batches, Sampler
from isentrope.verbs.check_batches import model_obstacles
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
        attributed: Influences of tokens that a verb has computed, for another that looks at the
            same checkpoint; None where there is no other.
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
    attributed: list[Influence] | None = None

    @property
    def rate(self) -> float:
        """The learning rate of interest."""
        return self.estimator.rate(self.step.learning_rate)

    @property
    def updating(self) -> Precision:
        """Precision of the step's gradient."""
        return self.header.policy.precision["updating"]


def prepare_checkpoint(config: MeasureConfig, subject: Subject, clock: Clock) -> Prepared:
    """Load a checkpoint, draw E and U, and compute the step."""
    estimator, data = config.estimator, config.batch_config
    with clock.stage("load"):
        policy = subject.load(config.checkpoint, config.sampling)
        policy.ranks = all_ranks()
        state = load_optimizer_state(policy, subject.optimizer)
        estimator.etas(state.learning_rate)  # refuses a rate of 0 before any work
        log.debug("%s: optimizer %s matched by %s", subject.name, state.rule, state.matched_by)
    sampler = Sampler(policy, data, config.sampling, config.precision.sampling, subject.path)
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
        header=_header(
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


Prepare = Callable[[MeasureConfig, Subject, Clock], Prepared]


class PreparedOnce:
    """A `Prepare` for several verbs of one configuration, which share what they start from."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[Prepared, dict[str, float]]] = {}

    def __call__(self, config: MeasureConfig, subject: Subject, clock: Clock) -> Prepared:
        """The checkpoint, with the seconds of its first preparation on every clock."""
        if subject.path not in self._made:
            ready = prepare_checkpoint(config, subject, clock)
            self._made[subject.path] = replace(ready, attributed=[]), dict(clock.seconds)
        ready, seconds = self._made[subject.path]
        clock.seconds.update(seconds)
        return replace(ready, clock=clock)


_STAGES = ("measuring", "updating", "sampling")
_OF_STEP = ("learning_rate", "gradient_norm", "clip_factor", "matched_by")


def _header(
    subject: Subject,
    sampler: Sampler,
    batches: Batches,
    step: Step,
    facts: dict[str, Any],
    estimator: EstimatorConfig,
    precision: PrecisionConfig,
) -> Header:
    """The header of the results of one checkpoint."""
    settled, policy = subject.as_trained, sampler.policy
    return Header(
        policy=PolicyRecord(
            name=subject.name,
            checkpoint=str(subject.path),
            optimizer=str(subject.optimizer),
            trainable_tensors=len(policy.names),
            trainable_parameters=sum(p.numel() for p in policy.theta.values()),
            temperature=policy.temperature,
            device=str(policy.device),
            precision={name: getattr(precision, name) for name in _STAGES},
            manifest_sha256=verify(subject.path),
        ),
        batches=_batches(batches),
        estimator=EstimatorRecord(
            estimator.functional, estimator.options.method, estimator.confidence
        ),
        settings=SettingsRecord(settled.origins, settled.obstacles, settled.ignored),
        step=StepRecord(
            objective=estimator.objective,
            direction_norm=norm(step.direction),
            **{name: getattr(step, name) for name in _OF_STEP},
            **facts,
        ),
        provenance=Provenance(
            **versions(), seeds=sampler.data.seeds, made_from=dict(subject.made_from)
        ),
    )


def _batches(batches: Batches) -> BatchesRecord:
    groups = batches.U.prompt_index.unique(return_counts=True)[1]
    report = batches.report
    drawn: dict[str, Any] = {} if report is None else dict(vars(report))
    if drawn and drawn["entropy_drawn"] is None:
        drawn["entropy_drawn"] = float("nan")
    return BatchesRecord(
        B_E=len(batches.E),
        B_U=batches.U.n_prompts,
        G=int(groups[0]) if len(groups.unique()) == 1 else None,
        E=BatchRecord(**_statistics(batches.E)),
        U=BatchRecord(**_statistics(batches.U) | drawn),
    )


def _statistics(rollouts: Rollouts) -> dict[str, Any]:
    """Counts, lengths in tokens and, where they are known, rewards."""
    lengths = rollouts.token_counts.double()
    rewards = rollouts.rewards
    return {
        "sequences": len(rollouts),
        "prompt_draws": rollouts.n_prompts,
        "distinct_prompts": len({tuple(ids.tolist()) for ids in rollouts.prompt_ids}),
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
        "mean_reward": None if rewards is None else float(rewards.mean()),
    }
