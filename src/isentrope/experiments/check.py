"""`isentrope check`: is this checkpoint, sampler and scorer fit to be measured?

Runs every check of `isentrope.checks` on the batches and settings a measurement would use, and
compares those settings with the ones the checkpoint says it was trained with.
"""

from __future__ import annotations

import json
from pathlib import Path

from isentrope.checks import (
    Finding,
    check_adapter,
    check_instrument,
    check_optimizer,
    check_sampler,
)
from isentrope.checks.instrument import BATCH, OWN_LOGITS
from isentrope.experiments.batches import make_batches
from isentrope.experiments.checkpoints import Subject
from isentrope.experiments.config import MeasureConfig
from isentrope.experiments.precision_stages import at_precision
from isentrope.experiments.preparation import normalising_length
from isentrope.experiments.progress import Progress
from isentrope.experiments.study import require_inputs
from isentrope.policy.language_model import Policy
from isentrope.rollouts import Rollouts
from isentrope.training.contract import CONTRACT
from isentrope.update.objective import token_weights
from isentrope.vectors import Vector

TRAINER_STATE = "trainer_state.json"


def check(config: MeasureConfig, progress: Progress | None = None) -> dict[str, list[Finding]]:
    """Check every checkpoint of a configuration.

    Args:
        config: What would be measured.
        progress: Where to say how far it is.

    Returns:
        Findings by the checkpoint's name.
    """
    return {
        subject.name: check_subject(config, subject, progress or Progress())
        for subject in require_inputs(config)
    }


def check_subject(config: MeasureConfig, subject: Subject, progress: Progress) -> list[Finding]:
    """Check one checkpoint.

    Args:
        config: What would be measured.
        subject: The checkpoint.
        progress: Where to say how far it is.

    Returns:
        One finding a check.
    """
    policy = subject.load(config)
    findings = [check_contract(config, subject.path), check_adapter(policy, subject.path)]
    batches = make_batches(config, policy, progress)
    with at_precision(policy, config.precision.updating):
        gradient = _objective_gradient(config, policy, batches.U)
    findings.append(check_optimizer(policy, gradient, subject.optimizer))
    with at_precision(policy, config.precision.measuring):
        findings += check_instrument(policy, batches.E, gradient)
        if all(f.passed is not False for f in findings if f.name in (BATCH, OWN_LOGITS)):
            findings += check_sampler(policy, batches.E, gradient)
    return findings


def check_contract(config: MeasureConfig, checkpoint: Path) -> Finding:
    """Compare a configuration with what the checkpoint says it was trained with.

    Args:
        config: What would be measured.
        checkpoint: Folder; its `contract.json`, or else its `trainer_state.json`, may name the
            settings of training.

    Returns:
        The finding; not checked where the checkpoint says nothing.
    """
    name, path = "settings of training", checkpoint / CONTRACT
    path = path if path.exists() else checkpoint / TRAINER_STATE
    trained = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    ours = {
        "temperature": ("sampling.temperature", config.sampling.temperature),
        "max_new_tokens": ("sampling.max_new_tokens", config.sampling.max_new_tokens),
        "max_grad_norm": ("estimator.max_grad_norm", config.estimator.max_grad_norm),
        "objective": ("estimator.objective", config.estimator.objective),
        "group_size": ("batch_config.G", config.batch_config.G),
    }
    known = [key for key in ours if key in trained]
    if not known:
        return Finding(name, None, f"{path.name} does not say how the checkpoint was trained")
    unlike = [
        f"{ours[key][0]} is {ours[key][1]!r}, training had {trained[key]!r}"
        for key in known
        if trained[key] != ours[key][1]
    ]
    if unlike:
        return Finding(
            name,
            False,
            "; ".join(unlike),
            "The step would not be the one that training takes: set these keys as in training.",
        )
    return Finding(name, True, f"as in training: {', '.join(known)}")


def _objective_gradient(config: MeasureConfig, policy: Policy, rollouts: Rollouts) -> Vector:
    length = normalising_length(config, rollouts)
    weights = token_weights(rollouts, config.estimator.objective, length)
    return policy.weighted_gradient(rollouts, weights)
