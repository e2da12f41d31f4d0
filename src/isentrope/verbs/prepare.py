"""What every verb on a checkpoint starts from: the policy, E and U, and the optimizer's step.

And the header, which says of all four in every result.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.influence.contributions import Influence
from isentrope.checkpoint.checkpoint import Subject
from isentrope.checkpoint.infer.as_trained import refuse
from isentrope.config.analysis import AnalysisConfig
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import MeasureConfig
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
from isentrope.run.folder import versions
from isentrope.sampling.batches import UpdateBatchReport
from isentrope.system.manifest import verify
from isentrope.system.progress import Clock
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.rounding import RoundedStep
from isentrope.update.step import Step
from isentrope.verbs.batches import Sampler, at_precision
from isentrope.verbs.real_step import OptimizerOf, RealStep
from isentrope.verbs.training_step import model_obstacles, training_step

log = logging.getLogger("isentrope")


@dataclass(frozen=True)
class Prepared:
    """A checkpoint ready to be looked at.

    Attributes:
        config: The settings in force.
        subject: The checkpoint.
        policy: In float32, to be set to a precision for each stage (`at_precision`).
        E: What entropy is measured on.
        U: What the step is computed from, with advantages.
        step: The optimizer's step on U.
        header: What results say of all that.
        clock: Counts the time of each stage.
        sampler: Draws and rewards further batches.
        along: The step by learning rate where training rounds it; None where it is v.
        attributed: Influences of tokens that a verb has computed, for another that looks at the
            same checkpoint; None where there is no other.
    """

    config: MeasureConfig
    subject: Subject
    policy: Policy
    E: Rollouts
    U: Rollouts
    step: Step
    header: Header
    clock: Clock
    sampler: Sampler
    along: Callable[[float], RoundedStep] | None = None
    attributed: list[Influence] | None = None

    @property
    def estimator(self) -> EstimatorConfig:
        """Which entropy, at which rates, by which estimator."""
        return self.config.estimator

    @property
    def analysis(self) -> AnalysisConfig:
        """What influence, noise and audit attribute."""
        return self.config.analysis

    @property
    def gradients(self) -> GradientOptions:
        """How the gradients of sequences are computed and held."""
        return GradientOptions(self.analysis.gradient_backend, self.config.fisher_kernel.held)

    @property
    def rate(self) -> float:
        """The learning rate of interest."""
        return self.estimator.rate(self.step.learning_rate)


def prepare_checkpoint(
    config: MeasureConfig, subject: Subject, clock: Clock, policy: Policy | None = None
) -> Prepared:
    """Load a checkpoint, if its policy is not there, draw E and U, and compute the step."""
    estimator = config.estimator
    with clock.stage("load"):
        policy = policy or subject.load(config.checkpoint, config.sampling)
        policy.share_work()
        state = load_optimizer_state(policy, subject.optimizer)
        estimator.etas(state.learning_rate)  # refuses a rate of 0 before any work
        log.debug("%s: optimizer %s matched by %s", subject.name, state.rule, state.matched_by)
    sampler = Sampler(policy, config, subject.path)
    with clock.stage("batches"):
        of_model = model_obstacles(policy, subject)
        refuse(of_model, estimator.ignore_training_settings, subject.name)
        E, U, report = sampler.batches()
    with clock.stage("update"), at_precision(policy, config.precision.updating):
        of, drawn_here = OptimizerOf(policy, subject, state, config), sampler.data.U_file is None
        real = training_step(of, U, sampler.longest(U), drawn_here=drawn_here)
    sizes = {*U.prompt_index.unique(return_counts=True)[1].tolist()}
    batches = BatchesRecord(
        B_E=len(E),
        B_U=U.n_prompts,
        G=sizes.pop() if len(sizes) == 1 else None,
        E=_record(E),
        U=_record(U, report),
    )
    return Prepared(
        config=config,
        subject=subject,
        policy=policy,
        E=E,
        U=real.U,
        step=real.step,
        header=_header(subject, sampler, batches, real),
        clock=clock,
        sampler=sampler,
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


def _header(subject: Subject, sampler: Sampler, batches: BatchesRecord, real: RealStep) -> Header:
    """The header of the results of one checkpoint."""
    settled, policy, step = subject.as_trained, sampler.policy, real.step
    estimator, precision = sampler.config.estimator, sampler.config.precision
    return Header(
        policy=PolicyRecord(
            name=subject.name,
            checkpoint=str(subject.path),
            optimizer=str(subject.optimizer),
            trainable_tensors=len(policy.names),
            trainable_parameters=sum(p.numel() for p in policy.theta.values()),
            temperature=policy.temperature,
            device=str(policy.device),
            precision={of: getattr(precision, of) for of in ("measuring", "updating", "sampling")},
            manifest_sha256=verify(subject.path),
        ),
        batches=batches,
        estimator=EstimatorRecord(
            estimator.functional, estimator.options.method, estimator.confidence
        ),
        settings=SettingsRecord(settled.origins, settled.obstacles, settled.ignored),
        step=StepRecord(
            objective=estimator.objective,
            learning_rate=step.learning_rate,
            gradient_norm=step.gradient_norm,
            clip_factor=step.clip_factor,
            direction_norm=norm(step.direction),
            matched_by=step.matched_by,
            **real.facts,
        ),
        provenance=Provenance(
            **versions(), seeds=sampler.data.seeds, made_from=dict(subject.made_from)
        ),
    )


def _record(rollouts: Rollouts, report: UpdateBatchReport | None = None) -> BatchRecord:
    """Counts, lengths in tokens and, where they are known, rewards; and what was drawn."""
    lengths, rewards = rollouts.token_counts.double(), rollouts.rewards
    statistics = {
        "sequences": len(rollouts),
        "prompt_draws": rollouts.n_prompts,
        "distinct_prompts": len({tuple(ids.tolist()) for ids in rollouts.prompt_ids}),
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
        "mean_reward": None if rewards is None else float(rewards.mean()),
    }
    return BatchRecord(**statistics | ({} if report is None else vars(report)))
