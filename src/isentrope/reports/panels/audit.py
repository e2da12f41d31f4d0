"""The published proxies against the measured influence: rank correlation, and overlap of the top.

A proxy without a sign (an entropy mask) is held against the size of the influence, |δH_ik|.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from isentrope.reports.palette import LOSS, MEASURED
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.rows import records
from isentrope.reports.sentences import number, with_interval
from isentrope.reports.svg import canvas, grid, legend, zero_line

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


def audit_panels(audit: Measurement) -> list[Panel]:
    """Rank correlation and overlap of every proxy.

    Args:
        audit: Of `audit`.

    Returns:
        Two panels.
    """
    ranks = _table(
        audit.results, lambda row: "spearman" if _has(row, "spearman") else "spearman_size"
    )
    top = _shared_top(audit.results)
    overlaps = _table(audit.results, lambda _: f"overlap@{top}")
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


def _has(row: dict[str, Any], name: str) -> bool:
    return (row.get(name) or {}).get("value") is not None


def _shared_top(results: dict[str, Any]) -> str:
    """The share of tokens nearest to 2 % that was audited, as it is written."""
    row = next(iter(results["tokens"]["proxies"].values()))
    row = results["tokens"]["proxies"].get("token_covariance", row)
    tops = [name.partition("@")[2] for name in row if name.startswith("overlap@")]
    return min(tops, key=lambda top: abs(np.log(float(top) / 0.02)))


def _table(results: dict[str, Any], statistic: Any) -> pd.DataFrame:
    rows = []
    for of in ("tokens", "sequences"):
        for proxy, found in results[of]["proxies"].items():
            name = statistic(found)
            if proxy != "measured" and _has(found, name):
                rows.append(
                    {"of": of, "proxy": NAMES.get(proxy, proxy), "statistic": name} | found[name]
                )
    return pd.DataFrame(rows).drop(columns=["ess", "khat", "warnings"], errors="ignore")


def _draw(table: pd.DataFrame, label: str, limits: tuple[float, float]) -> Any:
    names = list(dict.fromkeys(table["proxy"]))
    figure, (axes,) = canvas(110 + 30 * len(names))
    style = {"tokens": (MEASURED.light, "o", -0.14), "sequences": (LOSS.light, "s", 0.14)}
    for of, (colour, marker, shift) in style.items():
        label_left = of
        for row in records(table[table["of"] == of]):
            y = names.index(row["proxy"]) + shift
            ends, width = _bar(row)
            axes.plot(ends, [y, y], color=colour, linewidth=width)
            face = "none" if "size" in row["statistic"] else colour
            axes.plot(row["value"], y, marker, color=colour, mfc=face, ms=5.5, label=label_left)
            label_left = None
    if limits[0] < 0:
        zero_line(axes, vertical=True)
    axes.set_xlim(*limits)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(label)
    grid(axes, "x")
    legend(axes)
    return figure


def _bar(row: dict[str, Any]) -> tuple[list[float], float]:
    """The interval; where there is none, one standard error as a hairline."""
    if not pd.isna(row["ci_low"]):
        return [row["ci_low"], row["ci_high"]], 1.8
    return [row["value"] - row["se"], row["value"] + row["se"]], 0.7


def _best(ranks: pd.DataFrame) -> str:
    tokens = ranks[(ranks["of"] == "tokens") & (ranks["statistic"] == "spearman")]
    if not len(tokens):
        return "No proxy has a sign to be compared."
    best = tokens.iloc[tokens["value"].abs().argmax()]
    said = f"By tokens {best['proxy']} ranks best, {with_interval(_plain(best))}"
    known = tokens[tokens["proxy"] == NAMES["token_covariance"]]
    if len(known) and known.index[0] != best.name:
        said += f"; the token covariance reaches {with_interval(_plain(known.iloc[0]))}"
    return f"{said}. Hollow: a proxy without sign, against the size of δH."


def _found(overlaps: pd.DataFrame, share: str) -> str:
    tokens = overlaps[overlaps["of"] == "tokens"]
    if not len(tokens):
        return "There are no overlaps."
    best = tokens.iloc[tokens["value"].argmax()]
    return (
        f"Of the {share} of tokens with the largest influence, {best['proxy']} finds most: "
        f"{with_interval(_plain(best))}."
    )


def _plain(row: pd.Series) -> dict[str, Any]:
    return {
        key: None if pd.isna(row[key]) else row[key] for key in ("value", "se", "ci_low", "ci_high")
    }


def _numbers(ranks: pd.DataFrame, words: str) -> dict[str, Any]:
    return {
        f"{words} of {row['of']} with {row['proxy']}": _plain(pd.Series(row))
        | {"n": row["n"], "unit": ""}
        for row in records(ranks)
        if row["of"] == "tokens"
    }
