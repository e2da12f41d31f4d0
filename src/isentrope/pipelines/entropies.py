"""`isentrope entropies`: why an entropy that a trainer logged is not the exact one.

E is unfiltered and drawn from θ; U is the update batch: recorded (batch_config.U_file), or drawn
and filtered as training's. M marks the tokens that count, N their number in the batch:

    per_token          Σ H / N: exact on E; verl and OpenRLHF with one micro-batch, TRL with one
    micro_batch_means  mean over micro-batches of Σ H / N: TRL, OpenRLHF
    response_means     mean over responses of Σ H / T: verl's seq-mean-token-mean
    per_response       Σ H per response: verl's seq-mean-token-sum
    surprisal          −Σ s / N, of the tokens that were drawn
    sampler_surprisal  the same by the sampler's own log-probabilities, its weights and precision
    sampler_entropy    Σ H / N as the sampler had it
    without_end        per token, without end tokens
    finished           per token, without responses that were cut
    top_tokens         per token, of the 20 % of the tokens with most entropy
    temperature_1      per token, of the logits at temperature 1
    truncated          per token, of the distribution that top-k and top-p leave
    bfloat16           per token, of a model in bfloat16

results.json       logged, logged_from, rows: value and difference to the exact one as Estimates
entropies.parquet  the same, one row per batch and definition
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from isentrope.checkpoint_names import step_of_folder
from isentrope.estimate import Estimate, t_quantile
from isentrope.estimators.jackknife import Jackknifed, infinitesimal_jackknife
from isentrope.estimators.sample import score_batch
from isentrope.pipelines.precision_stages import at_precision
from isentrope.pipelines.prepare import Prepared
from isentrope.policy.language_model import Policy
from isentrope.policy.own_logits import own_logits
from isentrope.policy.scoring import score
from isentrope.progress import Progress
from isentrope.reading import read_json
from isentrope.rollouts import Rollouts
from isentrope.runs.entropy_records import EntropiesResult, EntropyRecord

EXACT = "per_token"
TOP = 0.2
"""Share of the tokens that `top_tokens` is of."""
PARTITIONS = 16
"""Random orders of the batch that `micro_batch_means` averages over: trainers shuffle it."""
ROUNDING = 1e-4
"""Relative difference of a logged value from the recorded batch's that is rounding of float32."""

Statistic = Callable[[Tensor], Tensor]
"""From the weights of responses (n,) to a number."""
Row = tuple[str, str]
"""Batch and definition."""


def find_entropies(ready: Prepared, progress: Progress) -> EntropiesResult:
    """Every definition on E and on U, compared with the logged value."""
    logged, source, of_U = _logged(ready)
    rows: dict[Row, Estimate] = {}
    differences: dict[Row, Estimate] = {}
    spread = 0.0
    warnings: tuple[str, ...] = ()
    with progress.bar("entropies") as report:
        for k, (name, batch) in enumerate((("E", ready.batches.E), ("U", ready.batches.U))):
            report(k, 2, name)
            definitions, spread, trusted, notes = _definitions(ready, batch, weighted=name == "E")
            warnings += notes
            found = infinitesimal_jackknife(
                lambda w, of=definitions: torch.stack([f(w) for f in of.values()]),
                batch.prompt_index,
            )
            values = _estimates(ready, found, list(definitions), trusted)
            rows |= {(name, key): value for key, value in values.items()}
            if name == "E":
                first = list(definitions).index(EXACT)
                less = replace(
                    found,
                    values=found.values - found.values[first],
                    influences=found.influences - found.influences[first],
                )
                paired = _estimates(ready, less, list(definitions), trusted)
                differences = {("E", key): value for key, value in paired.items()}
    exact = rows["E", EXACT]
    differences |= {key: _apart(ready, rows[key], exact) for key in rows if key[0] == "U"}
    agrees = {} if logged is None else _agreeing(ready, logged, rows, spread if of_U else None)
    records = tuple(
        EntropyRecord(
            batch=key[0],
            definition=key[1],
            value=value,
            difference=differences[key] if value.unit == exact.unit else None,
            agrees=agrees.get(key),
        )
        for key, value in rows.items()
    )
    return EntropiesResult(
        **vars(ready.header),
        logged=logged,
        logged_from=source,
        rows=records,
        warnings=tuple(dict.fromkeys(warnings)),
        tables={"entropies": _table(records)},
    )


