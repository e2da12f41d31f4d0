"""`isentrope audit`: the published proxies against the measured influence.

results.json    by token and by sequence: every statistic of every proxy, with its interval
audit.parquet   one row per proxy and statistic, `of` tokens or sequences
"""

from isentrope.attribution.influence.contributions import Influence
from isentrope.attribution.proxies.audit import Audit, AuditOptions, audit
from isentrope.attribution.proxies.proxies import (
    mean_discriminators,
    sequence_proxies,
    token_proxies,
)
from isentrope.nouns.tables import frame
from isentrope.results.attributions import ProxyRecord
from isentrope.results.results import AuditResult
from isentrope.verbs.influence import classes_of, influence_of
from isentrope.verbs.prepare import Prepared


def find_audit(ready: Prepared) -> AuditResult:
    """Measure the influence of every token, and compare the proxies with it.

    Returns:
        The audit of tokens and of sequences.

    Raises:
        ValueError: If U has no advantages, which every proxy needs.
    """
    if ready.U.advantages is None:
        raise ValueError("U has no advantages, and the proxies are made of them.")
    table = influence_of(ready, tokens=True, reward=False)
    audits = audits_of(ready, table)
    rows = [row for unit, audited in audits.items() for row in audited.rows(unit)]
    tokens = audits["tokens"]
    sequences = audits["sequences"]
    return AuditResult(
        **vars(ready.header),
        off_policy=ready.config.estimator.off_policy,
        reliability=dict(table.reliability),
        tokens=ProxyRecord(tokens.n_items, dict(tokens.statistics)),
        sequences=ProxyRecord(sequences.n_items, dict(sequences.statistics)),
        classes=classes_of(ready, table),
        tables={"audit": frame(rows)},
    )


def audits_of(ready: Prepared, table: Influence) -> dict[str, Audit]:
    """The audit of an influence, by token and by sequence."""
    U = table.U
    scores = table.scores
    measured = table.entropy.tokens
    assert scores is not None
    assert measured is not None
    assert U.advantages is not None
    options = AuditOptions(
        top=tuple(ready.config.analysis.top),
        draws=ready.config.analysis.draws,
        seed=ready.sampler.data.seed,
        confidence=ready.config.estimator.confidence,
    )
    means = mean_discriminators(ready.policy, U)
    by_group = table.entropy.by_group_and_token
    tokens = None
    sequences = None
    if by_group is not None and len(by_group) > 1:  # two halves of E's groups
        tokens = tuple(half.sum(0) for half in by_group.tensor_split(2))
        sequences = tuple(half.sum(1) for half in tokens)
    return {
        "tokens": audit(
            measured,
            table.acting,
            U.prompt_index,
            token_proxies(scores, U.advantages, means),
            options,
            halves=tokens,
        ),
        "sequences": audit(
            measured.sum(1),
            table.acting.any(1),
            U.prompt_index,
            sequence_proxies(scores, U.advantages, means),
            options,
            halves=sequences,
        ),
    }
