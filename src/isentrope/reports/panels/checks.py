"""Is the instrument sound, and where do the numbers come from?

Every check that the results carry is listed with what it should be; every file with the command
that makes it again, versions and seeds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import torch

from isentrope.estimators.identities import in_words, p_value
from isentrope.models.float_types import AUTOCAST, DTYPES, rounding_bounds
from isentrope.models.precision import AUTOCAST_FIELDS
from isentrope.policy.ratio_test import Z_LIMIT
from isentrope.reports.evaluations import Sections
from isentrope.reports.panel import Panel, Source, markup
from isentrope.reports.read_run import REPORTED_KINDS, Reading, as_far_as_readable
from isentrope.reports.words import number
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import known, listed
from isentrope.verbs.influence import LEAST_RELIABLE


def provenance(reading: Reading) -> Iterator[Panel]:
    """One row per file that was read, with the command that makes it again."""
    sources = (
        {f"train: {len(reading.metrics)} steps": reading.source} if len(reading.metrics) else {}
    )
    sources |= {f"{m.result.verb}: {m.name}": m.source for m in reading.measurements}
    sources |= {f"evaluate: {e.folder.name}": e.source for e in reading.evaluations}
    columns = ("seeds", "command", "versions")
    rows = [
        {"of": name} | {column: getattr(source, column) for column in columns}
        for name, source in sources.items()
    ]
    data = pd.DataFrame(rows)
    versions = data["versions"].unique()
    several = f"The parts were made with {len(versions)} different sets of versions: "
    yield Panel(
        Source(f"isentrope report {reading.folder}", str(reading.folder)),
        "provenance",
        "Commands, seeds and versions",
        f"{several if len(versions) > 1 else 'Everything was made with '}{'; '.join(versions)}.",
        table=data,
        body=markup("provenance", rows),
    )


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
    return as_far_as_readable(reading, "checks", _of_measure, _of_influence, _of_training)


def _of_measure(reading: Reading) -> Iterator[Check]:
    result = reading.shown(MeasureResult).result
    identities = {
        "score identity": (
            result.checks.score_identity_z,
            "E was drawn from the policy that is scored: mean score is zero",
        ),
        "martingale": (result.checks.martingale_z, "the same, position by position"),
    }
    for name, (z, about) in identities.items():
        passed = None if z is None else abs(z) <= Z_LIMIT
        if z is not None:
            about += f" ({in_words(p_value(z), len(identities))})"
        yield Check(name, f"z = {number(z)}", f"|z| ≤ {Z_LIMIT:g}", passed, about)
    rate = result.rate
    smallest = result.checks.rounding_floor.smallest_eta
    if rate is not None and smallest is not None:
        yield Check(
            "rounding floor",
            number(smallest),
            f"below the training rate {number(rate)}",
            smallest <= rate,
            "smallest η at which neither ΔH nor θ + ηv is lost to rounding",
        )
    if (row := result.at_rate()) is not None:
        yield Check(
            "weights",
            f"{row.verdict}, ESS {number(row.effective_size)}, k̂ {number(row.khat, 2)}",
            "trust, or fresh responses",
            row.verdict == "trust" or row.resampled is not None,
            "importance weights at the training rate are even enough for an interval",
        )
    matched = result.step.matched_by
    confirmed = bool(result.step.order_confirmed)
    yield Check(
        "optimizer state",
        f"matched by {matched}{', as its second moments confirm' if confirmed else ''}",
        "by name, or confirmed by second moments",
        matched != "order" or confirmed,
        "which moment belongs to which parameter",
    )


def _of_influence(reading: Reading) -> Iterator[Check]:
    result = reading.shown(InfluenceResult).result
    closure = result.entropy.closure
    bound = result.entropy.closure_bound
    yield Check(
        "parts sum to the total",
        number(closure, 2),
        f"within ± {number(bound, 2)}, which rounding explains",
        None if bound is None else abs(closure) <= bound,
        "influences of all tokens, momentum and decay sum to δH₁",
    )
    for kind, estimate in result.reliability.items():
        value = known(estimate.value)
        yield Check(
            f"ranking of {kind}",
            number(value, 2),
            f"≥ {LEAST_RELIABLE:g}",
            None if value is None else value >= LEAST_RELIABLE,
            f"rank correlation of the {kind} with those of an infinite E, about",
        )


def _of_training(reading: Reading) -> Iterator[Check]:
    ratios = reading.logged("policy_ratio/log_max")
    if len(ratios):
        largest = float(ratios["policy_ratio/log_max"].max())
        bound = rounding_bounds(_training_types(reading.config)).logprob
        yield Check(
            "sampler is the policy",
            number(largest, 2),
            f"≤ {bound:g}, which rounding explains",
            largest <= bound,
            "largest |log| of trainer's over sampler's probability of a token, over all steps",
        )


def _training_types(config: Sections) -> set[torch.dtype]:
    """Types in which a run's own trainer computed, by its config.yaml."""
    weights = config.get("model", {}).get("dtype")
    trainer = config.get("trainer", {})
    autocast = [kind for key, kind in AUTOCAST_FIELDS.items() if trainer.get(key)]
    types = DTYPES | AUTOCAST
    return {torch.float32} | {types[name] for name in (weights, *autocast) if name in types}


def checks_sentence(checks: list[Check]) -> str:
    """How many passed, and which did not; empty where there are none."""
    failed = [check.name for check in checks if check.passed is False]
    if not checks:
        return ""
    passed = f"{sum(check.passed is True for check in checks)} of {len(checks)} checks passed"
    return f"{passed}; not as it should be: {listed(failed)}." if failed else f"{passed}."


def checks_panel(reading: Reading) -> Iterator[Panel]:
    """All checks as a table, with the warnings of the results."""
    if checks := checks_of(reading):
        shown = [m for kind in REPORTED_KINDS if (m := reading.in_focus(kind)) is not None]
        notes = [(m.result.verb, warning) for m in shown for warning in m.result.warnings]
        source = (shown[0] if shown else reading).source
        data = pd.DataFrame(map(vars, checks))
        body = markup("checks", checks, notes)
        yield Panel(source, "checks", "Checks", checks_sentence(checks), table=data, body=body)