def _definitions(
    ready: Prepared, batch: Rollouts, *, weighted: bool
) -> tuple[dict[str, Statistic], float, bool, tuple[str, ...]]:
    """Functions of the responses' weights, the spread over micro-batches, trust and warnings."""
    policy = ready.policy
    scored = score_batch(policy, batch, functional="per_token", method="sequence")
    H, mask = scored.entropies, scored.series[0].mask.double()
    ratios = scored.log_ratios.sum(1).exp() if weighted else torch.ones(len(batch)).double()

    def mean(x: Tensor, of: Tensor = mask) -> Statistic:
        return lambda w: (w * ratios) @ (of * x).sum(1) / ((w * ratios) @ of.sum(1))

    def per_response(x: Tensor) -> Statistic:
        return lambda w: (w * ratios) @ x / (w * ratios).sum()

    found = {EXACT: mean(H)}
    groups = _micro_batches(ready, len(batch))
    spread = 0.0
    if groups is not None:
        totals, counts = (mask * H).sum(1), mask.sum(1)
        each = ((groups @ totals) / (groups @ counts)).view(PARTITIONS, -1).mean(1)
        spread = float(each.std())

        def micro_batch_means(w: Tensor) -> Tensor:
            w = w * ratios
            means = (groups @ (w * totals)) / (groups @ (w * counts))
            return (groups @ w) @ means / (PARTITIONS * w.sum())

        found["micro_batch_means"] = micro_batch_means
    found["response_means"] = per_response((mask * H).sum(1) / mask.sum(1).clamp_min(1))
    found["per_response"] = per_response((mask * H).sum(1))
    found["surprisal"] = mean(-scored.series[0].logprobs)
    if batch.sampler_logprobs is not None:
        found["sampler_surprisal"] = mean(-batch.padded("sampler_logprobs"))
    if batch.sampler_entropies is not None:
        found["sampler_entropy"] = mean(batch.padded("sampler_entropies"))
    last = mask * (mask.flip(1).cumsum(1).flip(1) == 1)
    ended = torch.tensor([int(r[-1]) in policy.eos_token_ids for r in batch.response_ids])
    if bool(ended.any()):
        found["without_end"] = mean(H, mask - last * ended[:, None])
        if not bool(ended.all()):
            found["finished"] = mean(H, mask * ended[:, None])
    threshold = H[mask > 0].quantile(1 - TOP)
    above = mean((H - threshold).clamp_min(0) / TOP)
    found["top_tokens"] = lambda w: threshold + above(w)  # its derivative in the threshold is 0
    found |= {name: mean(x) for name, x in _other_distributions(ready, batch)}
    trusted = not weighted or scored.trust.verdict == "trust"
    return found, spread, trusted, scored.trust.warnings if weighted else ()


def _other_distributions(ready: Prepared, batch: Rollouts) -> Iterator[tuple[str, Tensor]]:
    """Entropies (n, t) at temperature 1, of a truncated sampler, and in bfloat16."""
    policy, section = ready.policy, ready.entropies
    if policy.temperature != 1:
        with _at_temperature(policy, 1.0):
            yield "temperature_1", score(policy, batch).entropies
    if section.top_k or section.top_p < 1:
        yield "truncated", truncated_entropies(policy, batch, section.top_k, section.top_p)
    if _in_16_bits(ready):
        with at_precision(policy, "bfloat16"):
            yield "bfloat16", score(policy, batch).entropies


def _in_16_bits(ready: Prepared) -> bool:
    arguments = ready.subject.as_trained.arguments
    given = ready.entropies.bfloat16
    return bool(arguments.get("bf16") or arguments.get("fp16")) if given is None else given


@contextmanager
def _at_temperature(policy: Policy, temperature: float) -> Iterator[None]:
    before, policy.temperature = policy.temperature, temperature
    try:
        yield
    finally:
        policy.temperature = before


def truncated_entropies(policy: Policy, batch: Rollouts, top_k: int, top_p: float) -> Tensor:
    """Entropy at each token of what top-k, and then top-p, leave of the distribution.

    Args:
        policy: The policy.
        batch: n sequences.
        top_k: Entries that are left; 0 for all.
        top_p: Least mass of the entries that are left, the likeliest first.

    Returns:
        (n, t) nats.
    """
    found = torch.zeros(batch.mask.shape, dtype=torch.float64)
    for i in range(len(batch)):
        logits = own_logits(policy.scorer, batch.select(torch.tensor([i])), policy.precision)
        p = (logits.double() / policy.temperature).softmax(-1).sort(-1, descending=True)[0]
        p = p[:, : top_k or None]
        p = p / p.sum(-1, keepdim=True)
        p = p * (p.cumsum(-1) - p < top_p)
        p = p / p.sum(-1, keepdim=True)
        found[i, : len(p)] = torch.special.entr(p).sum(-1).cpu()
    return found * batch.mask


