"""`isentrope entropies`: why an entropy that a trainer logged is not the exact one.

E is unfiltered and drawn from θ; U is the update batch: recorded (batch_config.U_file), or drawn
and filtered as training's. Beside the definitions of `estimators.entropy_definitions` there are

    temperature_1      of logits that are not divided
    truncated          after top-k and top-p
    bfloat16           of a model in bfloat16

results.json       logged, logged_from, rows: value and difference to the exact one as Estimates
entropies.parquet  the same, one row per batch and definition
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor

from isentrope.checkpoint.files import step_of_folder
from isentrope.estimators.entropy_definitions import (
    EXACT,
    definitions,
    half_of_interval,
    mean_of_tokens,
    spread_of_orders,
)
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import score_batch
from isentrope.estimators.skewed import skewed_estimate
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.tables import frame
from isentrope.policy.at_temperature import at_temperature
from isentrope.policy.own_logits import truncated_entropies
from isentrope.policy.scoring import score
from isentrope.results.attributions import EntropyRecord
from isentrope.results.results import EntropiesResult
from isentrope.system.reading import parse_json, read_json
from isentrope.training.run_files import RunFiles, readable_lines
from isentrope.verbs.batches import at_precision
from isentrope.verbs.prepare import Prepared

ROUNDING = 1e-4
"""Relative difference of a logged value from the recorded batch's that is rounding of float32."""


@dataclass(frozen=True)
class _Defined:
    """Definitions on a batch, their differences to the exact one on it, and what they rest on."""

    values: dict[str, Estimate]
    differences: dict[str, Estimate]
    spread: float
    responses: int
    warnings: tuple[str, ...]


def find_entropies(ready: Prepared) -> EntropiesResult:
    """Every definition on E and on U, compared with the logged value."""
    E = _on(ready, ready.E, weighted=True)
    U = _on(ready, ready.U, weighted=False)
    exact = E.values[EXACT]
    confidence = ready.config.estimator.confidence
    logged, source, of_U = _logged(ready)
    rows: list[EntropyRecord] = []
    for batch, defined in {"E": E, "U": U}.items():
        for name, value in defined.values.items():
            difference = agrees = None
            if value.unit == exact.unit:
                on_E = defined is E
                difference = E.differences[name] if on_E else _apart(value, exact, confidence)
            if logged is not None and (defined is U or not of_U):
                agrees = _agrees(logged, value, defined, U, E, of_U)
            rows.append(
                EntropyRecord(
                    batch=batch, definition=name, value=value, difference=difference, agrees=agrees
                )
            )
    return EntropiesResult(
        **vars(ready.header),
        logged=logged,
        logged_from=source,
        rows=tuple(rows),
        warnings=E.warnings,
        tables={"entropies": frame(rows)},
    )


def _on(ready: Prepared, batch: Rollouts, *, weighted: bool) -> _Defined:
    """Definitions on a batch; weighted by policy over sampler, as E is, or as a trainer does."""
    scored = score_batch(ready.policy, batch, EstimatorOptions("token", "sequence"))
    n = len(batch)
    arguments = ready.checkpoint.argument_fields
    section = ready.config.entropies
    size = section.micro_batch or int(arguments.get("per_device_train_batch_size") or n)
    mask = scored.functional.tokens
    entropies = definitions(scored, batch, ready.policy.eos_token_ids, size)
    entropies |= {name: mean_of_tokens(x, mask) for name, x in _other_distributions(ready, batch)}
    ratios = scored.log_ratios.sum(1).exp() if weighted else torch.ones(n).double()
    result = infinitesimal_jackknife(
        lambda w: torch.stack([f(w * ratios) for f in entropies.values()]), batch.prompt_index
    )
    trusted = not weighted or scored.trust.verdict == "trust"
    values: dict[str, Estimate] = {}
    differences: dict[str, Estimate] = {}
    less_exact = result.less(0)
    for row, name in enumerate(entropies):
        options = {
            "unit": "nats per sequence" if name == "per_response" else "nats per token",
            "method": name,
            "confidence": ready.config.estimator.confidence,
            "trusted": trusted,
        }
        values[name] = skewed_estimate(result, row, **options)
        differences[name] = less_exact.estimate(row, **options)
    spread = spread_of_orders(scored, size)
    return _Defined(values, differences, spread, n, scored.trust.warnings)


