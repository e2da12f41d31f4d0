"""The verdict: what one step at the training rate does to entropy, in sentences made of numbers.

Each sentence answers one question and carries the errors of what it says. Where a result is not
there, its sentence is not there either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isentrope.formatting import listed, percent
from isentrope.reports.panels.checks import checks_of
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import at_training_rate, change_at, estimate_in
from isentrope.reports.sentences import Number, has_interval, number, with_interval, without_error


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
    """Every sentence that the run's results allow.

    Args:
        reading: The run.

    Returns:
        What happens, how first order compares, who did it, and whether to believe it.
    """
    measured, influence = reading.shown("measure"), reading.shown("influence")
    claims = []
    if measured is not None:
        claims += [_change(measured), _first_order(measured.results)]
        claims.append(Claim("Who did it", _parts(measured.results)))
    elif influence is not None:
        claims.append(Claim("Who did it", _parts_of_influence(influence.results)))
    if influence is not None and "shares" in influence.results:
        claims.append(Claim("Whose prompts", _shares(influence.results["shares"])))
    claims += [*_training(reading), *_soundness(reading)]
    return [claim for claim in claims if claim.text]


def _change(measured: Measurement) -> Claim:
    results = measured.results
    unit = results["estimator"]["unit"]
    entropy = results["entropy"][results["estimator"]["functional"]]
    row, rate = at_training_rate(results), results["step"].get("rate_of_interest")
    if row is None or row["deltaH_true"] is None:
        if rate is None:
            return Claim("What happens", "")
        said = f"ΔH at the training rate η = {number(rate)} was not measured."
        return Claim("What happens", said, "doubt")
    change = change_at(row, unit)
    size = (
        f"ΔH = {with_interval(change)} {unit}, {percent(abs(change['value'] / entropy['value']))}"
    )
    start = f"One step at the training rate η = {number(rate)} from {measured.name}"
    of = f"of {number(entropy['value'])}"
    if not has_interval(change):
        said = f"{start} seems to {_verb(change['value'])} entropy: {size} {of}."
        return Claim("What happens", f"{said} The weights are too uneven for an interval.", "doubt")
    if change["ci_low"] <= 0 <= change["ci_high"]:
        return Claim("What happens", f"{start} may raise or lower entropy: {size} {of}.", "doubt")
    return Claim("What happens", f"{start} {_verb(change['value'])}s entropy: {size} {of}.")


def _verb(value: float) -> str:
    return "lower" if value < 0 else "raise"


def _first_order(results: dict[str, Any]) -> Claim:
    row, first = at_training_rate(results), results.get("first_order")
    if row is None or first is None or not row["deltaH_true"]:
        return Claim("First order", "")
    change = change_at(row, "")
    told, seen = row["deltaH_approx"], change["value"]
    ratio = told / seen
    if ratio < 0:
        how = "has the sign wrong"
    elif abs(ratio - 1) < 0.02:
        how = "agrees to 2 %"
    else:
        how = f"{'over' if ratio > 1 else 'under'}states the change by {percent(abs(ratio - 1))}"
    said = f"First order says {number(told)} ± {number(row['deltaH_approx_se'], 2)} and {how}"
    reach = results.get("linear_range")
    if reach is None or reach.get("rate_over_range") is None:
        return Claim("First order", f"{said}.")
    part = f"{number(reach['rate_over_range'], 2)} of the linear range"
    return Claim("First order", f"{said}; the training rate is {part} η* = {without_error(reach)}.")


def _parts(results: dict[str, Any]) -> str:
    budget = results.get("budget") or {}
    parts = {
        name: {"value": budget[name], "se": budget[f"{name}_se"]}
        for name in ("momentum", "decay", "gradient", "control")
        if budget.get(name) is not None
    }
    return _split(parts, budget.get("total"))


def _parts_of_influence(results: dict[str, Any]) -> str:
    entropy = results["entropy"]
    names = ("momentum", "decay", "gradient")
    return _split({name: entropy[name] for name in names}, entropy["total"]["value"])


def _split(parts: Mapping[str, Number], total: float | None) -> str:
    """Shares of δH₁, or amounts where parts pull against each other; less than 1 % is no part."""
    gross = sum(abs(part["value"]) for part in parts.values())
    acting = {name: part for name, part in parts.items() if abs(part["value"]) > 0.01 * gross}
    if not acting or not total:
        return ""
    words = {
        "momentum": "momentum, decided by earlier batches,",
        "decay": "weight decay",
        "gradient": "this batch's gradient",
        "control": "the control's correction",
    }
    aligned = all(part["value"] * total > 0 for part in acting.values())
    if aligned:
        said = [f"{words[k]} {percent(p['value'] / total)}" for k, p in acting.items()]
        return f"Of the first order, {listed(said)}."
    said = [f"{words[k]} {number(p['value'])} ± {number(p['se'], 2)}" for k, p in acting.items()]
    return f"The parts of the first order pull apart: {listed(said)} per unit η."


def _shares(shares: dict[str, Any]) -> str:
    names = {
        "self": "the response itself",
        "same_prompt": "responses to the same prompt",
        "other_prompt": "responses to other prompts",
    }
    said = [f"{words} {with_interval(shares[k])}" for k, words in names.items() if k in shares]
    if not said:
        return ""
    whole = shares["gradient"]
    return (
        f"On other responses than those of E, {shares['measured_on']}, the gradient's part is "
        f"{with_interval(whole)} {whole['unit']}: {listed(said)}."
    )


def _training(reading: Reading) -> list[Claim]:
    for evaluation in reading.evaluations:
        rows = evaluation.sampled()
        columns = {"pass_at_1", "entropy_per_token"}
        if len(rows) < 2 or not columns <= set(rows.columns):
            continue
        first, last = rows.iloc[0], rows.iloc[-1]
        unit = {"pass_at_1": "pass@1", "entropy_per_token": "entropy per token"}
        said = [
            f"{words} went from {with_interval(estimate_in(first, m))} to "
            f"{with_interval(estimate_in(last, m))}"
            for m, words in unit.items()
        ]
        steps = f"From step {first['step']:.0f} to {last['step']:.0f}"
        return [Claim("Training", f"{steps}, {listed(said)}.")]
    return []


def _soundness(reading: Reading) -> list[Claim]:
    checks = checks_of(reading)
    if not checks:
        return []
    failed = [check for check in checks if check.passed is False]
    if not failed:
        passed = sum(check.passed is True for check in checks)
        said = f"The instrument is sound: {passed} of {len(checks)} checks passed, none failed."
        return [Claim("To be believed?", said, "sound")]
    names = listed([check.name for check in failed])
    plural = len(failed) > 1
    said = f"{names} {'are' if plural else 'is'} not as {'they' if plural else 'it'} should be"
    return [Claim("To be believed?", f"With care: {said}; see the checks below.", "doubt")]
