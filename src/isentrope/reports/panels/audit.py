"""The published proxies against the measured influence: rank correlation, and overlap of the top.

A proxy without a sign (an entropy mask) is compared with the size of the influence, |δH_ik|.
"""

import math
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from isentrope.reports.drawing import LOSS, MEASURED, PAPER, Mark, named_rows, points
from isentrope.reports.panel import Panel, bare, estimates_in, has_interval, with_interval
from isentrope.reports.read_run import Reading
from isentrope.results.results import AuditResult

NAMES = {
    "token_covariance": "token covariance",
    "sequence_covariance": "sequence covariance",
    "discriminator": "S* × advantage",
    "centred_discriminator": "S* centred",
    "surprisal_advantage": "surprisal × A",
    "advantage": "advantage",
    "entropy": "entropy",
    "top_entropy": "top-entropy mask",
}

TOP = 0.02
"""The share of the largest influences that is shown, or the nearest one that was audited."""


def audit_panels(reading: Reading) -> Iterator[Panel]:
    """Rank correlation and overlap of every proxy."""
    audit = reading.shown(AuditResult)
    if audit is None:
        return
    names = {name for row in audit.result.tokens.proxies.values() for name in row}
    tops = [float(name.partition("@")[2]) for name in names if name.startswith("overlap@")]
    top = min(tops, key=lambda top: abs(math.log(top / TOP)))
    share = f"{top * 100:g} %"
    for key, title, statistics, label, lead in (
        (
            AuditResult.verb,
            "Do proxies rank as the measurement does?",
            ["spearman", "spearman_size"],
            "rank correlation with δH",
            "Hollow: a proxy without sign, against the size of δH.",
        ),
        (
            "audit_overlap",
            "Do they find the tokens that matter?",
            [f"overlap@{top:g}"],
            f"overlap of the top {share} by size",
            f"Of the {share} of tokens with the largest influence each proxy finds so many.",
        ),
    ):
        table = _table(audit.result, statistics)
        tokens = table[(table["of"] == "tokens") & (table["statistic"] == statistics[0])]
        found = dict(zip(tokens["proxy"], estimates_in(tokens), strict=True))
        numbers = {f"{label} of {proxy}, tokens": e for proxy, e in found.items()}
        best = max(found, key=lambda name: abs(found[name].value), default="none")
        source, drawn = audit.source("results.json", "audit.parquet"), _draw(table, label)
        yield Panel(
            key,
            title,
            f"By tokens {best} is best, {with_interval(found.get(best))}. {lead}",
            source,
            table,
            drawn,
            numbers,
        )


def _table(result: AuditResult, statistics: list[str]) -> pd.DataFrame:
    """One row per proxy of tokens and of sequences: the first of these statistics that it has."""
    rows = []
    for of, record in (("tokens", result.tokens), ("sequences", result.sequences)):
        for proxy, found in record.proxies.items():
            known = [x for x in statistics if x in found and math.isfinite(found[x].value)]
            if proxy != "measured" and known:
                place = {"of": of, "proxy": NAMES.get(proxy, proxy), "statistic": known[0]}
                rows.append(place | found[known[0]].to_dict())
    return pd.DataFrame(rows).drop(columns=["ess", "khat", "warnings"], errors="ignore")


def _draw(table: pd.DataFrame, label: str) -> Figure:
    """Points with intervals; where there is none, one standard error as a hairline."""
    names, marks = list(dict.fromkeys(table["proxy"])), list[Mark]()
    looks = {"tokens": (MEASURED, "o", -0.14), "sequences": (LOSS, "s", 0.14)}
    for of, (colour, marker, shift) in looks.items():
        rows, legend = table[table["of"] == of], of
        places = zip(rows["proxy"], rows["statistic"], estimates_in(rows), strict=True)
        for proxy, statistic, estimate in places:
            style = {"mfc": PAPER if "size" in statistic else colour, "capsize": 0, "fmt": marker}
            if not has_interval(estimate):
                estimate = bare(estimate.value, estimate.se)
                style["elinewidth"] = 0.5
            y = names.index(proxy) + shift
            marks.append(points([estimate], [y], colour, legend, **style))
            legend = None
    return named_rows(names, label, *marks, height=110 + 30 * len(names))
