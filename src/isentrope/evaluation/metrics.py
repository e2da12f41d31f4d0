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
surprisals and lengths are positive and skewed to the right: their interval is F exp(± t SE/F),
which covers 0 to 10 points more than F ± t SE, and still too little where few prompts hold most of
the sum. Below 48 prompts they carry a warning (docs/results/intervals.md).

Forking tokens (Wang et al. 2025, "Beyond the 80/20 rule", arXiv 2506.01939) are those above the
80 % quantile q of H over the whole batch. Their mean is q + Σ_ik (H_ik − q)₊ / (0.2 Σ_i T_i), and
as its derivative by q vanishes (Rockafellar and Uryasev 2000), the jackknife may hold q fixed.

Entropies are at the sampling temperature, and are expectations over sampled responses: greedy
responses have none. A metric without meaning (the length of correct responses where none is
correct, a format that the task does not define) is None.

pass@k is the probability that one of k responses to a prompt is correct:

    pass@k = E_p[ 1 − C(n−c, k)/C(n, k) ]          n responses to the prompt, c of them correct

unbiased for each prompt (Chen et al. 2021, arXiv 2107.03374): it is the share of k-subsets of the n
responses that contain a correct one. Prompts are the units of the error, and the interval is that
of `bounded_mean`.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.means import bounded_mean, too_few_for_modes
from isentrope.nouns.estimate import Estimate


