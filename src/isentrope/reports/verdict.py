"""The verdict: what one step at the training rate does to entropy, in sentences made of numbers.

Four questions come first: how much, who, at what price, and whether to trust it. Each sentence
answers one question and carries the errors of what it says. Where a result is not there, its
sentence is not there either.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from isentrope.attribution.noise.consequences import BestRate, Range, averaged_batches
from isentrope.nouns.estimate import Estimate
from isentrope.reports.panels.attribution import classified, shares_of
from isentrope.reports.panels.change import change_at_rate, parts_of
from isentrope.reports.panels.checks import checks_of, checks_sentence
from isentrope.reports.read_run import Reading, as_far_as_readable
from isentrope.reports.words import from_to, has_interval, number, with_error, with_interval
from isentrope.results.attributions import is_it_all
from isentrope.results.results import MeasureResult, NoiseResult
from isentrope.system.formatting import PAGE, listed, percent


@dataclass(frozen=True)
class Claim:
    """One sentence of the verdict.

    Attributes:
        text: The sentence.
        tone: "fact", "sound" or "doubt".
        question: What it answers, in a word or two.
    """

    text: str
    tone: str = "fact"
    question: str = ""


def verdict(reading: Reading) -> list[Claim]:
    """Sentences: those of the four first questions, then the others."""
    return [
        replace(claim, question=question)
        for question, answer in ANSWERS.items()
        for claim in as_far_as_readable(reading, question, answer)
        if claim.text
    ]


def _change(reading: Reading) -> Iterator[Claim]:
    measured = reading.shown(MeasureResult)
    result = measured.result
    change = change_at_rate(result)
    if result.rate is None:
        return
    rate = f"the training rate η = {number(result.rate)}"
    if change is None:
        yield Claim(f"ΔH at {rate} was not measured.", "doubt")
        return
    verb = "lowers" if change.value < 0 else "raises"
    tone = "fact"
    caveat = ""
    if not has_interval(change):
        verb = f"seems to {verb[:-1]}"
        tone = "doubt"
        caveat = " The weights are too uneven for an interval."
    elif change.covers(0.0):
        verb = "may raise or lower"
        tone = "doubt"
    entropy = result.at_theta.value
    yield Claim(
        f"One step at {rate} from {measured.name} {verb} entropy: ΔH = {with_interval(change)} "
        f"{result.unit}, {percent(abs(change.value / entropy))} of {number(entropy)}.{caveat}",
        tone,
    )


def _first_order(reading: Reading) -> Iterator[Claim]:
    result = reading.shown(MeasureResult).result
    row = result.at_rate()
    change = change_at_rate(result)
    if row is None or change is None or not change.value or row.first_order is None:
        return
    ratio = row.first_order.value / change.value
    how = f"{'over' if ratio > 1 else 'under'}states the change by {percent(abs(ratio - 1))}"
    if abs(ratio - 1) < 0.02:
        how = "agrees to 2 %"
    elif ratio < 0:
        how = "has the sign wrong"
    if not has_interval(change):
        how = "the measured change has no interval to compare it with"
    text = f"First order says {with_error(row.first_order)} and {how}"
    reach = result.linear_range
    if reach is not None and reach.rate_over_range is not None:
        part = f"{number(reach.rate_over_range, 2)} of the linear range"
        text += f"; the training rate is {part} η* = {with_interval(reach)}"
    yield Claim(f"{text}.")


def _parts(reading: Reading) -> Iterator[Claim]:
    """Shares of δH₁, or amounts where parts pull against each other; less than 1 % is no part."""
    parts = parts_of(reading)
    total = parts.pop("total").value if parts else 0.0
    gross = sum(abs(part.value) for part in parts.values())
    acting = {name: part for name, part in parts.items() if abs(part.value) > 0.01 * gross}
    if not acting or not total:
        return
    words = {
        "momentum": "momentum, decided by earlier batches,",
        "decay": "weight decay",
        "gradient": "this batch's gradient",
        "control": "the control's correction",
        "rounding": "rounding to the type of the weights",
    }
    alike = all(part.value * total > 0 for part in acting.values())
    how = "act alike" if alike else "pull apart"
    sizes = {
        name: percent(part.value / total) if alike else with_error(part)
        for name, part in acting.items()
    }
    terms = listed([f"{words[name]} {size}" for name, size in sizes.items()])
    most = max(acting, key=lambda name: abs(acting[name].value))
    yield Claim(
        f"The parts of the first order {how}: {terms}; the largest, {most}, is "
        f"{with_interval(acting[most])} per unit η."
    )


def _price(reading: Reading) -> Iterator[Claim]:
    """What reward comes with the entropy; nothing where rewards are not known."""
    price = reading.shown(MeasureResult).result.price
    if price is None or price.whole.reward is None:
        return
    reward = price.whole.reward
    for_a_nat = price.whole.reward_for_a_nat
    text = f"To first order reward changes by ΔJ = {with_interval(reward)} with it"
    if for_a_nat is not None and has_interval(for_a_nat):
        text += f", which is {with_interval(for_a_nat)} {for_a_nat.unit}"
    yield Claim(f"{text}.", "fact" if reward.ci_low * reward.ci_high > 0 else "doubt")


def _best_rate(reading: Reading) -> Iterator[Claim]:
    """Could the rate be raised, and is the batch large enough? Empty where ΔJ is not there."""
    result = reading.shown(MeasureResult).result
    reward = result.reward
    rate = result.rate
    if reward is None:
        return
    if (top := reward.top) is None:
        yield Claim(f"No best rate follows. {reward.no_top}" if reward.no_top else "")
        return
    text = f"Along this step reward is highest at η = {with_interval(top)}"
    trusted = [row.eta for row in reward.sweep if row.verdict == "trust"]
    if trusted and top.value > max(trusted):
        text += f", beyond the rates at which ΔJ has an interval (up to {number(max(trusted))})"
    if rate is not None:
        could = "is not distinguishable from that"
        if not top.covers(rate):
            could = "is above that, so it should be lowered"
            if rate < top.value:
                could = "is below that, so a step on this batch could be larger"
        text += f"; the training rate {number(rate)} {could}"
    yield Claim(f"{text}. {_batch(result, top, reading)}")


def _batch(result: MeasureResult, top: Estimate, reading: Reading) -> str:
    noise = reading.in_focus(NoiseResult)
    scale = None if noise is None else noise.result.preconditioned.get("b_simple")
    if scale is None:
        return "Whether the batch is large enough takes a noise scale: run isentrope noise."
    averaged = averaged_batches(result.step.param_groups)
    prompts = result.batches.B_U
    if averaged is None:
        return "Param groups differ in momentum, so that no rate without noise follows."
    best = BestRate(top, scale, prompts, averaged)
    if not best.known:
        return "The noise scale has no interval with two ends, so no rate without noise follows."
    lost = best.lost
    enough = "large enough" if lost.high <= 0.5 else "too small" if lost.low > 0.5 else "borderline"
    batches = "" if averaged == 1 else f" (momentum averages {number(averaged)} batches)"
    return (
        f"At {number(prompts)} prompts{batches} the batch is {enough}: its noise takes "
        f"{_with_range(lost, percent)} off the best rate "
        f"η_max = {_with_range(best.at(math.inf))} of a step without noise, and twice the batch "
        f"would allow {_with_range(best.at(2 * prompts))}."
    )


def _with_range(span: Range, write: Callable[[float], str] = number) -> str:
    return f"{write(span.value)} [{write(span.low)}, {write(span.high)}]"


def _training(reading: Reading) -> Iterator[Claim]:
    names = {"pass_at_1": "pass@1", "entropy_per_token": "entropy per token"}
    for evaluation in reading.evaluations[:1]:
        steps = [step for step, _ in evaluation.sampled()]
        parts = [
            f"{words} went {from_to(estimates)}"
            for metric, words in names.items()
            if (estimates := evaluation.along(metric)[1])
        ]
        if len(steps) > 1 and parts:
            yield Claim(f"From step {steps[0]:.0f} to {steps[-1]:.0f}, {listed(parts)}.")


def _soundness(reading: Reading) -> Iterator[Claim]:
    checks = checks_of(reading)
    failed = any(check.passed is False for check in checks)
    yield Claim(checks_sentence(checks), "doubt" if failed else "sound")


def _classes(reading: Reading) -> Iterator[Claim]:
    classes = classified(reading).result.classes
    if "tokens" in classes:
        yield Claim(is_it_all(classes["tokens"], PAGE))


def _shares(reading: Reading) -> Iterator[Claim]:
    yield Claim(shares_of(reading)[1])


ANSWERS: dict[str, Callable[[Reading], Iterator[Claim]]] = {
    "How much?": _change,
    "Who did it?": _parts,
    "At what price?": _price,
    "Can I trust it?": _soundness,
    "First order": _first_order,
    "Could the rate be higher?": _best_rate,
    "Whose prompts": _shares,
    "Which tokens": _classes,
    "Training": _training,
}
FIRST = tuple(ANSWERS)[:4]
"""Those that the page and the terminal show before all others."""
