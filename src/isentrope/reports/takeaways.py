"""What a reader should take away, in three sentences made of the run's own numbers.

what training exchanged   pass@1, entropy, and the law R = −a exp(h) + b
what the next step does   ΔH, its first order, and what was decided before the batch was drawn
which tokens do it        how few, and whether a published proxy would have found them
"""

from __future__ import annotations

import math
from functools import partial

from isentrope.attribution.influence.reliability import printed_reliability
from isentrope.reports.panels.plane import law_of
from isentrope.reports.read_run import Reading, as_far_as_readable
from isentrope.reports.rows import bare, estimate_in
from isentrope.reports.sentences import number, with_error, with_interval
from isentrope.results.results import AuditResult, MeasureResult
from isentrope.system.formatting import percent

TOP = "0.02"
"""The share of tokens that is spoken of, as `audit` writes it."""


def takeaways(reading: Reading) -> list[str]:
    """Every text that the run's results allow."""
    parts = {"Training": _training, "The next step": _step, "Tokens": _tokens}
    return [
        text
        for what, part in parts.items()
        for text in as_far_as_readable(reading, what, partial(lambda f: [f(reading)], part))
        if text
    ]


def _training(reading: Reading) -> str:
    parts = []
    for evaluation in reading.evaluations[:1]:
        rows = evaluation.sampled()
        if len(rows) > 1 and {"pass_at_1", "entropy_per_token"} <= set(rows.columns):
            first, last = rows.iloc[0], rows.iloc[-1]
            right, h = (
                f"from {with_interval(estimate_in(first, metric))} to "
                f"{with_interval(estimate_in(last, metric))}"
                for metric in ("pass_at_1", "entropy_per_token")
            )
            parts.append(f"training took pass@1 {right} and entropy {h} nats per token")
    if (law := law_of(reading)) is not None and not law.warnings:
        a, ceiling = (with_interval(x) for x in (law.a, law.ceiling))
        parts.append(
            f"along the run reward follows b − a exp(h) with a = {a}, which leaves a reward of "
            f"{ceiling} for when all entropy is spent"
        )
    return _sentence("; ".join(parts))


def _step(reading: Reading) -> str:
    measured = reading.shown(MeasureResult)
    row = None if measured is None else measured.result.at_rate()
    if measured is None or row is None or not abs(row.delta_h) > 0:
        return ""
    result = measured.result
    text = (
        f"one more step at η = {number(result.rate)} changes the entropy of {measured.name} by "
        f"{with_interval(result.change_at(row))} {result.unit}"
    )
    if math.isfinite(row.first_order):
        predicted = with_error(bare(row.first_order, row.first_order_se))
        text += f", where first order alone says {predicted}"
    momentum, total = result.part("momentum"), result.part("total")
    if momentum is not None and total is not None and total.value:
        share = percent(momentum.value / total.value)
        text += f"; {share} of the first order is momentum, decided before the batch was drawn"
    return _sentence(text)


def _tokens(reading: Reading) -> str:
    audit = reading.shown(AuditResult)
    if audit is None:
        return ""
    proxies = audit.result.tokens.proxies
    own, usual = proxies.get("measured", {}), proxies.get("token_covariance", {})
    share = own.get(f"negative_share@{TOP}")
    if share is None or "spearman" not in usual:
        return ""
    text = (
        f"{float(TOP) * 100:g} % of the batch's tokens carry {percent(share.value)} ± "
        f"{percent(share.se)} of its fall in entropy; their covariance with the advantage, the "
        f"usual proxy, ranks tokens with a correlation of {with_interval(usual['spearman'])} to "
        "their measured influence"
    )
    reliability = audit.result.reliability.get("tokens")
    known = None if reliability is None else printed_reliability(reliability)
    if known is not None:
        text += (
            f", which itself has a rank correlation of about {number(known, 2)} with that of an "
            "infinite E"
        )
    return _sentence(text)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