def _other_distributions(ready: Prepared, batch: Rollouts) -> Iterator[tuple[str, Tensor]]:
    """Entropies (n, t) at temperature 1, of a truncated sampler, and in bfloat16."""
    policy = ready.policy
    section = ready.config.entropies
    arguments = ready.checkpoint.argument_fields
    if policy.temperature != 1:
        with at_temperature(policy, 1.0):
            yield "temperature_1", score(policy, batch).entropies
    if section.top_k or section.top_p < 1:
        yield (
            "truncated",
            truncated_entropies(
                policy.scorer,
                batch,
                policy.precision,
                policy.temperature,
                section.top_k,
                section.top_p,
            ),
        )
    short = section.bfloat16
    if short or (short is None and (arguments.get("bf16") or arguments.get("fp16"))):
        with at_precision(policy, "bfloat16"):
            yield "bfloat16", score(policy, batch).entropies


def _apart(estimate: Estimate, other: Estimate, confidence: float) -> Estimate:
    """The difference of estimates from batches that are drawn independently."""
    return Estimate.from_standard_error(
        estimate.value - other.value,
        math.hypot(estimate.se, other.se),
        min(estimate.n, other.n),
        unit=estimate.unit,
        method=estimate.method,
        confidence=confidence,
        trusted=math.isfinite(other.ci_low),
        degrees_of_freedom=_freedom(estimate, other),
    )


def _freedom(estimate: Estimate, other: Estimate) -> float:
    """Degrees of freedom of a sum: the fewest of its parts."""
    return min(estimate.degrees_of_freedom or 0.0, other.degrees_of_freedom or 0.0)


def _agrees(
    logged: float, value: Estimate, row: _Defined, U: _Defined, E: _Defined, of_U: bool
) -> bool | None:
    """Whether a logged value is within errors of a row; None where the row has no interval."""
    # on the batch of the log by rounding and by how micro-batches are shuffled, and elsewhere by
    # the errors of the row's batch and of another batch of U's size
    bound = 0.5 * 10.0 ** int(Decimal(repr(logged)).as_tuple().exponent)
    if of_U:
        short = U.values.get("bfloat16", U.values[EXACT])
        shuffled = 3 * U.spread if value.method == "micro_batch_means" else 0.0
        bound += ROUNDING * abs(logged) + 2 * abs(short.value - U.values[EXACT].value) + shuffled
    elif math.isfinite(value.ci_low):
        name = value.method
        on_both = [(on.values[name], on.responses) for on in (E, U) if name in on.values]
        above = logged > value.value
        halves = (half_of_interval(on_both, on.responses, above=above) for on in (row, U))
        bound += math.hypot(*halves)
    else:
        return None
    return abs(value.value - logged) <= bound


def _logged(ready: Prepared) -> tuple[float | None, str | None, bool]:
    """The logged entropy, where it is from, and whether U is the batch that it is of."""
    recorded = ready.sampler.data.U_file is not None
    folder = ready.checkpoint.path
    step = ready.checkpoint.step_number
    stated = ready.config.entropies.logged
    if stated is not None:
        return stated, "entropies.logged", recorded
    if step is None:
        return None, None, False
    after = step + 1, "which was taken from here", recorded
    before = step, "before which the policy was another", False
    run = RunFiles(folder.parent.parent)
    if run.checkpoints == folder.parent:  # a log of all steps, whichever checkpoints are kept
        lines = [parse_json(text) for _, text in readable_lines(run.metrics)[0]]
        for at, words, of_U in (after, before):
            if (value := _entropy_at(lines, at)) is not None:
                return value, f"{run.metrics.name}, step {at}, {words}", of_U
    beside = ((step_of_folder(sibling.name) or 0, sibling) for sibling in folder.parent.iterdir())
    later = [(sibling, after) for number, sibling in sorted(beside) if number > step]
    for place, (at, words, of_U) in [*later, (folder, before)]:
        path = place / "trainer_state.json"
        lines = read_json(path, finite=False).get("log_history", []) if path.is_file() else []
        if (value := _entropy_at(lines, at)) is not None:
            return value, f"{place.name}, step {at}, {words}", of_U
    return None, None, False


def _entropy_at(lines: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """The last finite entropy that the lines of a log have at a step."""
    at_step = (line["entropy"] for line in lines if line.get("step") == step and "entropy" in line)
    values = [float(value) for value in at_step if isinstance(value, (int, float))]
    return next((value for value in reversed(values) if math.isfinite(value)), None)
