"""Whether a result can be trusted: every check that it carries, with what it should be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isentrope.checks.instrument import ROUNDING_FLOOR
from isentrope.estimators.identities import in_words, p_value
from isentrope.nouns.estimate import Estimate
from isentrope.policy.ratio_test import Z_LIMIT
from isentrope.results.answers.blocks import Sentence, short, with_interval
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import listed

TRUST = "Can I trust it?"
LEAST_RELIABLE = 0.8
"""Rank correlation with an infinite E below which a ranking is said to be mostly noise."""
WEIGHTS = "weights"
"""The check of the importance weights, without which there is no interval."""


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


def checks_of_measure(result: MeasureResult) -> Iterator[Check]:
    """Whether E is a draw of the policy, rounding is small, weights are even, moments in order."""
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
        yield Check(name, f"z = {short(z)}", f"|z| ≤ {Z_LIMIT:g}", passed, about)
    rate = result.rate
    smallest = result.checks.rounding_floor.smallest_eta
    if rate is not None and smallest is not None:
        yield Check(
            ROUNDING_FLOOR,
            short(smallest),
            f"below the {result.rate_name} {short(rate)}",
            smallest <= rate,
            "smallest η at which neither ΔH nor θ + ηv is lost to rounding",
        )
    if (row := result.at_rate()) is not None:
        yield Check(
            WEIGHTS,
            f"{row.verdict}, ESS {short(row.effective_size)}, k̂ {short(row.khat, 2)}",
            "trust, or fresh responses",
            row.verdict == "trust" or row.resampled is not None,
            f"importance weights at the {result.rate_name} are even enough for an interval",
        )
    matched = result.step.matched_by
    confirmed = bool(result.step.order_confirmed)
    yield Check(
        "optimizer state",
        f"matched by {matched}{', as its second moments confirm' if confirmed else ''}",
        "by name, or confirmed by second moments",
        True if matched != "order" or confirmed else None,  # a wrong order is refused
        "which moment belongs to which parameter",
    )


def checks_of_influence(result: InfluenceResult) -> Iterator[Check]:
    """Whether influences sum to the total, and how well their ranks are known."""
    closure = result.entropy.closure
    bound = result.entropy.closure_bound
    yield Check(
        "parts sum to the total",
        short(closure, 2),
        f"within ± {short(bound, 2)}, which rounding explains",
        None if bound is None else abs(closure) <= bound,
        "influences of all tokens, momentum and decay sum to δH₁",
    )
    for kind, estimate in result.reliability.items():
        yield Check(
            f"ranking of {kind}",
            with_interval(estimate),
            f"≥ {LEAST_RELIABLE:g}, and its interval decides",
            reliable(estimate),
            f"rank correlation of the {kind} with those of an infinite E, about",
        )


def reliable(correlation: Estimate) -> bool | None:
    """Whether a ranking is more than noise; None where its interval does not decide."""
    if correlation.ci_low >= LEAST_RELIABLE:
        return True
    return False if correlation.ci_high < LEAST_RELIABLE else None


def failed(checks: Sequence[Check]) -> list[str]:
    """The names of those that did not pass."""
    return [check.name for check in checks if check.passed is False]


def trust_sentence(checks: Sequence[Check]) -> Iterator[Sentence]:
    """How many passed, and which did not; nothing where there are none."""
    if not checks:
        return
    undecided = [check.name for check in checks if check.passed is None]
    decided = len(checks) - len(undecided)
    words = f"{decided - len(failed(checks))} of {decided} checks passed"
    if undecided:
        words += f"; these files cannot decide {listed(undecided)}"
    if names := failed(checks):
        yield Sentence(f"{words}; not as it should be: {listed(names)}.", "doubt", TRUST)
    else:
        yield Sentence(f"{words}.", "sound", TRUST)
