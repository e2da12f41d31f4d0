"""Could the rate be raised, and is the batch large enough? What a step without noise allows."""

import math
from collections.abc import Callable, Iterator

from isentrope.attribution.noise.consequences import BestRate, Range, averaged_batches
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Sentence, short, with_interval
from isentrope.results.results import MeasureResult, NoiseResult
from isentrope.system.formatting import percent

HIGHER_RATE = "Could the rate be higher?"


def best_rate_sentence(
    result: MeasureResult, noise: NoiseResult | None = None
) -> Iterator[Sentence]:
    """The rate of most reward along this step, beside the one taken; nothing without ΔJ.

    Args:
        result: The measurement.
        noise: Noise scales of the same checkpoint, where they were measured.

    Yields:
        The sentence.
    """
    reward = result.reward
    rate = result.rate
    if reward is None:
        return
    if (top := reward.top) is None:
        if reward.no_top:
            yield Sentence(f"No best rate follows. {reward.no_top}", question=HIGHER_RATE)
        return
    text = f"Along this step reward is highest at η = {with_interval(top)}"
    if top.ci_high < 0:
        text = f"This step lowers reward: its parabola is highest at η = {with_interval(top)}"
    elif top.ci_low <= 0:
        text += ", so that the step may lower it at every rate"
    trusted = [row.eta for row in reward.sweep if row.verdict == "trust"]
    if trusted and top.value > max(trusted):
        text += f", beyond the rates at which ΔJ has an interval (up to {short(max(trusted))})"
    if rate is not None:
        could = "is not distinguishable from that"
        if not top.covers(rate):
            could = "is above that, so it should be lowered"
            if top.ci_high < 0:
                could = "is above that, as every rate is"
            if rate < top.value:
                could = "is below that, so a step on this batch could be larger"
        text += f"; the {result.rate_name} {short(rate)} {could}"
    yield Sentence(f"{text}. {_batch(result, top, noise)}", question=HIGHER_RATE)


def _batch(result: MeasureResult, top: Estimate, noise: NoiseResult | None) -> str:
    scale = None if noise is None else noise.preconditioned.get("b_simple")
    if scale is None:
        return "Whether the batch is large enough takes a noise scale: run isentrope noise."
    averaged = averaged_batches(result.step.param_groups)
    prompts = result.batches.B_U
    if averaged is None:
        return "Param groups differ in momentum, so that no rate without noise follows."
    best = BestRate(top, scale, prompts, averaged)
    if not best.known:
        return "The noise scale has no interval with two ends, so no rate without noise follows."
    batches = averaged_in_words(averaged)
    return (
        f"At {short(prompts)} prompts{batches} the batch is {enough(best.lost)}: its noise takes "
        f"{_with_range(best.lost, percent)} off the best rate "
        f"η_max = {_with_range(best.at(math.inf))} of a step without noise, and twice the batch "
        f"would allow {_with_range(best.at(2 * prompts))}."
    )


def averaged_in_words(averaged: float) -> str:
    """How many batches momentum averages, in brackets; nothing where there is no momentum."""
    return "" if averaged == 1 else f" (momentum averages {short(averaged)} batches)"


def enough(lost: Range) -> str:
    """Whether a batch is large enough, by the part of the best rate that its noise takes."""
    return "large enough" if lost.high <= 0.5 else "too small" if lost.low > 0.5 else "borderline"


def _with_range(span: Range, write: Callable[[float], str] = short) -> str:
    return f"{write(span.value)} [{write(span.low)}, {write(span.high)}]"
