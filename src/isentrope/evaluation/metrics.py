"""Metrics of a policy from scored responses: each a mean or a ratio over prompts.

    pass_at_k                 E_p[ 1 − C(n−c, k)/C(n, k) ]                         (`pass_at_k`)
    format, unread, truncated share of responses                        (interval as for pass@k)
    reward, response_length   mean over responses; the length also over correct and incorrect ones
    entropy_per_sequence      ℋ = Σ_i Σ_k H_ik / n                                            (T1)
    entropy_per_token         h = Σ_i Σ_k H_ik / Σ_i T_i
    surprisal_...             the same with −s_ik for H_ik: the simple reference
    forking_entropy           mean H of the fifth of all tokens where H is highest

A reward within [0, 1] has the interval of pass@k too. All others are ratios of sums over
responses, F(ω) = Σ ω_i a_i / Σ ω_i b_i, with the jackknife over prompts (T11). Entropies,
surprisals and lengths are positive and skewed to the right, and have the interval of
`estimators.skewed`. It covers still too little where a handful of prompts holds most of the sum.
Below 48 prompts they carry a warning (docs/results/intervals.md).

Forking tokens (Wang et al. 2025, "Beyond the 80/20 rule", arXiv 2506.01939) are those above the
80 % quantile q of H over the whole batch. Their mean is q + Σ_ik (H_ik − q)₊ / (0.2 Σ_i T_i), and
as its derivative by q vanishes (Rockafellar and Uryasev 2000), the jackknife may hold q fixed.

Entropies are at the sampling temperature, and are expectations over sampled responses: greedy
responses have none. A metric without meaning (the length of correct responses where none is
correct, a format that the task does not define) is None.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.means import bounded_mean, too_few_for_modes
from isentrope.estimators.skewed import skewed_estimate
from isentrope.evaluation.pass_at_k import pass_at_k
from isentrope.nouns.choices import ALL_METRICS, Metric
from isentrope.nouns.estimate import Estimate

NAMES_OF_NUMBERS = {
    "response_length": ("response_length", "response_length_right", "response_length_wrong"),
    "entropy": ("entropy_per_sequence", "entropy_per_token"),
    "surprisal": ("surprisal_per_sequence", "surprisal_per_token"),
}
"""Names of the numbers of metrics that are several."""

NEED_SCORES = ("entropy", "surprisal", "forking_entropy")
"""Metrics for which responses have to be scored."""

FORKING_SHARE = 0.2
"""Share of tokens that count as forking."""

MIN_PROMPTS_FOR_INTERVAL = 48
"""Prompts from which on intervals of skewed quantities hold, if the skew is moderate."""

_JACKKNIFE = "jackknife over prompts"

_FEW_PROMPTS = (
    "From {} prompts: where prompts differ widely in length or entropy, the intervals of both are "
    f"too short below {MIN_PROMPTS_FOR_INTERVAL}, mainly at the upper end."
)
"""The warning on the interval of a skewed quantity."""


def metric_names(metrics: Sequence[Metric], ks: Sequence[int]) -> list[str]:
    """Names of the numbers of metrics, in the order of the tables."""
    names = NAMES_OF_NUMBERS | {"pass_at_k": tuple(f"pass_at_{k}" for k in sorted(ks))}
    return [
        name for metric in ALL_METRICS if metric in metrics for name in names.get(metric, (metric,))
    ]


def estimate_metrics(
    records: pd.DataFrame, metrics: Sequence[Metric], ks: Sequence[int], *, sampled: bool = True
) -> dict[str, Estimate | None]:
    """Estimate metrics from responses.

    Args:
        records: One row per response, as `make_records` makes it; only metrics of entropy and
            surprisal need `entropies` and `logprobs`.
        metrics: Names of metrics.
        ks: The k of pass@k.
        sampled: False for greedy responses: one try per prompt, and no entropy.

    Returns:
        By name, in the order of `metric_names`; None where a metric has no meaning.
    """
    values: dict[str, Estimate | None] = {}
    prompts = records["prompt"]
    lengths = records["length"]
    if "pass_at_k" in metrics:
        by_prompt = records.groupby("prompt")["right"]
        drawn = torch.tensor(by_prompt.size().tolist())
        correct = torch.tensor(by_prompt.sum().tolist())
        for k in ks if sampled else (1,):
            values[f"pass_at_{k}"] = pass_at_k(drawn, correct, k)
    for name, unit in (
        ("reward", "reward"),
        ("format", "share of responses"),
        ("unread", "share of responses"),
        ("truncated", "share of responses"),
    ):
        if name in metrics and name in records and records[name].notna().all():
            column = records[name].astype(float)
            if column.between(0, 1).all():
                values[name] = bounded_mean(_tensor(column.groupby(prompts).mean()), unit)
            else:
                values[name] = _estimate_ratio(prompts, column, unit=unit, positive=False)
    if "response_length" in metrics:
        selections = (lengths > 0, records["right"], ~records["right"])
        for name, rows in zip(NAMES_OF_NUMBERS["response_length"], selections, strict=True):
            if rows.any():
                values[name] = _estimate_ratio(prompts[rows], lengths[rows], unit="tokens")
    for name, method in {"entropy": "rao-blackwell", "surprisal": "surprisal"}.items():
        if sampled and name in metrics:
            per_sequence, per_token = NAMES_OF_NUMBERS[name]
            sums = records[name]
            values[per_sequence] = _estimate_ratio(
                prompts, sums, unit="nats per sequence", method=method
            )
            values[per_token] = _estimate_ratio(prompts, sums, lengths, method=method)
    if sampled and "forking_entropy" in metrics:
        values["forking_entropy"] = forking_entropy(records["entropies"].tolist(), prompts)
    return {name: values.get(name) for name in metric_names(metrics, ks)}


def forking_entropy(entropies: Sequence[np.ndarray], prompts: Any) -> Estimate:
    """Mean entropy of `FORKING_SHARE` of all tokens, those where it is highest.

    Args:
        entropies: H of every token, one array per response, nats.
        prompts: (n,) which prompt each response belongs to.

    Returns:
        In nats per token, with the jackknife over prompts.
    """
    all_tokens = np.concatenate(entropies)
    forking = max(1, int(np.ceil(FORKING_SHARE * len(all_tokens) - 1e-9)))
    place = len(all_tokens) - forking
    quantile = float(np.partition(all_tokens, place)[place])
    excess = [float(np.maximum(h - quantile, 0).sum()) for h in entropies]
    tokens = [FORKING_SHARE * len(h) for h in entropies]
    return _estimate_ratio(prompts, excess, tokens, method="top tokens", shift=quantile)


def _estimate_ratio(
    prompts: Any,
    numerators: Any,
    denominators: Any = None,
    *,
    unit: str = "nats per token",
    method: str = _JACKKNIFE,
    shift: float = 0.0,
    positive: bool = True,
) -> Estimate:
    """Shift + Σ ω_i a_i / Σ ω_i b_i with its error over prompts; skewed if positive."""
    a = _tensor(numerators)
    b = torch.ones_like(a) if denominators is None else _tensor(denominators)
    jackknife = infinitesimal_jackknife(
        lambda omega: (shift + (omega @ a) / (omega @ b))[None], _tensor(prompts).long()
    )
    too_few = positive and jackknife.n_units < MIN_PROMPTS_FOR_INTERVAL
    warnings = (_FEW_PROMPTS.format(jackknife.n_units),) if too_few else ()
    if unit.startswith("nats"):  # of one number of prompts, unlike lengths of correct responses
        warnings += too_few_for_modes(jackknife.n_units)
    options = {"unit": unit, "method": method, "warnings": warnings}
    return (
        skewed_estimate(jackknife, 0, **options) if positive else jackknife.estimate(0, **options)
    )


def _tensor(values: Any) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))
