"""What every verb on a checkpoint starts from: the policy, E and U, and the optimizer's step.

The header of every result describes these four.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.influence.contributions import Influence
from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.in_force import SettingsInForce, refuse
from isentrope.checkpoint.limits import model_obstacles, require_rate
from isentrope.checkpoint.step import CheckpointStep, take_step
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
    StepSummary,
)
from isentrope.run.folder import versions
from isentrope.sampling.batches import UpdateBatchReport
from isentrope.system.log import log
from isentrope.system.manifest import verify
from isentrope.system.progress import Clock
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.verbs.batches import Sampler, at_precision


@dataclass(frozen=True)
class Prepared:
    """What every verb starts from: the checkpoint, the settings, the batches and the step.

    Attributes:
        checkpoint: The checkpoint.
        settings: The settings in force.
        policy: In float32, to be set to a precision for each stage (`at_precision`).
        E: What entropy is measured on.
        U: What the step is computed from, with advantages.
        step: The optimizer's step on U.
        header: What results say of all that.
        clock: Counts the time of each stage.
        sampler: Draws and rewards further batches.
        attributed: Influences of tokens that a verb has computed, for another that looks at the
            same checkpoint; None where there is no other.
    """

    checkpoint: StoredCheckpoint
    settings: SettingsInForce
    policy: Policy
    E: Rollouts
    U: Rollouts
    step: CheckpointStep
    header: Header
    clock: Clock
    sampler: Sampler
    attributed: list[Influence] | None = None

    @property
    def config(self) -> MeasureConfig:
        """The configuration in force."""
        return self.settings.config

    @property
    def gradients(self) -> GradientOptions:
        """How the gradients of sequences are computed and held."""
        backend = self.config.analysis.gradient_backend
        return GradientOptions(backend, self.config.fisher_kernel.held)

    @property
    def rate(self) -> float:
        """The learning rate of interest."""
        return self.config.estimator.rate(self.step.learning_rate)


def prepare_checkpoint(
    checkpoint: StoredCheckpoint,
    settings: SettingsInForce,
    clock: Clock,
    policy: Policy | None = None,
    batches: tuple[Rollouts, Rollouts] | None = None,
) -> Prepared:
    """Load a checkpoint and draw E and U, if they are not there, and compute the step."""
    config = settings.config
    estimator = config.estimator
    with clock.stage("load"):
        policy = policy or checkpoint.load(config.checkpoint, config.sampling)
        policy.share_work()
        state = load_optimizer_state(policy, checkpoint.optimizer)
        require_rate(checkpoint, estimator, state.learning_rate)
        log.debug("%s: optimizer %s matched by %s", checkpoint.name, state.rule, state.matched_by)
    sampler = Sampler(policy, config, checkpoint.path)
    with clock.stage("batches"):
        refuse(model_obstacles(policy, checkpoint), settings.ignored, checkpoint.name)
        report = None
        if batches is None:
            E, U, report = sampler.batches()
        else:
            E, U = sampler.accept(*batches)
    with clock.stage("update"), at_precision(policy, config.precision.updating):
        step = take_step(
            checkpoint,
            policy,
            state,
            settings,
            U,
            sampler.longest(U),
            drawn_here=batches is None and sampler.data.U_file is None,
        )
    sizes = {*U.prompt_index.unique(return_counts=True)[1].tolist()}
    record = BatchesRecord(
        B_E=len(E),
        B_U=U.n_prompts,
        G=sizes.pop() if len(sizes) == 1 else None,
        E=_describe_batch(E),
        U=_describe_batch(U, report),
    )
    return Prepared(
        checkpoint=checkpoint,
        settings=settings,
        policy=policy,
        E=E,
        U=step.rollouts or U,
        step=step,
        header=_make_header(checkpoint, settings, sampler, record, step),
        clock=clock,
        sampler=sampler,
    )


Prepare = Callable[[StoredCheckpoint, SettingsInForce, Clock], Prepared]


class PreparedOnce:
    """A `Prepare` for several verbs of one configuration, which share what they start from."""

    def __init__(self) -> None:
        self._prepared: dict[Path, tuple[Prepared, dict[str, float]]] = {}

    def __call__(
        self, checkpoint: StoredCheckpoint, settings: SettingsInForce, clock: Clock
    ) -> Prepared:
        """The checkpoint, with the seconds of its first preparation on every clock."""
        if checkpoint.path not in self._prepared:
            ready = prepare_checkpoint(checkpoint, settings, clock)
            self._prepared[checkpoint.path] = replace(ready, attributed=[]), dict(clock.seconds)
        ready, seconds = self._prepared[checkpoint.path]
        clock.seconds.update(seconds)
        return replace(ready, clock=clock)


def _make_header(
    checkpoint: StoredCheckpoint,
    settings: SettingsInForce,
    sampler: Sampler,
    batches: BatchesRecord,
    step: CheckpointStep,
) -> Header:
    """The header of the results of one checkpoint."""
    policy = sampler.policy
    estimator = settings.config.estimator
    precision = settings.config.precision
    return Header(
        policy=PolicyRecord(
            name=checkpoint.name,
            checkpoint=str(checkpoint.path),
            optimizer=str(checkpoint.optimizer),
            trainable_tensors=len(policy.names),
            trainable_parameters=sum(p.numel() for p in policy.theta.values()),
            temperature=policy.temperature,
            device=str(policy.device),
            precision={
                "measuring": precision.measuring,
                "updating": precision.updating,
                "sampling": precision.sampling,
            },
            manifest_sha256=verify(checkpoint.path),
        ),
        batches=batches,
        estimator=EstimatorRecord(
            estimator.functional, estimator.options.method, estimator.confidence
        ),
        settings=SettingsRecord(
            dict(settings.origins),
            settings.obstacles,
            settings.ignored,
            settings.prompts_per_step,
        ),
        step=StepSummary(
            objective=estimator.objective,
            learning_rate=step.learning_rate,
            gradient_norm=step.gradient_norm,
            clip_factor=step.clip_factor,
            direction_norm=norm(step.direction),
            matched_by=step.matched_by,
            param_groups=step.param_groups,
            order_confirmed=step.order_confirmed,
            rounding=step.rounding,
        ),
        provenance=Provenance(
            **versions(), seeds=sampler.data.seeds, made_from=dict(settings.made_from)
        ),
    )


def _describe_batch(rollouts: Rollouts, report: UpdateBatchReport | None = None) -> BatchRecord:
    """Counts, lengths in tokens and, where they are known, rewards; and what was drawn."""
    lengths = rollouts.token_counts.double()
    rewards = rollouts.rewards
    statistics = {
        "sequences": len(rollouts),
        "prompt_draws": rollouts.n_prompts,
        "distinct_prompts": len({tuple(ids.tolist()) for ids in rollouts.prompt_ids}),
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
        "mean_reward": None if rewards is None else float(rewards.nanmean()),
        "unscored": None if rewards is None else int(rewards.isnan().sum()) or None,
    }
    return BatchRecord(**statistics | ({} if report is None else vars(report)))
