"""The price of the step of `measure`: what it spends of entropy, what it earns, and where."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from isentrope.attribution.alignment import alignment
from isentrope.attribution.gradients.groups import gradients_by_group, of_reward
from isentrope.estimators.entropy_change import EntropyChange
from isentrope.estimators.functional import Jackknifed
from isentrope.estimators.importance import Trust
from isentrope.estimators.positions import positions_of, require_matches
from isentrope.estimators.price import PRICED, Price, price_of_step
from isentrope.estimators.ratio import ratio_of
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.token_statistics import Scores
from isentrope.results.results import MeasureResult
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.printed import text, value_and_interval

GROUPS = 16
"""Groups of E's prompts for the angle of the two gradients."""


def price_at_checkpoint(
    ready: Prepared,
    change: EntropyChange,
    rewards: Tensor | None,
    budget: dict[str, Estimate],
    influences: dict[str, Tensor],
    moved: tuple[Scores, Trust] | None = None,
) -> Price | None:
    """What the step spends and earns at the rate of interest, to first order.

    Args:
        ready: The checkpoint, with its batches and its step.
        change: ΔH on E, with the scores behind it.
        rewards: (n,) of E's responses; None without.
        budget: δH₁ of the components of the step.
        influences: (P,) of each prompt draw on the budget, by its name in results.json.
        moved: Scores at the rate of interest, and their trust, for ΔH by group of prompts.

    Returns:
        The price; None where it was not asked for, or the scores have no derivative.

    Raises:
        IsentropeError: If the pattern that names a class of positions matches nowhere.
    """
    sample, asked, confidence = change.sample, ready.analysis, ready.estimator.confidence
    if change.first_order is None or not asked.price or sample.functional.method not in PRICED:
        return None
    E = ready.E if rewards is None else ready.E.with_columns(rewards=rewards)
    entropies = sample.series[0].entropies
    classes = positions_of(E, entropies, asked.position_pattern, ready.policy.tokenizer)
    require_matches(classes)
    parts = ("momentum", "total")
    shares = Jackknifed(
        torch.tensor([budget[name].value for name in parts]).double(),
        torch.stack([influences[f"budget.{name}"] for name in parts]),
        E.n_prompts,
    )
    options = {"confidence": confidence, **sample.trust.options(sample.functional.method)}
    momentum = ratio_of(shares, 0, 1, name="δH₁", unit=NET_SHARE, sign="any", **options)
    found = price_of_step(sample, ready.rate, classes, rewards, confidence=confidence)
    at = found.at
    for group in sorted(set(E.prompt_groups or ())):  # one at a time, as there may be many
        of = torch.tensor([name == group for name in E.prompt_groups or ()])[:, None]
        one = {f"group {group}": of & sample.series[0].mask}
        part = price_of_step(sample, ready.rate, one, rewards, after=moved, confidence=confidence)
        at |= part.at
    return replace(found, momentum=momentum, at=at, cosine=_cosine(ready, E, sample))


def _cosine(ready: Prepared, E: Rollouts, sample: ScoredBatch) -> Estimate | None:
    """cos_P of the gradients of reward and entropy; None without rewards or enough prompts."""
    if E.rewards is None or E.n_prompts < GROUPS:
        return None
    where = ready.gradients.storage.where
    samples = [sample, of_reward(sample, E.rewards)]
    g_H, g_J = gradients_by_group(ready.policy, E, samples, GROUPS, where)
    return alignment(g_J, g_H, ready.step.preconditioner, ready.estimator.confidence)


def price_lines(result: MeasureResult) -> Iterator[str]:
    """What the step spends and earns at the rate of interest, and at which positions.

    Args:
        result: A measurement.

    Yields:
        Lines for the terminal; none without a price.
    """
    price = result.price
    if price is None:
        return
    line = f"  price        the step's {text(price.whole.first_order)} {result.unit}"
    if (reward := price.whole.reward) is not None and (rate := price.whole.reward_for_a_nat):
        line += f" come with {text(reward)} of reward: {value_and_interval(rate)} {rate.unit}"
    yield line
    if price.cosine is not None:
        yield f"               cosine of its gradients {value_and_interval(price.cosine)}"
    for name, part in price.at.items():
        share = value_and_interval(part.share)
        line = f"  at {name:<16} {part.tokens:4.0%} of tokens, {share} of it"
        if part.change is not None:
            line += f", ΔH {text(part.change)}"
        if part.reward_for_a_nat is not None:
            line += f", {value_and_interval(part.reward_for_a_nat)} for a nat"
        yield line
