"""`isentrope influence`: which sequences and tokens of U moved the entropy, and what they earned.

results.json      budget (momentum, decay, gradient, total ± se), closure, and what it was measured
                  on; reliability, listed_share, degrees_of_freedom; shares, on other responses
sequences.parquet, tokens.parquet     one row per sequence or token, as measured
"""

from __future__ import annotations

import torch

from isentrope.attribution.influence.contributions import (
    Attribution,
    Influence,
    sequence_table,
    token_table,
)
from isentrope.attribution.influence.influence import influence
from isentrope.attribution.influence.shares import influence_shares
from isentrope.config.measure import MeasureConfig
from isentrope.estimators.functional import Method
from isentrope.pipelines.precision_stages import at_precision
from isentrope.pipelines.prepare import Prepared
from isentrope.progress import Progress
from isentrope.rollouts import Rollouts
from isentrope.runs.attribution_records import Budget, SharesRecord
from isentrope.runs.results import InfluenceResult
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import Prompt

LEAST_RELIABLE = 0.8
"""Rank correlation with an infinite E below which a ranking is said to be mostly noise."""


def find_influence(config: MeasureConfig, ready: Prepared, progress: Progress) -> InfluenceResult:
    """Attribute the step of a checkpoint."""
    asked, E = config.analysis, ready.batches.E
    if asked.overlap == "u_statistic":
        E = ready.batches.U
    table = influence_of(config, ready, progress, tokens=asked.tokens, reward=asked.reward)
    tables = {"sequences": sequence_table(table)}
    if asked.tokens:
        tables["tokens"] = token_table(table, ready.policy.tokenizer)
    return InfluenceResult(
        **vars(ready.header),
        how=table.how,
        groups=table.groups,
        degrees_of_freedom=table.groups - 1,
        measured_on=f"the {len(E)} responses of E to {E.n_prompts} prompts",
        entropy=_budget(table.entropy),
        reward=None if table.reward is None else _budget(table.reward),
        reliability=dict(table.reliability),
        listed_share=dict(table.listed_share),
        shares=shares_of(config, ready, progress) if asked.share_responses else None,
        warnings=tuple(_warnings(table)),
        tables=tables,
    )


def influence_of(
    config: MeasureConfig, ready: Prepared, progress: Progress, *, tokens: bool, reward: bool
) -> Influence:
    """The influence that a configuration asks for."""
    analysis, E, U = config.analysis, ready.batches.E, ready.batches.U
    one_batch = analysis.overlap == "u_statistic"
    rewarding = rewarded(config, ready, E) if reward else None
    with progress.bar("attributing") as report:
        return influence(
            ready.policy,
            U.with_columns(rewards=None) if one_batch else E.with_columns(rewards=None),
            U,
            ready.step,
            functional=config.estimator.functional,
            method=weighted_method(config),
            tokens=tokens,
            reward=rewarding,
            groups=analysis.groups,
            overlap=analysis.overlap,
            confidence=config.estimator.confidence,
            gradient_backend=analysis.gradient_backend,
            progress=report,
        )


def rewarded(config: MeasureConfig, ready: Prepared, E: Rollouts) -> Rollouts:
    """E with the rewards of its task, where it has none of its own.

    Args:
        config: Names the task.
        ready: For its tokenizer.
        E: The evaluation batch.

    Returns:
        E with rewards.

    Raises:
        ValueError: If the task cannot reward it.
    """
    if E.rewards is not None:
        return E
    batch = config.batch_config
    task = batch.load_task(
        batch.dataset_name, batch.E_split, batch.dataset_path, ready.policy.tokenizer
    )
    try:
        return with_rewards(E, task)
    except ValueError as error:
        raise ValueError(
            f"E cannot be rewarded ({error}): set analysis.reward=false to attribute entropy alone."
        ) from error


def weighted_method(config: MeasureConfig) -> Method:
    """The weighted estimator in force; "resampled" has no gradient of its own."""
    return "prefix" if config.estimator.method == "resampled" else config.estimator.method


def fresh_responses(
    config: MeasureConfig, ready: Prepared, progress: Progress, count: int
) -> Rollouts:
    """Fresh responses to U's prompts, each prompt once however often U drew it.

    Args:
        config: Sampling settings and seeds.
        ready: The checkpoint; the sampler's precision is set for as long as it is needed.
        progress: Where to say how far it is.
        count: Responses per prompt.

    Returns:
        An E-batch on U's prompts.
    """
    U, policy = ready.batches.U, ready.policy
    distinct = dict.fromkeys(tuple(ids.tolist()) for ids in U.prompt_ids)
    prompts = [Prompt(f"U/{k}", token_ids=ids) for k, ids in enumerate(distinct)]
    generator = torch.Generator().manual_seed(config.batch_config.seeds["resample"])
    with (
        at_precision(policy, config.precision.sampling),
        progress.bar("fresh responses") as advance,
    ):
        return respond(
            policy,
            prompts,
            count,
            generator,
            max_new_tokens=ready.batches.U.max_new_tokens or config.sampling.max_new_tokens,
            batch_size=config.sampling.batch_size,
            progress=advance,
        )


def shares_of(config: MeasureConfig, ready: Prepared, progress: Progress) -> SharesRecord:
    """Same-prompt and other-prompt shares on fresh responses to U's prompts.

    Args:
        config: How many responses, and how gradients are held.
        ready: The checkpoint, at the measuring precision.
        progress: Where to say how far it is.

    Returns:
        Estimates by share, and what they were measured on.
    """
    E = fresh_responses(config, ready, progress, config.analysis.share_responses)
    shares = influence_shares(
        ready.policy,
        E,
        ready.batches.U,
        ready.step,
        functional=config.estimator.functional,
        method=weighted_method(config),
        gradient_backend=config.analysis.gradient_backend,
        storage=config.fisher_kernel.held,
        confidence=config.estimator.confidence,
    )
    totals = shares.totals
    return SharesRecord(
        measured_on=f"{len(E)} fresh responses to U's prompts",
        itself=totals.get("self"),
        same_prompt=totals.get("same_prompt"),
        other_prompt=totals.get("other_prompt"),
        gradient=totals["gradient"],
    )


def _budget(found: Attribution) -> Budget:
    return Budget(**found.budget, closure=found.closure, unit=found.unit)


def _warnings(table: Influence) -> list[str]:
    said = [f"At θ: {sentence}" for sentence in table.entropy.budget["total"].warnings]
    for of, estimate in table.reliability.items():
        if estimate.value < LEAST_RELIABLE:
            said.append(
                f"The rank correlation of {of} with an infinite E is only about "
                f"{estimate.value:.2f}: the ranking is mostly noise; use a larger batch_config.B_E."
            )
        said += estimate.warnings
    return said
