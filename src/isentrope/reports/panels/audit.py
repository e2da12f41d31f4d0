"""The published proxies against the measured influence: rank correlation, and overlap of the top.

A proxy without a sign (an entropy mask) is compared with the size of the influence, |δH_ik|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from isentrope.reports.drawing import canvas, named_rows, points
from isentrope.reports.palette import LOSS, MEASURED
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import estimate_in, has_interval, with_interval
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
    ranks = _table(audit.result, ["spearman", "spearman_size"])
    source = audit.source("results.json", "audit.parquet")
    tokens = ranks[ranks["of"] == "tokens"]
    signed = tokens[tokens["statistic"] == "spearman"]
    caption = "No proxy has a sign to be compared."
    if len(signed):
        best = signed.iloc[signed["value"].abs().argmax()]
        caption = f"By tokens {best['proxy']} ranks best, {with_interval(estimate_in(best))}"
        usual = signed[signed["proxy"] == NAMES["token_covariance"]]
        for _, row in usual.drop(index=best.name, errors="ignore").iterrows():
            caption += f"; the token covariance reaches {with_interval(estimate_in(row))}"
        caption += ". Hollow: a proxy without sign, against the size of δH."
    yield Panel(
        AuditResult.verb,
        "Do proxies rank as the measurement does?",
        caption,
        source,
        ranks,
        _draw(ranks, "rank correlation with δH", (-1, 1)),
        numbers={
            f"rank correlation of tokens with {row['proxy']}": estimate_in(row, n=int(row["n"]))
            for _, row in tokens.iterrows()
        },
    )
    tops = {
        name.partition("@")[2]
        for row in audit.result.tokens.proxies.values()
        for name in row
        if name.startswith("overlap@")
    }
    top = min(tops, key=lambda top: abs(math.log(float(top) / TOP)))
    overlaps, share = _table(audit.result, [f"overlap@{top}"]), f"{float(top) * 100:g} %"
    tokens = overlaps[overlaps["of"] == "tokens"]
    caption = "There are no overlaps."
    if len(tokens):
        best = tokens.iloc[tokens["value"].argmax()]
        caption = (
            f"Of the {share} of tokens with the largest influence, {best['proxy']} finds most: "
            f"{with_interval(estimate_in(best))}."
        )
    yield Panel(
        "audit_overlap",
        "Do they find the tokens that matter?",
        caption,
        source,
        overlaps,
        _draw(overlaps, f"overlap of the top {share} by size", (-0.04, 1.04)),
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


def _draw(table: pd.DataFrame, label: str, limits: tuple[float, float]) -> Figure:
    """Points with intervals; where there is none, one standard error as a hairline."""
    names = list(dict.fromkeys(table["proxy"]))
    figure, (axes,) = canvas(110 + 30 * len(names))
    looks = {"tokens": (MEASURED, "o", -0.14), "sequences": (LOSS, "s", 0.14)}
    for of, (colour, marker, shift) in looks.items():
        rows, name = table[table["of"] == of], of
        for _, row in rows.iterrows():
            estimate, y = estimate_in(row), names.index(row["proxy"]) + shift
            exact = has_interval(estimate)
            low = estimate.value - estimate.ci_low if exact else estimate.se
            high = estimate.ci_high - estimate.value if exact else estimate.se
            style = {"mfc": "none" if "size" in row["statistic"] else colour.light, "capsize": 0}
            style |= {"fmt": marker, "elinewidth": 1.8 if exact else 0.7}
            points(axes, estimate.value, y, colour, name, xerr=[[low], [high]], **style)
            name = None
    axes.set_xlim(*limits)
    named_rows(axes, names, label)
    return figure
