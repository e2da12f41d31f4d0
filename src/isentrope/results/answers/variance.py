"""What `isentrope variance` answers: how large E must be, and by which estimator."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from isentrope.estimators.tail import MIN_UNITS_FOR_INTERVAL, MIN_UNITS_FOR_UPPER_END
from isentrope.estimators.variance import CERTAIN, MethodVariance
from isentrope.nouns.columns import Column, printed_columns, text
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Printed, Sentence, Table, named, number
from isentrope.results.results import VarianceResult

HOW_LARGE = "How large must E be?"
_WORDS = {"entropy": "entropy at θ", "first_order": "ηδH₁", "delta_h": "ΔH(η)"}


@dataclass(frozen=True, kw_only=True)
class _EstimatorRow:
    """An estimator of a quantity.

    Attributes:
        quantity: What is estimated.
        method: The estimator.
        value: On the whole E, with its error.
        ratio: Its variance over that of the reference.
        prompts: Prompts for the relative error that is wanted.
        design_effect: Its variance over that of as many prompts with one response each.
    """

    quantity: Annotated[str, Column("quantity", left=True)]
    method: Annotated[str, Column("estimator", left=True)]
    value: Annotated[Estimate, Column("value")]
    ratio: Annotated[str, Column("variance ÷ prefix", rank=1)]
    prompts: Annotated[str, Column("prompts needed")]
    design_effect: Annotated[object, Column("design effect")]


def variance_sentences(result: VarianceResult) -> Iterator[Sentence]:
    """The prompts that E needs for ΔH by the estimator that is set, beside those that it has."""
    by_method = result.methods.get("delta_h", {})
    method = result.estimator.method
    if method not in by_method:
        method = next(iter(by_method), "")
    if not method:
        return
    share = f"{100 * result.wanted_error:g} %"
    prompts = result.batches.E.prompt_draws
    question = f"For ΔH within {share} at η = {result.eta:g} by “{method}”"
    needed = needed_prompts(by_method[method].prompts_needed)
    if needed:
        sentence = f"{question} E needs {needed} prompts; it has {prompts}."
        yield Sentence(sentence, question=HOW_LARGE)
    else:
        sentence = f"{question} the size that E needs is not known: {_reason(prompts)}."
        yield Sentence(sentence, "doubt", HOW_LARGE)


def _reason(prompts: int) -> str:
    """Why there is no size."""
    if prompts < MIN_UNITS_FOR_INTERVAL:
        return (
            f"{prompts} prompts are too few for one, {MIN_UNITS_FOR_INTERVAL} give a lower bound "
            f"and {MIN_UNITS_FOR_UPPER_END} an upper one too"
        )
    return (
        f"the value is within {CERTAIN:g} errors of 0, which gives a lower bound at most, or its "
        "weights are not trusted"
    )


def variance_tables(result: VarianceResult) -> Printed:
    """Value, variance and prompts needed of every estimator, and what a response costs."""
    rows = [
        _row(quantity, method, variance)
        for quantity, by_method in result.methods.items()
        for method, variance in by_method.items()
    ]
    prompts = result.batches.E.prompt_draws
    grouped = result.batches.E.sequences > prompts
    columns = [c for c in printed_columns(_EstimatorRow) if grouped or c.value != "design_effect"]
    share = f"{100 * result.wanted_error:g} %"
    title = f"{result.name}: errors at η = {result.eta:g}, prompts for an error of {share}"
    yield Table(title, rows, columns)
    yield f"  ms/response  {named({name: 1e3 * x for name, x in result.seconds.items()})}"
    if grouped:
        yield "  design effect  variance ÷ that of as many prompts with one response each"
    if not all(row.prompts[:1].isdigit() for row in rows):
        yield f"  no size      {_reason(prompts)}"


def _row(quantity: str, method: str, variance: MethodVariance) -> _EstimatorRow:
    return _EstimatorRow(
        quantity=_WORDS[quantity],
        method=method,
        value=variance.estimate,
        ratio=_over_prefix(variance.variance_ratio),
        prompts=needed_prompts(variance.prompts_needed),
        design_effect=variance.design_effect or "",
    )


def _over_prefix(ratio: Estimate) -> str:
    """A ratio with its error; of numbers that are the same there is none."""
    return number(ratio.value) if ratio.se == 0 else text(ratio)


def needed_prompts(prompts: Estimate) -> str:
    """360 [200, 900], or "200 or more", or nothing; without an interval there is no number."""
    low = prompts.ci_low
    high = prompts.ci_high
    if not math.isfinite(low):
        return ""
    if not (math.isfinite(prompts.value) and math.isfinite(high)):
        return f"{_size(low)} or more"
    return f"{_size(prompts.value)} [{_size(low)}, {_size(high)}]"


def _size(prompts: float) -> str:
    """Rounded up at the second digit: a size to plan with."""
    unit = 10 ** max(math.floor(math.log10(prompts)) - 1, 0) if prompts >= 1 else 1
    return f"{math.ceil(prompts / unit) * unit}"
