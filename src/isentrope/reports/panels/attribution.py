"""Who moved the entropy, by prompts, by classes of tokens, and by the published proxies.

Bars are δH per unit η with their intervals; numbers beside the names of classes are shares of the
tokens that act. Whether the published criterion is the whole story is a sentence of the verdict. A
proxy without a sign (an entropy mask) is compared with the size of the influence, |δH_ik|.
"""

import math
from collections.abc import Iterator, Mapping

from isentrope.attribution.influence.classes import BY_GROUP
from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import Bars
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.words import number, with_interval
from isentrope.results.results import AuditResult, InfluenceResult
from isentrope.system.formatting import percent

RELATIONS = {
    "same prompt": "shares.same_prompt",
    "other prompts": "shares.other_prompt",
    "together": "shares.gradient",
}


def shares(reading: Reading) -> Iterator[Panel]:
    """The gradient's part by how two responses are related, on fresh responses to U's prompts."""
    influence, (relations, sentence) = reading.shown(InfluenceResult), shares_of(reading)
    if relations:
        title = "Whose responses moved whose, on U's prompts"
        label = f"part of δH₁ ({relations['together'].unit})"
        drawn = Bars(label, relations)
        yield Panel(influence.source, "shares", title, sentence, drawn)


def shares_of(reading: Reading) -> tuple[dict[str, Estimate], str]:
    """The shares by relation, and in words; empty where they were not asked for."""
    influence = reading.shown(InfluenceResult)
    found, (relations, _) = influence.result.shares, influence.at(RELATIONS)
    if found is None:
        return {}, ""
    *parts, whole = (f"{words} {with_interval(e)}" for words, e in relations.items())
    return relations, (
        f"On other responses than those of E, {found.measured_on}, the gradient's part is, in "
        f"{found.gradient.unit}: {', '.join(parts)}; {whole}."
    )


def classified(reading: Reading) -> Measurement[InfluenceResult] | Measurement[AuditResult]:
    """The influence, or else the audit, that has classes of tokens."""
    influence = reading.found(InfluenceResult)
    if influence is not None and "tokens" in influence.result.classes:
        return influence
    return reading.shown(AuditResult)


def class_panels(reading: Reading) -> Iterator[Panel]:
    """δH of every class of tokens, and of every group of prompts."""
    found = classified(reading)
    for of in ("tokens", BY_GROUP):
        if of not in found.result.classes:
            continue
        classes = found.result.classes[of]
        total = sum(part.members for part in classes.parts.values())
        words = "Classes are the groups of the batch's prompts."
        if of == "tokens":
            ends = {name: number(value) for name, value in classes.thresholds.items()}
            words = (
                f"Unlikely is log π ≤ {ends['s of unlikely']}, high entropy H ≥ "
                f"{ends['H of high entropy']} nats; rewarded and punished are signs of the token's "
                "weight."
            )
        changes = {name: part.delta_h for name, part in classes.parts.items()}
        written = {
            name: f"{name} ({percent(part.members / total)})"
            for name, part in classes.parts.items()
        }
        yield Panel(
            found.source,
            "classes" if of == "tokens" else "groups",
            f"Which classes of {of.replace('_', ' ')} cost entropy",
            f"{words} Beside a name is its share of the members.",
            Bars(f"δH ({classes.gradient.unit})", changes, written=written),
        )


PROXIES = {
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

RANKS = {"spearman": "", "spearman_size": ", by size"}
"""The rank correlation with the influence, or else with its size, and what is said of it."""


def proxies_of(
    result: AuditResult, of: str = "tokens", statistics: Mapping[str, str] = RANKS
) -> dict[str, Estimate]:
    """By proxy of tokens or of sequences, the first of these statistics that it has."""
    found = dict[str, Estimate]()
    for proxy, row in getattr(result, of).proxies.items():
        known = [name for name in statistics if name in row and math.isfinite(row[name].value)]
        if proxy != "measured" and known:
            found[f"{PROXIES.get(proxy, proxy)}{statistics[known[0]]}"] = row[known[0]]
    return found


def audit_panels(reading: Reading) -> Iterator[Panel]:
    """Rank correlation and overlap of every proxy."""
    audit = reading.shown(AuditResult)
    names = {name for row in audit.result.tokens.proxies.values() for name in row}
    tops = [float(name.partition("@")[2]) for name in names if name.startswith("overlap@")]
    top = min(tops, key=lambda top: abs(math.log(top / TOP)))
    share = f"{top * 100:g} %"
    for key, title, statistics, label, lead in (
        (
            AuditResult.verb,
            "Do proxies rank as the measurement does?",
            RANKS,
            "rank correlation with δH",
            "A proxy without sign is compared with the size of δH.",
        ),
        (
            "audit_overlap",
            "Do they find the tokens that matter?",
            {f"overlap@{top:g}": ""},
            f"overlap of the top {share} by size",
            f"Of the {share} of tokens with the largest influence each proxy finds so many.",
        ),
    ):
        tokens, sequences = (
            proxies_of(audit.result, of, statistics) for of in ("tokens", "sequences")
        )
        every = tokens | {f"{name}, sequences": e for name, e in sequences.items()}
        yield Panel(audit.source, key, title, lead, Bars(label, every))
