"""`isentrope influence`: which sequences and tokens of U moved the entropy, and what they earned.

results.json      budget (momentum, decay, gradient, total ± se), closure, and what it was measured
                  on; reliability, listed_share, degrees_of_freedom; classes; shares, on other
                  responses
sequences.parquet, tokens.parquet     one row per sequence or token, as measured
"""

from dataclasses import replace

import torch

from isentrope.attribution.influence.classes import (
    BY_GROUP,
    Classes,
    group_classes,
    sequence_classes,
    token_classes,
)
from isentrope.attribution.influence.contributions import (
    Attribution,
    Influence,
    InfluenceOptions,
)
from isentrope.attribution.influence.influence import influence
from isentrope.attribution.influence.projection import influence_shares
from isentrope.nouns.rollouts import Rollouts
from isentrope.results.answers.blocks import with_interval
from isentrope.results.answers.checks import reliable
from isentrope.results.attributions import Budget, SharesRecord
from isentrope.results.results import InfluenceResult
from isentrope.sampling.prompt import Prompt
from isentrope.system.progress import progress
from isentrope.verbs.prepare import Prepared


def find_influence(ready: Prepared) -> InfluenceResult:
    """Attribute the step of a checkpoint."""
    section = ready.config.analysis
    E = _measured_on(ready)
    table = influence_of(ready, tokens=section.tokens, reward=section.reward)
    tables = {"sequences": table.to_frame(tokenizer=ready.policy.tokenizer)}
    if section.tokens:
        tables["tokens"] = table.to_frame("tokens", ready.policy.tokenizer)
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
        warnings=tuple(_warnings(table)),
        tables=tables,
    )


def influence_of(ready: Prepared, *, tokens: bool, reward: bool) -> Influence:
    """The influence of a checkpoint's step, as its configuration wants it."""
    if tokens and not reward and ready.attributed:
        return replace(ready.attributed[0], reward=None)
    rewarded = ready.sampler.rewarded(ready.E) if reward else None
    E = _measured_on(ready).with_columns(rewards=None)
    if rewarded is not None and ready.config.analysis.overlap != "u_statistic":
        E = rewarded  # both gradients are of the same responses
    with progress().bar("attributing") as report:
        attributed = influence(
            ready.policy,
            E,
            ready.U,
            ready.step,
            _options(ready),
            tokens=tokens,
            reward=rewarded,
            progress=report,
        )
    if tokens and ready.attributed is not None:
        ready.attributed.append(attributed)
    return attributed


def _measured_on(ready: Prepared) -> Rollouts:
    """E; the update batch where one batch has both roles."""
    one_batch = ready.config.analysis.overlap == "u_statistic"
    return ready.U if one_batch else ready.E


def _options(ready: Prepared) -> InfluenceOptions:
    return InfluenceOptions(
        **vars(ready.config.estimator.options),
        groups=ready.config.analysis.groups,
        overlap=ready.config.analysis.overlap,
        gradients=ready.gradients,
    )


def classes_of(ready: Prepared, table: Influence) -> dict[str, Classes]:
    """Classes of tokens, where they were attributed, and of sequences; none where none acts."""
    if not bool(table.acting.any()):
        return {}
    section = ready.config.analysis
    confidence = ready.config.estimator.confidence
    classes = {"sequences": sequence_classes(table, confidence=confidence)}
    if groups := table.U.prompt_groups:
        classes[BY_GROUP] = group_classes(table, groups, confidence=confidence)
    if table.scores is not None:
        classes["tokens"] = token_classes(
            table, share=section.class_share, criterion=section.top, confidence=confidence
        )
    return classes


def fresh_responses(ready: Prepared) -> Rollouts:
    """Fresh responses to each of U's prompts, once however often U drew it."""
    sampler = ready.sampler
    distinct = dict.fromkeys(tuple(ids.tolist()) for ids in ready.U.prompt_ids)
    prompts = [Prompt(f"U/{k}", token_ids=ids) for k, ids in enumerate(distinct)]
    generator = torch.Generator().manual_seed(sampler.data.seeds["resample"])
    return sampler.respond(
        prompts,
        ready.config.analysis.share_responses,
        generator,
        "fresh responses",
        sampler.longest(ready.U),
    )


def prompt_shares(ready: Prepared) -> SharesRecord:
    """Same-prompt and other-prompt shares on fresh responses to U's prompts."""
    E = fresh_responses(ready)
    totals = influence_shares(ready.policy, E, ready.U, ready.step, _options(ready)).totals
    return SharesRecord(measured_on=f"{len(E)} fresh responses to U's prompts", **totals)


def _budget(attribution: Attribution) -> Budget:
    return Budget(
        **attribution.budget,
        closure=attribution.closure,
        unit=attribution.unit,
        closure_bound=attribution.rounding,
    )


def _warnings(table: Influence) -> list[str]:
    warnings = [f"At θ: {sentence}" for sentence in table.entropy.budget["total"].warnings]
    for name, estimate in table.reliability.items():
        if reliable(estimate) is False:
            warnings.append(
                f"The rank correlation of {name} with an infinite E is only about "
                f"{with_interval(estimate)}: the ranking is mostly noise; use a larger "
                "batch_config.B_E."
            )
        warnings += estimate.warnings
    return warnings
