"""`isentrope check`: can this checkpoint, sampler and scorer be measured?

Runs every check of `isentrope.checks` on the batches and settings a measurement would use, and
compares those settings with the ones the checkpoint says it was trained with.
"""

from dataclasses import replace

from isentrope.checks import (
    Finding,
    check_adapter,
    check_instrument,
    check_optimizer,
    check_rates,
    check_sampler,
)
from isentrope.checks.instrument import BATCH, OWN_LOGITS
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import MeasureConfig
from isentrope.config.stages import PrecisionConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.runs.checkpoints import Subject
from isentrope.runs.folder import require_writable
from isentrope.runs.one_study import other_base
from isentrope.runs.origin import checkpoint_digests
from isentrope.runs.study import require_inputs
from isentrope.system.checkpoint_folder import CONTRACT
from isentrope.system.manifest import verification
from isentrope.system.processes import all_ranks, join_processes
from isentrope.trainers.arguments import TRAINING_ARGS
from isentrope.trainers.as_trained import AsTrained
from isentrope.update.objective import RECORDED, entropy_weights, token_weights
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.verbs.batches import Sampler
from isentrope.verbs.check_batches import (
    check_batches,
    model_obstacles,
    stale_batch,
    training_dropout,
    unlike_advantages,
)
from isentrope.verbs.precision_stages import at_precision
from isentrope.verbs.real_step import OptimizerOf, check_rounding
from isentrope.verbs.training_step import update_step

FEW = 32
"""Responses that show what the scorer does; the tests of the sampler need them all."""


def check(config: MeasureConfig) -> dict[str, list[Finding]]:
    """Check every checkpoint of a configuration."""
    join_processes()
    findings = {}
    if config.output.directory is not None:
        require_writable(config.output.directory, "--out (output.directory)")
    with verification(config.checkpoint.verify):
        for subject in require_inputs(config):
            alone, settled = config.as_trained(subject.path)
            where = alone.checkpoint
            here = checkpoint_digests(subject.path, where.base_model, allow_hub=where.allow_hub)
            obstacles = (*settled.obstacles, *other_base(subject.path, here))
            settled = replace(settled, obstacles=obstacles)
            known = replace(subject, as_trained=settled)
            policy = known.load(alone.checkpoint, alone.sampling)
            policy.ranks = all_ranks()
            sampler = Sampler(
                policy,
                alone.batch_config,
                alone.sampling,
                alone.precision.sampling,
                subject.path,
            )
            findings[subject.name] = check_subject(
                known,
                sampler,
                alone.estimator,
                alone.precision,
                master_weights=alone.checkpoint.master_weights,
            )
    return findings


def check_subject(
    subject: Subject,
    sampler: Sampler,
    estimator: EstimatorConfig,
    precision: PrecisionConfig,
    *,
    master_weights: bool,
) -> list[Finding]:
    """Check one checkpoint."""
    policy, settled = sampler.policy, subject.as_trained
    adapter = check_adapter(policy, subject.path, subject.optimizer)
    findings = [_settings(settled, policy, subject), adapter]
    E, U, rewarded = check_batches(sampler, estimator)
    findings.append(rewarded)
    with at_precision(policy, precision.updating):
        findings += _advantages_of_U(sampler, U, subject, estimator)
        findings.append(_sampler_of_U(sampler, U, estimator))
        direct, more = _without_records(estimator, U), list[Finding]()
        try:
            state = load_optimizer_state(policy, subject.optimizer)
        except (ValueError, FileNotFoundError):  # check_optimizer says why
            gradient = _objective_gradient(sampler, U, direct)
        else:
            _, step = update_step(policy, U, state, direct, sampler.longest(U))
            gradient = {name: -x for name, x in step.loss_gradient.items()}
            of = OptimizerOf(policy, subject, state, master_weights)
            more = [check_rates(state, subject.path), check_rounding(of, step, estimator)]
        findings.append(check_optimizer(policy, gradient, subject.optimizer, bool(rewarded.passed)))
        findings += more
    dropped = {}
    if "dropout" not in settled.ignored:
        dropped = training_dropout(policy.model, settled.arguments)
    with at_precision(policy, precision.measuring):
        few = E.select(range(min(FEW, len(E))))
        findings += check_instrument(policy, few, gradient, training_rates=dropped)
        if all(f.passed is not False for f in findings if f.name in (BATCH, OWN_LOGITS)):
            findings += check_sampler(policy, E, gradient)
    return findings


def _settings(settled: AsTrained, policy: Policy, subject: Subject) -> Finding:
    """Compare a configuration with what the checkpoint says it was trained with."""
    name = "settings of training"
    of_model = [o for o in model_obstacles(policy, subject) if o.name != "dropout"]
    unlike = [o for o in (*settled.obstacles, *of_model) if o.name not in settled.ignored]
    if unlike:
        return Finding(
            name,
            False,
            "; ".join(o.words for o in unlike),
            "The step would not be the one that training takes: set these keys as in training, or "
            "leave them out.",
        )
    known = [key for key, origin in settled.origins.items() if origin.training is not None]
    if not known and not settled.filled:
        return Finding(name, None, f"no {CONTRACT} and no {TRAINING_ARGS} say how it was trained")
    ignored = f"; ignored: {', '.join(settled.ignored)}" if settled.ignored else ""
    return Finding(name, True, f"as in training: {', '.join(known)}{ignored}")


def _sampler_of_U(sampler: Sampler, U: Rollouts, estimator: EstimatorConfig) -> Finding:
    name = "U is a draw of the policy"
    drawn_here = sampler.data.U_file is None
    obstacles, notes = stale_batch(sampler.policy, U, estimator, drawn_here=drawn_here)
    if drawn_here:
        return Finding(name, None, "U is drawn here")
    if U.sampler_logprobs is None:
        return Finding(name, None, "U has no log-probabilities of its sampler")
    for obstacle in obstacles:
        passed = None if obstacle.name in estimator.ignore_training_settings else False
        return Finding(name, passed, obstacle.words, "The step would be another than training's.")
    return Finding(name, True, notes[0] if notes else "its sampler is this policy to rounding")


def _advantages_of_U(
    sampler: Sampler, U: Rollouts, subject: Subject, estimator: EstimatorConfig
) -> list[Finding]:
    """Advantages of a batch from a file by another rule than training's; none where they fit."""
    unlike = [] if sampler.data.U_file is None else unlike_advantages(U, subject.as_trained)
    ignored = {"estimator.advantages"} & {*estimator.ignore_training_settings}
    advice = "The step would be another than training's."
    return [
        Finding("advantages of U", None if ignored else False, obstacle.words, advice)
        for obstacle in unlike
    ]


def _without_records(estimator: EstimatorConfig, U: Rollouts) -> EstimatorConfig:
    """The same with an objective that U can serve: the checks need any direction like a step's."""
    if U.token_weights is not None:
        return estimator
    objective = "dapo" if estimator.objective == RECORDED else estimator.objective
    return estimator.model_copy(update={"objective": objective, "off_policy": False})


def _objective_gradient(sampler: Sampler, U: Rollouts, estimator: EstimatorConfig) -> Vector:
    weights = token_weights(U, estimator.objective, **estimator.weighting(sampler.longest(U)))
    return weighted_gradient(sampler.policy, U, weights, entropy_weights(U, estimator.objective))
