"""Is the instrument sound, and where do the numbers come from?

Every check that the results carry is listed with what it should be; every file with the command
that makes it again, its batches, precision, versions and seeds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from isentrope.attribution.influence.reliability import printed_reliability
from isentrope.estimators.identities import Z_LIMIT, in_words, p_value
from isentrope.reports.panel import Panel, Source, markup, number, records
from isentrope.reports.read_run import KINDS, Reading
from isentrope.results.result import Result
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import listed
from isentrope.verbs.influence import LEAST_RELIABLE


def provenance(reading: Reading) -> Iterator[Panel]:
    """One row per file that was read, with the command that makes it again."""
    measured = [m for of in reading.measurements.values() for m in of.values()]
    rows = [(m.result.verb, m.name, _how(m.result), m.source()) for m in measured]
    rows += [("evaluate", e.folder.name, "", e.source()) for e in reading.evaluations]
    if reading.metrics is not None:
        steps = f"{len(reading.metrics)} steps"
        rows.insert(0, ("train", steps, "", reading.training_source()))
    data = pd.DataFrame(
        [(*row, made.seeds, made.command, made.versions) for *row, made in rows],
        columns=["verb", "of", "how", "seeds", "command", "versions"],
    )
    versions = data["versions"].unique()
    several = f"The parts were made with {len(versions)} different sets of versions: "
    yield Panel(
        "provenance",
        "Commands, seeds and versions",
        f"{several if len(versions) > 1 else 'Everything was made with '}{'; '.join(versions)}.",
        Source(f"isentrope report {reading.folder}", (str(reading.folder),)),
        data,
        body=markup("provenance", records(data)),
    )


def _how(result: Result) -> str:
    """Batches, precision and time."""
    batches, dtype = result.batches, result.policy.precision["measuring"].runtime_dtype
    seconds = number(result.timing.get("total"))
    return f"E {batches.B_E}, U {batches.B_U} × {batches.G}, {dtype}, {seconds} s"


UNLIKE = 1e-3
"""|log| of trainer's over sampler's probability above which a trainer warns."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: What was checked.
        seen: The number.
        should: What it should be.
        passed: Whether it is; None if that cannot be said.
        about: What it tells.
    """

    name: str
    seen: str
    should: str
    passed: bool | None
    about: str


def checks_of(reading: Reading) -> list[Check]:
    """Every check that the run's results allow."""
    return [*_of_measure(reading), *_of_influence(reading), *_of_training(reading)]


def _of_measure(reading: Reading) -> Iterator[Check]:
    measured = reading.shown(MeasureResult)
    if measured is None:
        return
    result, checks = measured.result, measured.result.checks
    identities = {
        "score identity": (
            checks.score_identity_z,
            "E was drawn from the policy that is scored: mean score is zero",
        ),
        "martingale": (checks.martingale_z, "the same, position by position"),
    }
    for label, (z, words) in identities.items():
        passed = None if z is None else abs(z) <= Z_LIMIT
        about = words if z is None else f"{words} ({in_words(p_value(z), len(identities))})"
        yield Check(label, f"z = {number(z)}", f"|z| ≤ {Z_LIMIT:g}", passed, about)
    rate, smallest = result.rate, checks.rounding_floor.smallest_eta
    if rate is not None and smallest is not None:
        words = "smallest η at which neither ΔH nor θ + ηv is lost to rounding"
        should = f"below the training rate {number(rate)}"
        yield Check("rounding floor", number(smallest), should, smallest <= rate, words)
    row = result.at_rate()
    if row is not None:
        seen = f"{row.verdict}, ESS {number(row.effective_size)}, k̂ {number(row.khat, 2)}"
        passed = row.verdict == "trust" or row.resampled is not None
        words = "importance weights at the training rate are even enough for an interval"
        yield Check("weights", seen, "trust, or fresh responses", passed, words)
    matched, confirmed = result.step.matched_by, result.step.order_confirmed
    words = "which moment belongs to which parameter"
    seen = f"matched by {matched}" + (", as its second moments confirm" if confirmed else "")
    should = "by name, or confirmed by second moments"
    yield Check("optimizer state", seen, should, matched != "order" or bool(confirmed), words)


def _of_influence(reading: Reading) -> Iterator[Check]:
    influence = reading.shown(InfluenceResult)
    if influence is None:
        return
    result = influence.result
    total, closure = result.entropy.total.value, result.entropy.closure
    words = "influences of all tokens, momentum and decay sum to δH₁"
    passed = abs(closure) <= 1e-6 * abs(total)
    yield Check("parts sum to the total", number(closure, 2), "below 10⁻⁶ of δH₁", passed, words)
    for of, estimate in result.reliability.items():
        words = f"rank correlation of the {of} with those of an infinite E, about"
        value = printed_reliability(estimate)
        passed = None if value is None else value >= LEAST_RELIABLE
        yield Check(f"ranking of {of}", number(value, 2), f"≥ {LEAST_RELIABLE:g}", passed, words)


def _of_training(reading: Reading) -> Iterator[Check]:
    logged = reading.logged("policy_ratio/log_max")
    if logged is not None:
        largest = float(logged["policy_ratio/log_max"].max())
        words = "largest |log| of trainer's over sampler's probability of a token, over all steps"
        seen, should = number(largest, 2), f"≤ {UNLIKE:g}"
        yield Check("sampler is the policy", seen, should, largest <= UNLIKE, words)


def checks_sentence(checks: list[Check]) -> str:
    """How many passed, and which did not; empty where there are none."""
    failed = [check.name for check in checks if check.passed is False]
    if not checks:
        return ""
    passed = f"{sum(check.passed is True for check in checks)} of {len(checks)} checks passed"
    return f"{passed}; not as it should be: {listed(failed)}." if failed else f"{passed}."


def checks_panel(reading: Reading) -> Iterator[Panel]:
    """All checks as a table, with the warnings of the results."""
    checks = checks_of(reading)
    if not checks:
        return
    shown = [m for kind in KINDS if (m := reading.shown(kind)) is not None]
    notes = [(m.result.verb, warning) for m in shown for warning in m.result.warnings]
    measurement = reading.shown(MeasureResult) or reading.shown(InfluenceResult)
    source = reading.training_source() if measurement is None else measurement.source()
    data, body = pd.DataFrame(map(vars, checks)), markup("checks", checks, notes)
    caption = checks_sentence(checks)
    yield Panel("checks", "Checks", caption, source, data, body=body)
