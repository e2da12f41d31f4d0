"""What every result says of the checkpoint, its batches and its step."""

from __future__ import annotations

from typing import Any

from isentrope.config.estimator import EstimatorConfig
from isentrope.config.stages import PrecisionConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import norm
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
from isentrope.update.step import Step
from isentrope.verbs.batches import Batches, Sampler

_STAGES = ("measuring", "updating", "sampling")
_OF_STEP = ("learning_rate", "gradient_norm", "clip_factor", "matched_by")


def header_of(
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
        estimator=EstimatorRecord(estimator.functional, estimator.method, estimator.confidence),
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
