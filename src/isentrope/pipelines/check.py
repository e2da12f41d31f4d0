"""`isentrope check`: can this checkpoint, sampler and scorer be measured?

Runs every check of `isentrope.checks` on the batches and settings a measurement would use, and
compares those settings with the ones the checkpoint says it was trained with.
"""

from __future__ import annotations

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
from isentrope.config.measure import MeasureConfig
from isentrope.pipelines.check_batches import check_batches
from isentrope.pipelines.precision_stages import at_precision
from isentrope.pipelines.prepare import normalising_length, update_step
from isentrope.pipelines.real_step import check_rounding
from isentrope.pipelines.replayable import model_obstacles, stale_batch, training_dropout
from isentrope.policy.language_model import Policy
from isentrope.progress import Progress
from isentrope.recording.contract import CONTRACT
from isentrope.rollouts import Rollouts
from isentrope.runs.as_trained import AsTrained, settle
from isentrope.runs.checkpoints import Subject
from isentrope.runs.study import require_inputs
from isentrope.training.saved_arguments import TRAINING_ARGS
from isentrope.update.objective import RECORDED, entropy_weights, token_weights
from isentrope.update.optimizer_state import OptimizerState, load_optimizer_state
from isentrope.vectors import Vector


def check(config: MeasureConfig, progress: Progress | None = None) -> dict[str, list[Finding]]:
    """Check every checkpoint of a configuration."""
    return {
        subject.name: check_subject(config, subject, progress or Progress())
        for subject in require_inputs(config)
    }


def check_subject(config: MeasureConfig, subject: Subject, progress: Progress) -> list[Finding]:
    """Check one checkpoint."""
    config, settled = settle(config, subject.path)
    subject = replace(subject, as_trained=settled)
    policy = subject.load(config)
    adapter = check_adapter(policy, subject.path, subject.optimizer)
    findings = [_settings(settled, policy, subject), adapter]
    batches = check_batches(config, policy, progress)
    findings.append(batches.finding)
    with at_precision(policy, config.precision.updating):
        findings.append(_sampler_of_U(config, policy, batches.U))
        direct = _without_records(config, batches.U)
        gradient = _objective_gradient(direct, policy, batches.U)
        findings.append(check_optimizer(policy, gradient, subject.optimizer, batches.rewarded))
        if (state := _readable_state(policy, subject)) is not None:
            findings.append(check_rates(state, subject.path))
            step = update_step(direct, policy, batches.U, subject.optimizer)
            findings.append(check_rounding(config, policy, subject, state, step))
    dropped = {}
    if "dropout" not in settled.ignored:
        dropped = training_dropout(policy.model, settled.arguments)
    with at_precision(policy, config.precision.measuring):
        findings += check_instrument(policy, batches.E, gradient, training_rates=dropped)
        if all(f.passed is not False for f in findings if f.name in (BATCH, OWN_LOGITS)):
            findings += check_sampler(policy, batches.E, gradient)
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


def _sampler_of_U(config: MeasureConfig, policy: Policy, U: Rollouts) -> Finding:
    name = "U is a draw of the policy"
    obstacles, notes = stale_batch(config, policy, U)
    if config.batch_config.U_file is None:
        return Finding(name, None, "U is drawn here")
    if U.sampler_logprobs is None:
        return Finding(name, None, "U has no log-probabilities of its sampler")
    for obstacle in obstacles:
        passed = None if obstacle.name in config.estimator.ignore_training_settings else False
        return Finding(name, passed, obstacle.words, "The step would be another than training's.")
    return Finding(name, True, notes[0] if notes else "its sampler is this policy to rounding")


def _readable_state(policy: Policy, subject: Subject) -> OptimizerState | None:
    """The optimizer's state; None where it cannot be read, which check_optimizer has said."""
    try:
        return load_optimizer_state(policy, subject.optimizer)
    except (ValueError, FileNotFoundError):
        return None


def _without_records(config: MeasureConfig, U: Rollouts) -> MeasureConfig:
    """The same with an objective that U can serve: the checks need any direction like a step's."""
    estimator = config.estimator
    if U.token_weights is not None:
        return config
    objective = "dapo" if estimator.objective == RECORDED else estimator.objective
    changed = estimator.model_copy(update={"objective": objective, "off_policy": False})
    return config.model_copy(update={"estimator": changed})


def _objective_gradient(config: MeasureConfig, policy: Policy, rollouts: Rollouts) -> Vector:
    length = normalising_length(config, rollouts)
    estimator, clip = config.estimator, config.estimator.clip_pair
    weights = token_weights(
        rollouts,
        estimator.objective,
        length,
        clip_high=clip[1] if clip else None,
        micro_batch=estimator.micro_batch,
    )
    return policy.weighted_gradient(
        rollouts, weights, entropy_weights(rollouts, estimator.objective)
    )
