"""The published proxies against the measured influence: rank correlation, and overlap of the top.

A proxy without a sign (an entropy mask) is compared with the size of the influence, |δH_ik|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import LOSS, MEASURED
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.rows import estimate_in
from isentrope.reports.sentences import has_interval, with_interval
from isentrope.reports.svg import canvas, legend, named_rows, zero_line
from isentrope.results.results import AuditResult

Statistics = Mapping[str, Estimate]

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


def audit_panels(audit: Measurement[AuditResult]) -> list[Panel]:
    """Rank correlation and overlap of every proxy."""
    ranks = _table(
        audit.result, lambda row: "spearman" if _has(row, "spearman") else "spearman_size"
    )
    top = _shared_top(audit.result)
    overlaps = _table(audit.result, lambda _: f"overlap@{top}")
    best = _best(ranks)
    source = audit.source("results.json", "audit.parquet")
    share = f"{float(top) * 100:g} %"
    return [
        Panel(
            "audit",
            "Do proxies rank as the measurement does?",
            best,
            source,
            ranks,
            _draw(ranks, "rank correlation with δH", (-1, 1)),
            numbers=_numbers(ranks, "rank correlation"),
        ),
        Panel(
            "audit_overlap",
            "Do they find the tokens that matter?",
            _found(overlaps, share),
            source,
            overlaps,
            _draw(overlaps, f"overlap of the top {share} by size", (-0.04, 1.04)),
        ),
    ]


def _has(row: Statistics, name: str) -> bool:
    return name in row and math.isfinite(row[name].value)


def _shared_top(result: AuditResult) -> str:
    """The share of tokens nearest to 2 % that was audited, as it is written."""
    proxies = result.tokens.proxies
    row = proxies.get("token_covariance", next(iter(proxies.values())))
    tops = [name.partition("@")[2] for name in row if name.startswith("overlap@")]
    return min(tops, key=lambda top: abs(np.log(float(top) / 0.02)))


def _table(result: AuditResult, statistic: Callable[[Statistics], str]) -> pd.DataFrame:
    rows = []
    for of, record in (("tokens", result.tokens), ("sequences", result.sequences)):
        for proxy, estimates in record.proxies.items():
            name = statistic(estimates)
            if proxy != "measured" and _has(estimates, name):
                place = {"of": of, "proxy": NAMES.get(proxy, proxy), "statistic": name}
                rows.append(place | estimates[name].to_dict())
    return pd.DataFrame(rows).drop(columns=["ess", "khat", "warnings"], errors="ignore")


def _draw(table: pd.DataFrame, label: str, limits: tuple[float, float]) -> Any:
    names = list(dict.fromkeys(table["proxy"]))
    figure, (axes,) = canvas(110 + 30 * len(names))
    style = {"tokens": (MEASURED.light, "o", -0.14), "sequences": (LOSS.light, "s", 0.14)}
    for of, (colour, marker, shift) in style.items():
        label_left = of
        for _, row in table[table["of"] == of].iterrows():
            y = names.index(row["proxy"]) + shift
            ends, width = _bar(estimate_in(row))
            axes.plot(ends, [y, y], color=colour, linewidth=width)
            face = "none" if "size" in row["statistic"] else colour
            axes.plot(row["value"], y, marker, color=colour, mfc=face, ms=5.5, label=label_left)
            label_left = None
    if limits[0] < 0:
        zero_line(axes, vertical=True)
    axes.set_xlim(*limits)
    named_rows(axes, range(len(names)), names, label)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=5)
    legend(axes)
    return figure


def _bar(estimate: Estimate) -> tuple[list[float], float]:
    """The interval; where there is none, one standard error as a hairline."""
    if has_interval(estimate):
        return [estimate.ci_low, estimate.ci_high], 1.8
    return [estimate.value - estimate.se, estimate.value + estimate.se], 0.7


def _best(ranks: pd.DataFrame) -> str:
    tokens = ranks[(ranks["of"] == "tokens") & (ranks["statistic"] == "spearman")]
    if not len(tokens):
        return "No proxy has a sign to be compared."
    best = tokens.iloc[tokens["value"].abs().argmax()]
    caption = f"By tokens {best['proxy']} ranks best, {with_interval(estimate_in(best))}"
    known = tokens[tokens["proxy"] == NAMES["token_covariance"]]
    if len(known) and known.index[0] != best.name:
        caption += f"; the token covariance reaches {with_interval(estimate_in(known.iloc[0]))}"
    return f"{caption}. Hollow: a proxy without sign, against the size of δH."


def _found(overlaps: pd.DataFrame, share: str) -> str:
    tokens = overlaps[overlaps["of"] == "tokens"]
    if not len(tokens):
        return "There are no overlaps."
    best = tokens.iloc[tokens["value"].argmax()]
    return (
        f"Of the {share} of tokens with the largest influence, {best['proxy']} finds most: "
        f"{with_interval(estimate_in(best))}."
    )


def _numbers(ranks: pd.DataFrame, words: str) -> dict[str, Estimate]:
    return {
        f"{words} of {row['of']} with {row['proxy']}": estimate_in(row, n=int(row["n"]))
        for _, row in ranks.iterrows()
        if row["of"] == "tokens"
    }