def pass_at_k(
    n: int | Sequence[int] | Tensor,
    c: int | Sequence[int] | Tensor,
    k: int,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate pass@k from counts.

    Args:
        n: Responses to each prompt: one number for all, or one per prompt.
        c: Correct ones among them, one number per prompt.
        k: Tries; at most the fewest responses of a prompt.
        confidence: Nominal coverage of the interval.

    Returns:
        pass@k over the prompts; with one prompt there is no interval.

    Raises:
        ValueError: If k is below 1 or above n, or c is not in 0..n.
    """
    correct = torch.as_tensor(c).reshape(-1)
    drawn = torch.as_tensor(n).reshape(-1).expand(len(correct))
    if correct.is_floating_point() or drawn.is_floating_point():
        raise ValueError("n and c are counts: give whole numbers.")
    if bool(((correct < 0) | (correct > drawn)).any()):
        raise ValueError("c counts correct responses among n, so it must lie between 0 and n.")
    if not 1 <= k <= int(drawn.min()):
        raise ValueError(
            f"pass@{k} needs at least {k} responses to every prompt, and one has {int(drawn.min())}"
            ": draw more, or choose a smaller k (1 or more)."
        )
    return bounded_mean(prompt_scores(drawn, correct, k), f"pass@{k}", confidence=confidence)


def prompt_scores(n: Tensor, c: Tensor, k: int) -> Tensor:
    """1 − C(n−c, k)/C(n, k) of every prompt.

    Args:
        n: (P,) responses.
        c: (P,) correct ones.
        k: Tries, at most every n.

    Returns:
        (P,) float64.
    """
    tries = torch.arange(k, dtype=torch.float64)
    incorrect, drawn = (n - c)[:, None].double(), n[:, None].double()
    return 1 - ((incorrect - tries).clamp_min(0) / (drawn - tries)).prod(1)


Metric = Literal[
    "pass_at_k",
    "reward",
    "format",
    "unread",
    "response_length",
    "truncated",
    "entropy",
    "surprisal",
    "forking_entropy",
]
"""All metrics."""

METRICS: tuple[Metric, ...] = get_args(Metric)

NAMES = {
    "response_length": ("response_length", "response_length_right", "response_length_wrong"),
    "entropy": ("entropy_per_sequence", "entropy_per_token"),
    "surprisal": ("surprisal_per_sequence", "surprisal_per_token"),
}
"""Metrics that are several numbers."""

NEED_SCORES = ("entropy", "surprisal", "forking_entropy")
"""Metrics for which responses have to be scored."""

FORKING_SHARE = 0.2
"""Share of tokens that count as forking."""

MIN_PROMPTS_FOR_INTERVAL = 48
"""Prompts from which on intervals of skewed quantities hold, if the skew is moderate."""

JACKKNIFE = "jackknife over prompts"

_FEW = (
    "From {} prompts: where prompts differ widely in length or entropy, the intervals of both are "
    f"too short below {MIN_PROMPTS_FOR_INTERVAL}, mainly at the upper end."
)
"""The warning on the interval of a skewed quantity."""


def powers_of_two(n: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to n."""
    return tuple(2**i for i in range(n.bit_length()))


def require_tries(ks: Sequence[int], samples_per_prompt: int) -> None:
    """Refuse pass@k where there are fewer than k responses to a prompt.

    Raises:
        ValueError: Naming the k, or if one is below 1 or given twice.
    """
    if min(ks) < 1 or len(set(ks)) < len(ks):
        raise ValueError(f"the k of pass@k are different whole numbers from 1 on, not {list(ks)}")
    if max(ks) > samples_per_prompt:
        raise ValueError(
            f"pass@{max(ks)} needs at least {max(ks)} responses to every prompt, and "
            f"samples_per_prompt is {samples_per_prompt}: draw more, or choose a smaller k"
        )


def metric_names(metrics: Sequence[Metric], ks: Sequence[int]) -> list[str]:
    """Names of the numbers of metrics, in the order of the tables."""
    names = NAMES | {"pass_at_k": tuple(f"pass_at_{k}" for k in sorted(ks))}
    return [
        name for metric in METRICS if metric in metrics for name in names.get(metric, (metric,))
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
    prompts, lengths = records["prompt"], records["length"]
    if "pass_at_k" in metrics:
        by_prompt = records.groupby("prompt")["right"]
        drawn, right = (torch.tensor(x.tolist()) for x in (by_prompt.size(), by_prompt.sum()))
        values |= {f"pass_at_{k}": pass_at_k(drawn, right, k) for k in (ks if sampled else (1,))}
    for name, unit in (
        ("reward", "reward"),
        ("format", "share of responses"),
        ("unread", "share of responses"),
        ("truncated", "share of responses"),
    ):
        if name in metrics and name in records and records[name].notna().all():
            column = records[name].astype(float)
            values[name] = _over_prompts(prompts, column, unit=unit, positive=False)
            if column.between(0, 1).all():
                values[name] = bounded_mean(_tensor(column.groupby(prompts).mean()), unit)
    if "response_length" in metrics:
        for name, of in zip(
            NAMES["response_length"],
            (lengths > 0, records["right"], ~records["right"]),
            strict=True,
        ):
            if of.any():
                values[name] = _over_prompts(prompts[of], lengths[of], unit="tokens")
    for name, method in {"entropy": "rao-blackwell", "surprisal": "surprisal"}.items():
        if sampled and name in metrics:
            whole, per_token = NAMES[name]
            sums = records[name]
            values[whole] = _over_prompts(prompts, sums, unit="nats per sequence", method=method)
            values[per_token] = _over_prompts(prompts, sums, lengths, method=method)
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
    every = np.concatenate(entropies)
    top = max(1, int(np.ceil(FORKING_SHARE * len(every) - 1e-9)))
    quantile = float(np.partition(every, len(every) - top)[len(every) - top])
    excess = [float(np.maximum(h - quantile, 0).sum()) for h in entropies]
    tokens = [FORKING_SHARE * len(h) for h in entropies]
    return _over_prompts(prompts, excess, tokens, method="top tokens", shift=quantile)


def _over_prompts(
    prompts: Any,
    above: Any,
    below: Any = None,
    *,
    unit: str = "nats per token",
    method: str = JACKKNIFE,
    shift: float = 0.0,
    positive: bool = True,
) -> Estimate:
    """Shift + Σ ω_i a_i / Σ ω_i b_i with its error over prompts; on the log scale if positive."""
    a = _tensor(above)
    b = torch.ones_like(a) if below is None else _tensor(below)
    jackknife = infinitesimal_jackknife(
        lambda omega: (shift + (omega @ a) / (omega @ b))[None], _tensor(prompts).long()
    )
    few = positive and jackknife.n_units < MIN_PROMPTS_FOR_INTERVAL
    warnings = (_FEW.format(jackknife.n_units),) if few else ()
    if unit.startswith("nats"):  # of one number of prompts, unlike lengths of correct responses
        warnings += too_few_for_modes(jackknife.n_units)
    estimate = jackknife.estimate(0, unit=unit, method=method, warnings=warnings)
    return estimate.on_log_scale() if positive else estimate


def _tensor(values: Any) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))
