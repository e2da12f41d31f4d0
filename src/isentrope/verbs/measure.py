"""`isentrope measure`: how much the next step of each checkpoint changes entropy.

    <run folder>/config.yaml
    <run folder>/measurements/measure_<name>/
        results.json  config.yaml  sweep.parquet  influences.parquet  entropy_change.png
        [E.parquet  U.parquet]
    <run folder>/measurements/all.parquet      the sweeps of a study, one table
    <run folder>/measurements/measure_study.csv    every number of it (`study_table`)
    <run folder>/logs/                         as `detailed_logging` says

A folder appears when its measurement is complete, and not before. Keys of results.json are listed
in `results.sweep`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from isentrope.estimators.entropy_change import EntropyChange, change_of_sample
from isentrope.estimators.functional import Functionals
from isentrope.estimators.means import too_few_for_modes
from isentrope.estimators.reward_change import RewardChange
from isentrope.estimators.sweep import SweepRow, orders_at
from isentrope.nouns.choices import Functional
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.tables import frame, frame_of_columns
from isentrope.policy.ratio_test import Z_LIMIT
from isentrope.results.answers.measure import AT_RATE
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import LinearRange, RewardRecord, RewardRow, SweepLine
from isentrope.results.tables import InfluenceRow
from isentrope.verbs.detailed_log import detailed_log
from isentrope.verbs.measurement import Measurement, measure_checkpoint
from isentrope.verbs.prepare import Prepared


def find_change(ready: Prepared) -> MeasureResult:
    """Measure ΔH(η) at a checkpoint.

    Args:
        ready: The checkpoint, at the measuring precision.

    Returns:
        The result, which writes its log when it is saved.
    """
    measurement = measure_checkpoint(ready)
    with ready.clock.stage("log"):
        write_log = detailed_log(measurement)
    header = ready.header
    change = measurement.change
    rate = ready.rate
    estimator = replace(
        header.estimator,
        method=ready.config.estimator.method,
        order=0 if measurement.withheld else ready.config.estimator.order,
        unit=change.entropy.unit,
    )
    linear_range = None
    if (reach := change.linear_range) is not None:
        over = rate / reach.value if reach.value else None
        linear_range = LinearRange(**vars(reach), rate_over_range=over)
    sweep = tuple(_make_rows(measurement))
    reward = None if measurement.reward is None else _record_reward(measurement.reward)
    return MeasureResult(
        **vars(header)
        | {"estimator": estimator, "step": replace(header.step, rate_of_interest=rate)},
        entropy=_entropy_at_theta(change, header.estimator.confidence),
        first_order=change.first_order,
        pathwise=change.pathwise,
        second_order=change.second_order,
        sweep=sweep,
        linear_range=linear_range,
        budget=measurement.budget,
        checks=measurement.checks,
        reward=reward,
        price=measurement.price,
        frontier=measurement.frontier,
        warnings=tuple(_list_warnings(measurement)),
        tables=_make_tables(measurement, sweep, reward),
        write_log=write_log,
    )


def _entropy_at_theta(change: EntropyChange, confidence: float) -> dict[str, Estimate]:
    """Both functionals at θ, from the scores at hand, by name."""
    other: Functional = "per_token" if change.functional == "per_sequence" else "per_sequence"
    f = Functionals(other, "prefix", change.sample.functional.tokens)
    sample = replace(change.sample, functional=f, series=change.sample.series[:1])
    entropy = change_of_sample(sample, [], [], confidence=confidence).entropy
    return dict(sorted({change.functional: change.entropy, other: entropy}.items()))


def _list_warnings(measurement: Measurement) -> Iterator[str]:
    """Sentences on what limits the use of the numbers."""
    change = measurement.change
    checks = measurement.checks
    yield from (*measurement.withheld, *measurement.no_reward, *measurement.no_frontier)
    if measurement.reward and not measurement.reward.points:
        yield (
            'ΔJ(η) is measured by importance weights, and method "resampled" has none: the '
            "two orders of J are given without it."
        )
    for name in ("martingale_z", "score_identity_z"):
        z = getattr(checks, name)
        if z is not None and abs(z) > Z_LIMIT:
            yield (
                f"{name} = {z:.1f}: E was not drawn from the policy that is scored, or only from a "
                "part of it; run isentrope check."
            )
    general = too_few_for_modes(change.entropy.n)
    for sentence in change.entropy.warnings:
        if sentence not in general:
            yield f"At θ: {sentence}"
    if (reach := change.linear_range) and math.isfinite(reach.ci_low):
        for sentence in reach.warnings:
            yield f"Linear range η*: {sentence}"
    by_sentence: dict[str, list[str]] = {}
    for eta, estimate in (*((p.eta, p.change) for p in change.points), *measurement.fresh.items()):
        for sentence in estimate.warnings:
            by_sentence.setdefault(sentence, []).append(f"{eta:g}")
    for sentence, etas in by_sentence.items():
        yield f"{AT_RATE}{', '.join(etas)}: {sentence}"
    for point in measurement.reward.points if measurement.reward else ():
        for sentence in point.change.warnings:
            if sentence not in by_sentence:
                yield f"ΔJ: {sentence}"
    smallest = checks.rounding_floor.smallest_eta or 0.0
    if below := sum(eta < smallest for eta in measurement.etas):
        yield (
            f"{below} learning rates lie below {smallest:.2g}, where ΔH is below three times "
            "the rounding floor or θ + ηv is rounded to a step more than 1 % off: use "
            "precision.runtime_dtype=float64 or larger rates."
        )


def _make_rows(measurement: Measurement) -> Iterator[SweepRow]:
    """One row per learning rate: by weights, or where there are none by fresh responses."""
    change = measurement.change
    for point in change.points:
        yield SweepRow.from_point(point, measurement.fresh.get(point.eta))
    for eta, fresh in measurement.fresh.items() if not change.points else ():
        verdict = "trust" if math.isfinite(fresh.ci_low) else "smooth"  # that of one prompt
        orders = orders_at(eta, change.first_order, change.second_order, change.unit)
        yield SweepRow(eta=eta, change=fresh, **orders, verdict=verdict, method=fresh.method)


def _record_reward(gained: RewardChange) -> RewardRecord:
    """ΔJ(η), one row per learning rate."""
    rows: list[RewardRow] = []
    for point in gained.points:
        row = RewardRow(
            eta=point.eta,
            change=point.change,
            first_order=point.first_order,
            second_order=point.second_order,
            residual=point.residual,
            verdict=point.verdict,
        )
        rows.append(row)
    return RewardRecord(
        first_order=gained.first_order,
        second_order=gained.second_order,
        top=gained.top,
        no_top=gained.no_top,
        at_theta=gained.reward,
        sweep=tuple(rows),
    )


def _make_tables(
    measurement: Measurement, sweep: tuple[SweepRow, ...], reward: RewardRecord | None
) -> dict[str, pd.DataFrame]:
    """The sweep by learning rate, ΔJ in the same rows, and influences by E's prompt draws."""
    lines = []
    for row in sweep:
        line = SweepLine(**vars(row), checkpoint=measurement.ready.checkpoint.name)
        if reward is not None and (gained := reward.at(row.eta)) is not None:
            line = replace(line, gained=gained.change, reward_verdict=gained.verdict)
        lines.append(line)
    tables = {"sweep": frame(lines)}
    if measurement.influences:
        tables["influences"] = _tabulate_influences(measurement)
    return tables


def _tabulate_influences(measurement: Measurement) -> pd.DataFrame:
    """The influence of each of E's prompts on each number."""
    E = measurement.ready.E
    keys = dict(zip(E.prompt_index.tolist(), E.prompt_keys or (), strict=False))
    prompts = sorted({*E.prompt_index.tolist()})
    tables: list[pd.DataFrame] = []
    for name, influences in measurement.influences.items():
        columns = {
            "quantity": name,
            "prompt": prompts,
            "key": [*map(keys.get, prompts)],
            "influence": influences.tolist(),
        }
        tables.append(frame_of_columns(InfluenceRow, columns))
    return pd.concat(tables, ignore_index=True)
