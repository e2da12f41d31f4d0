"""What `isentrope noise` answers: whether the batch is large enough."""

from collections.abc import Iterator
from dataclasses import replace

from isentrope.attribution.noise.consequences import Range, averaged_batches
from isentrope.estimators.tail import (
    LIGHT_TAILS,
    MIN_UNITS_FOR_INTERVAL,
    MIN_UNITS_FOR_UPPER_END,
)
from isentrope.nouns.columns import Column, printed_columns
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.best_rate import averaged_in_words, enough
from isentrope.results.answers.blocks import Printed, Sentence, Table, with_interval
from isentrope.results.results import NoiseResult
from isentrope.results.tables import NoiseRow
from isentrope.system.formatting import known
from isentrope.system.one_line import plural

LARGE_ENOUGH = "Is the batch large enough?"
SIGN = "Is its sign certain?"


def noise_sentences(result: NoiseResult) -> Iterator[Sentence]:
    """Whether the batch is large enough for the step, and for the sign of δH₁."""
    yield from _step(result)
    yield from _sign(result)


def _step(result: NoiseResult) -> Iterator[Sentence]:
    scale = result.preconditioned.get("b_simple")
    if scale is None:
        return
    name, prompts, shares = _batch(result)
    low = known(scale.ci_low)
    high = known(scale.ci_high)
    if low is None and high is None:
        text = f"Whether {name} is large enough for a step is not known: {_reason(scale)}."
        yield Sentence(text, "doubt", LARGE_ENOUGH)
        return
    averaged = averaged_batches(result.step.param_groups)
    if averaged is None:
        text = "Param groups differ in momentum, so whether the batch is large enough is not said."
        yield Sentence(text, "doubt", LARGE_ENOUGH)
        return
    total = averaged * prompts
    lower = max(low or 0.0, 0.0)
    upper = float("inf") if high is None else high
    verdict = enough(
        Range(total, lower / (lower + total), 1.0 if high is None else upper / (upper + total))
    )
    text = (
        f"{name[:1].upper()}{name[1:]}{averaged_in_words(averaged)} is {verdict} for this step: "
        f"noise equals signal at {with_interval(scale)} prompts{shares}, in the optimizer's metric."
    )
    yield Sentence(text, "doubt" if verdict == "borderline" else "fact", LARGE_ENOUGH)


def _batch(result: NoiseResult) -> tuple[str, float, str]:
    """The batch in question, its prompts with an advantage, and how these were counted.

    Returns:
        Name, number, and words; none where all have an advantage.
    """
    trained = result.settings.prompts_per_step
    U = result.batches.U
    if trained is None or not U.drawn:
        prompts = result.batches.B_U
        return f"a batch of {plural(prompts, 'prompt')}", prompts, ""
    # another trainer's batch has groups without an advantage, which add nothing; U has none
    useful = U.drawn - (U.rejected or 0)
    of_those_drawn = f" with an advantage, as {useful} of {U.drawn} drawn here"
    return (
        f"training's batch of {plural(trained, 'prompt')}",
        trained * useful / U.drawn,
        of_those_drawn if useful < U.drawn else "",
    )


def _sign(result: NoiseResult) -> Iterator[Sentence]:
    needed = result.entropy.get("prompts_for_sign")
    if needed is None or (known(needed.ci_low) is None and known(needed.ci_high) is None):
        return
    confidence = f"{100 * result.estimator.confidence:g} %"
    least = replace(  # no batch has less than one prompt
        needed,
        value=max(needed.value, 1.0),
        ci_low=max(needed.ci_low, 1.0),
        ci_high=max(needed.ci_high, 1.0),
    )
    text = f"The sign of δH₁ is {confidence} certain from {with_interval(least)} prompts on."
    yield Sentence(text, question=SIGN)


def _reason(scale: Estimate) -> str:
    """Why a noise scale has no interval."""
    if scale.n < MIN_UNITS_FOR_INTERVAL:
        return (
            f"its noise scale has no interval from {scale.n} groups with an advantage, which takes "
            f"{MIN_UNITS_FOR_INTERVAL} for a lower end and {MIN_UNITS_FOR_UPPER_END} for an upper "
            "one (batch_config.B_U)"
        )
    return "its noise scale has no interval; draw a larger batch_config.B_U"


def noise_rows(result: NoiseResult) -> list[NoiseRow]:
    """A row per number."""
    return [
        NoiseRow(part=part, quantity=name, estimate=estimate)
        for part in ("gradient", "preconditioned", "entropy", "supervised")
        for name, estimate in (getattr(result, part) or {}).items()
    ]


def noise_tables(result: NoiseResult) -> Printed:
    """Every noise scale with its interval."""
    rows = noise_rows(result)
    printed = [replace(row, quantity=row.quantity.replace("_", " ")) for row in rows]
    unit = Column("unit", lambda row: row.estimate.unit, 2, left=True)
    yield Table(f"{result.name}: noise", printed, [*printed_columns(NoiseRow), unit])
    fewest = min(row.estimate.n for row in rows if row.quantity != "baseline")
    if fewest < MIN_UNITS_FOR_UPPER_END:
        yield (
            f"  intervals    of noise need {MIN_UNITS_FOR_INTERVAL} groups with an advantage for a "
            f"lower end and {MIN_UNITS_FOR_UPPER_END} for an upper one; here are {fewest}"
        )
    else:
        yield f"  intervals    {LIGHT_TAILS}"
    if any(known(row.estimate.value) is None for row in rows):
        yield "  no value     the squared mean came out below 0, which chance does: draw a larger U"