def _micro_batches(ready: Prepared, n: int) -> Tensor | None:
    """Which response is in which micro-batch of each partition; None for a single one."""
    arguments = ready.subject.as_trained.arguments
    size = ready.entropies.micro_batch or int(arguments.get("per_device_train_batch_size") or n)
    if size >= n:
        return None
    rng = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(n, generator=rng) for _ in range(PARTITIONS)])
    count = math.ceil(n / size)
    rows = orders.argsort(1) // size + count * torch.arange(PARTITIONS)[:, None]
    groups = torch.zeros(PARTITIONS * count, n, dtype=torch.float64)
    return groups.scatter_(0, rows, 1.0)


def _estimates(
    ready: Prepared, found: Jackknifed, names: list[str], trusted: bool
) -> dict[str, Estimate]:
    pairs = zip(names, found.values.tolist(), found.standard_errors.tolist(), strict=True)
    return {
        name: Estimate.from_standard_error(
            value,
            se,
            found.n_units,
            unit="nats per sequence" if name == "per_response" else "nats per token",
            method=name,
            confidence=ready.estimator.confidence,
            trusted=trusted,
        )
        for name, value, se in pairs
    }


def _apart(ready: Prepared, one: Estimate, other: Estimate) -> Estimate:
    """The difference of estimates from batches that are drawn independently."""
    return Estimate.from_standard_error(
        one.value - other.value,
        math.hypot(one.se, other.se),
        min(one.n, other.n),
        unit=one.unit,
        method=one.method,
        confidence=ready.estimator.confidence,
        trusted=math.isfinite(one.ci_low) and math.isfinite(other.ci_low),
    )


def _agreeing(
    ready: Prepared, logged: float, rows: dict[Row, Estimate], spread: float | None
) -> dict[Row, bool]:
    """Whether the logged value is a row's; `spread` is None where U is not the batch of the log."""
    # on the logged batch they differ by rounding and by how micro-batches are shuffled, and
    # elsewhere by the errors of the row and of a batch of U's size
    digits = 0.5 * 10.0 ** int(Decimal(repr(logged)).as_tuple().exponent)
    if spread is None:
        found: dict[Row, bool] = {}
        for key, value in rows.items():
            on_U = rows.get(("U", key[1]), value)
            n, se = min(value.n, on_U.n), math.hypot(value.se, on_U.se)
            bound = digits + t_quantile(n - 1, ready.estimator.confidence) * se if n > 1 else 0.0
            found[key] = abs(value.value - logged) <= bound
        return found
    rounding = digits + ROUNDING * abs(logged)
    if short := rows.get(("U", "bfloat16")):
        rounding += 2 * abs(short.value - rows["U", EXACT].value)
    shuffled = {"micro_batch_means": 3 * spread}
    return {
        key: abs(value.value - logged) <= rounding + shuffled.get(key[1], 0.0)
        for key, value in rows.items()
        if key[0] == "U"
    }


def _logged(ready: Prepared) -> tuple[float | None, str | None, bool]:
    """The logged entropy, where it is from, and whether U is the batch that it is of."""
    given, recorded = ready.entropies.logged, ready.sampler.data.U_file is not None
    if given is not None:
        return given, "entropies.logged", recorded
    step = step_of_folder(ready.subject.path.name)
    if step is None:
        return None, None, False
    here = ready.subject.path
    for folder in sorted(here.parent.iterdir(), key=lambda f: step_of_folder(f.name) or 0):
        if (step_of_folder(folder.name) or 0) > step and (found := _entropy_at(folder, step + 1)):
            return found, f"{folder.name}, step {step + 1}, which was taken from here", recorded
    found = _entropy_at(here, step)
    if found is None:
        return None, None, False
    return found, f"{here.name}, step {step}, before which the policy was another", False


def _entropy_at(folder: Path, step: int) -> float | None:
    """The entropy that trainer_state.json has of a step."""
    path = folder / "trainer_state.json"
    if not path.is_file():
        return None
    content = read_json(path, finite=False)
    log = content.get("log_history", []) if isinstance(content, dict) else []
    values = [row["entropy"] for row in log if row.get("step") == step and "entropy" in row]
    return float(values[-1]) if values else None


def _table(records: tuple[EntropyRecord, ...]) -> pd.DataFrame:
    rows = []
    for record in records:
        numbers = {x: getattr(record.value, x) for x in ("value", "se", "ci_low", "ci_high")}
        less = record.difference
        rows.append(
            {"batch": record.batch, "definition": record.definition, "unit": record.value.unit}
            | numbers
            | {
                "difference": math.nan if less is None else less.value,
                "difference_se": math.nan if less is None else less.se,
            }
        )
    return pd.DataFrame(rows)
