"""`isentrope influence`: which sequences and tokens of U moved the entropy, and what they earned.

results.json      budget (momentum, decay, gradient, total ± se), closure, and what it was measured
                  on; reliability, listed_share, degrees_of_freedom; classes; shares, on other
                  responses; past, the momentum by past update (`past_updates`)
sequences.parquet, tokens.parquet     one row per sequence or token, as measured
"""

from __future__ import annotations

from isentrope.attribution.influence.classes import Classes, sequence_classes, token_classes
from isentrope.attribution.influence.contributions import (
    Attribution,
    Influence,
    sequence_table,
    token_table,
)
from isentrope.attribution.influence.influence import influence
from isentrope.attribution.influence.quantities import InfluenceOptions
from isentrope.attribution.influence.shares import influence_shares
from isentrope.nouns.rollouts import Rollouts
from isentrope.results.attributions import Budget, SharesRecord
from isentrope.results.results import InfluenceResult
from isentrope.sampling.prompts import Prompt
from isentrope.system.progress import Progress
from isentrope.verbs.past_updates import past_updates
from isentrope.verbs.prepare import Prepared

LEAST_RELIABLE = 0.8
"""Rank correlation with an infinite E below which a ranking is said to be mostly noise."""


def find_influence(ready: Prepared, progress: Progress) -> InfluenceResult:
    """Attribute the step of a checkpoint."""
    section, E = ready.analysis, _measured_on(ready)
    table = influence_of(ready, progress, tokens=section.tokens, reward=section.reward)
    tables = {"sequences": sequence_table(table)}
    if section.tokens:
        tables["tokens"] = token_table(table, ready.policy.tokenizer)
    past, notes = None, ()
    if section.momentum_steps:
        past, of_past, notes = past_updates(ready, table, progress)
        tables |= {"momentum": of_past} if len(of_past) else {}
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
        shares=prompt_shares(ready) if section.share_responses else None,
        classes=classes_of(ready, table),
        past=past,
        warnings=(*_warnings(table), *notes),
        tables=tables,
    )


def influence_of(ready: Prepared, progress: Progress, *, tokens: bool, reward: bool) -> Influence:
    """The influence of a checkpoint's step, as its configuration wants it."""
    rewarded = ready.sampler.rewarded(ready.E) if reward else None
    with progress.bar("attributing") as report:
        return influence(
            ready.policy,
            _measured_on(ready).with_columns(rewards=None),
            ready.U,
            ready.step,
            _options(ready),
            tokens=tokens,
            reward=rewarded,
            progress=report,
        )


def _measured_on(ready: Prepared) -> Rollouts:
    """E; the update batch where one batch has both roles."""
    one_batch = ready.analysis.overlap == "u_statistic"
    return ready.U if one_batch else ready.E


def _options(ready: Prepared) -> InfluenceOptions:
    return InfluenceOptions(
        **vars(ready.estimator.options),
        groups=ready.analysis.groups,
        overlap=ready.analysis.overlap,
        gradients=ready.gradients,
    )


def classes_of(ready: Prepared, table: Influence) -> dict[str, Classes]:
    """Classes of tokens, where they were attributed, and of sequences; none where none acts."""
    if not bool(table.acting.any()):
        return {}
    section, confidence = ready.analysis, ready.estimator.confidence
    classes = {"sequences": sequence_classes(table, confidence=confidence)}
    if table.scores is not None:
        classes["tokens"] = token_classes(
            table, share=section.class_share, criterion=section.top, confidence=confidence
        )
    return classes


def fresh_responses(ready: Prepared) -> Rollouts:
    """Fresh responses to each of U's prompts, once however often U drew it."""
    sampler, count = ready.sampler, ready.analysis.share_responses
    distinct = dict.fromkeys(tuple(ids.tolist()) for ids in ready.U.prompt_ids)
    prompts = [Prompt(f"U/{k}", token_ids=ids) for k, ids in enumerate(distinct)]
    seed = sampler.data.seeds["resample"]
    return sampler.respond(prompts, count, seed, "fresh responses", sampler.longest(ready.U))


def prompt_shares(ready: Prepared) -> SharesRecord:
    """Same-prompt and other-prompt shares on fresh responses to U's prompts."""
    E = fresh_responses(ready)
    totals = {**influence_shares(ready.policy, E, ready.U, ready.step, _options(ready)).totals}
    itself, measured_on = totals.pop("self", None), f"{len(E)} fresh responses to U's prompts"
    return SharesRecord(measured_on=measured_on, itself=itself, **totals)


def _budget(attribution: Attribution) -> Budget:
    return Budget(**attribution.budget, closure=attribution.closure, unit=attribution.unit)


def _warnings(table: Influence) -> list[str]:
    warnings = [f"At θ: {sentence}" for sentence in table.entropy.budget["total"].warnings]
    for of, estimate in table.reliability.items():
        if estimate.value < LEAST_RELIABLE:
            warnings.append(
                f"The rank correlation of {of} with an infinite E is only about "
                f"{estimate.value:.2f}: the ranking is mostly noise; use a larger batch_config.B_E."
            )
        warnings += estimate.warnings
    return warnings
