"""What `isentrope audit` answers: which published proxy ranks as the measured influence does."""

from collections.abc import Iterator

from isentrope.attribution.proxies.audit import largest_of
from isentrope.nouns.columns import Column
from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Printed, Sentence, Table, has_interval, with_interval
from isentrope.results.answers.classes import (
    classes_table,
    criterion_sentence,
    reliability_line,
    thresholds_line,
)
from isentrope.results.attributions import ProxyRecord
from isentrope.results.results import AuditResult
from isentrope.system.formatting import known, listed

WHICH_PROXY = "Which proxy?"
SPEARMAN = "spearman"
_PRINTED = ("pearson", SPEARMAN, "sign_agreement", "overlap")


def audit_sentences(result: AuditResult) -> Iterator[Sentence]:
    """The proxy that ranks tokens most like the measurement; whether the criterion is all."""
    yield from _best(result.tokens, result.estimator.confidence)
    yield from criterion_sentence(result.classes)


def _best(record: ProxyRecord, confidence: float) -> Iterator[Sentence]:
    measured = {
        name: row[SPEARMAN]
        for name, row in record.proxies.items()
        if SPEARMAN in row and has_interval(row[SPEARMAN])
    }
    correlations = {
        name: largest_of(correlation, len(measured), confidence)
        for name, correlation in measured.items()
    }
    if not correlations:
        text = "Which proxy ranks tokens as the measurement does is not known: no rank "
        text += "correlation has an interval."
        yield Sentence(text, "doubt", WHICH_PROXY)
        return
    best = max(correlations, key=lambda name: correlations[name].value)
    text = (
        f"Of the published proxies “{_title(best)}” ranks tokens most like the measurement, with "
        f"rank correlation {with_interval(correlations[best])}"
    )
    if correlations[best].ci_low <= 0:
        text = "No published proxy is shown to rank tokens as the measurement does; the best, "
        text += f"“{_title(best)}”, has rank correlation {with_interval(correlations[best])}"
    rivals = [
        name
        for name in correlations
        if name != best and correlations[name].ci_high > correlations[best].ci_low
    ]
    if rivals:
        text += f"; {listed([f'“{_title(name)}”' for name in rivals])} may be as good"
    if len(correlations) > 1:
        text += f" (intervals that hold for all {len(correlations)} at once)"
    yield Sentence(f"{text}.", "doubt" if correlations[best].ci_low <= 0 else "fact", WHICH_PROXY)


def _title(proxy: str) -> str:
    return proxy.replace("_", " ")


def audit_tables(result: AuditResult) -> Printed:
    """Correlations, sign agreement and overlaps of every proxy that has one of them."""
    for kind, record in (("tokens", result.tokens), ("sequences", result.sequences)):
        rows = {
            name: row for name, row in record.proxies.items() if any(map(_is_known, row.values()))
        }
        statistics = dict.fromkeys(name for row in rows.values() for name in row)
        names = [name for name in statistics if name.split("@")[0] in _PRINTED]
        columns = [Column("proxy", left=True)]
        columns += [Column(_title(name), name, rank) for rank, name in enumerate(names)]
        title = f"{result.name}: {record.items} {kind}, proxies against influence"
        yield Table(title, rows, columns)
    yield from classes_table(result.name, result.classes)
    yield from thresholds_line(result.classes)
    yield reliability_line(result.reliability)


def _is_known(statistic: Estimate) -> bool:
    return known(statistic.value) is not None
