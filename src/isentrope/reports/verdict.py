"""The verdict: what one step at the training rate does to entropy, in sentences made of numbers.

Each sentence answers one question and carries the errors of what it says. Where a result is not
there, its sentence is not there either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from isentrope.nouns.estimate import Estimate
from isentrope.reports.panels.checks import checks_of
from isentrope.reports.panels.trade_off import rate_sentence
from isentrope.reports.read_run import Measurement, Reading, as_far_as_readable
from isentrope.reports.rows import bare, estimate_in
from isentrope.reports.sentences import (
    has_interval,
    number,
    with_error,
    with_interval,
    without_error,
)
from isentrope.results.attributions import Budget, SharesRecord
from isentrope.results.criterion import is_it_all
from isentrope.results.results import AuditResult, InfluenceResult, MeasureResult
from isentrope.system.formatting import PAGE, listed, percent


@dataclass(frozen=True)
class Claim:
    """One sentence of the verdict.

    Attributes:
        question: What it answers, in a word or two.
        text: The sentence.
        tone: "fact", "sound" or "doubt".
    """

    question: str
    text: str
    tone: str = "fact"


def verdict(reading: Reading) -> list[Claim]:
    """Sentences: what happens, how first order compares, who did it, and whether to believe it."""
    claims = as_far_as_readable(reading, "The verdict", lambda: _of_results(reading))
    claims += as_far_as_readable(reading, "Training", lambda: _training(reading))
    claims += as_far_as_readable(reading, "Soundness", lambda: _soundness(reading))
    return [claim for claim in claims if claim.text]


def _of_results(reading: Reading) -> list[Claim]:
    measured, influence = reading.shown(MeasureResult), reading.shown(InfluenceResult)
    claims: list[Claim] = []
    if measured is not None:
        claims += [_change(measured), _first_order(measured.result)]
        claims.append(Claim("Who did it", _parts(measured.result)))
        claims.append(Claim("Could the rate be higher?", rate_sentence(reading)))
    elif influence is not None:
        claims.append(Claim("Who did it", _parts_of_influence(influence.result.entropy)))
    if influence is not None and influence.result.shares is not None:
        claims.append(Claim("Whose prompts", _shares(influence.result.shares)))
    attributed = influence or reading.shown(AuditResult)
    if attributed is not None and "tokens" in attributed.result.classes:
        sentence = is_it_all(attributed.result.classes["tokens"], PAGE)
        claims.append(Claim("Which tokens", sentence))
    return claims


def _change(measured: Measurement[MeasureResult]) -> Claim:
    result = measured.result
    unit, entropy = result.unit, result.at_theta
    row, rate = result.at_rate(), result.rate
    if row is None or math.isnan(row.delta_h):
        if rate is None:
            return Claim("What happens", "")
        text = f"ΔH at the training rate η = {number(rate)} was not measured."
        return Claim("What happens", text, "doubt")
    change = result.change_at(row)
    size = f"ΔH = {with_interval(change)} {unit}, {percent(abs(change.value / entropy.value))}"
    start = f"One step at the training rate η = {number(rate)} from {measured.name}"
    of = f"of {number(entropy.value)}"
    if not has_interval(change):
        text = f"{start} seems to {_verb(change.value)} entropy: {size} {of}."
        return Claim("What happens", f"{text} The weights are too uneven for an interval.", "doubt")
    if change.ci_low <= 0 <= change.ci_high:
        return Claim("What happens", f"{start} may raise or lower entropy: {size} {of}.", "doubt")
    return Claim("What happens", f"{start} {_verb(change.value)}s entropy: {size} {of}.")


def _verb(value: float) -> str:
    return "lower" if value < 0 else "raise"


def _first_order(result: MeasureResult) -> Claim:
    row = result.at_rate()
    if row is None or result.first_order is None or not abs(row.delta_h) > 0:
        return Claim("First order", "")
    ratio = row.first_order / result.change_at(row).value
    if ratio < 0:
        how = "has the sign wrong"
    elif abs(ratio - 1) < 0.02:
        how = "agrees to 2 %"
    else:
        how = f"{'over' if ratio > 1 else 'under'}states the change by {percent(abs(ratio - 1))}"
    predicted = with_error(bare(row.first_order, row.first_order_se))
    text = f"First order says {predicted} and {how}"
    reach = result.linear_range
    if reach is None or reach.rate_over_range is None:
        return Claim("First order", f"{text}.")
    part = f"{number(reach.rate_over_range, 2)} of the linear range"
    return Claim("First order", f"{text}; the training rate is {part} η* = {without_error(reach)}.")


def _parts(result: MeasureResult) -> str:
    names = ("momentum", "decay", "gradient", "control")
    parts = {name: part for name in names if (part := result.part(name)) is not None}
    return _split(parts, result.part("total"))


def _parts_of_influence(entropy: Budget) -> str:
    parts = {"momentum": entropy.momentum, "decay": entropy.decay, "gradient": entropy.gradient}
    return _split(parts, entropy.total)


def _split(parts: Mapping[str, Estimate], whole: Estimate | None) -> str:
    """Shares of δH₁, or amounts where parts pull against each other; less than 1 % is no part."""
    gross = sum(abs(part.value) for part in parts.values())
    acting = {name: part for name, part in parts.items() if abs(part.value) > 0.01 * gross}
    if not acting or whole is None or not whole.value:
        return ""
    total = whole.value
    words = {
        "momentum": "momentum, decided by earlier batches,",
        "decay": "weight decay",
        "gradient": "this batch's gradient",
        "control": "the control's correction",
    }
    aligned = all(part.value * total > 0 for part in acting.values())
    if aligned:
        terms = [f"{words[k]} {percent(p.value / total)}" for k, p in acting.items()]
        return f"Of the first order, {listed(terms)}."
    terms = [f"{words[k]} {with_error(p)}" for k, p in acting.items()]
    return f"The parts of the first order pull apart: {listed(terms)} per unit η."


def _shares(shares: SharesRecord) -> str:
    names = {
        "itself": "the response itself",
        "same_prompt": "responses to the same prompt",
        "other_prompt": "responses to other prompts",
    }
    by_relation = {words: getattr(shares, name) for name, words in names.items()}
    parts = [f"{words} {with_interval(e)}" for words, e in by_relation.items() if e is not None]
    if not parts:
        return ""
    whole = shares.gradient
    return (
        f"On other responses than those of E, {shares.measured_on}, the gradient's part is "
        f"{with_interval(whole)} {whole.unit}: {listed(parts)}."
    )


def _training(reading: Reading) -> list[Claim]:
    for evaluation in reading.evaluations:
        rows = evaluation.sampled()
        columns = {"pass_at_1", "entropy_per_token"}
        if len(rows) < 2 or not columns <= set(rows.columns):
            continue
        first, last = rows.iloc[0], rows.iloc[-1]
        unit = {"pass_at_1": "pass@1", "entropy_per_token": "entropy per token"}
        parts = [
            f"{words} went from {with_interval(estimate_in(first, m))} to "
            f"{with_interval(estimate_in(last, m))}"
            for m, words in unit.items()
        ]
        steps = f"From step {first['step']:.0f} to {last['step']:.0f}"
        return [Claim("Training", f"{steps}, {listed(parts)}.")]
    return []


def _soundness(reading: Reading) -> list[Claim]:
    checks = checks_of(reading)
    if not checks:
        return []
    failed = [check for check in checks if check.passed is False]
    if not failed:
        passed = sum(check.passed is True for check in checks)
        text = f"The instrument is sound: {passed} of {len(checks)} checks passed, none failed."
        return [Claim("Are the checks passed?", text, "sound")]
    names = listed([check.name for check in failed])
    plural = len(failed) > 1
    text = f"{names} {'are' if plural else 'is'} not as {'they' if plural else 'it'} should be"
    return [Claim("Are the checks passed?", f"With care: {text}; see the checks below.", "doubt")]
