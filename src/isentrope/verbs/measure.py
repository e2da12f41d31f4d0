"""`isentrope measure`: checkpoints measured one by one, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/measure_<name>/
        results.json  config.yaml  sweep.parquet  influences.parquet  entropy_change.png
        [E.parquet  U.parquet]
    <run folder>/measurements/all.parquet      the sweeps of a study, one table
    <run folder>/measurements/measure_study.csv    every number of it (`study_table`)
    <run folder>/logs/                         as `detailed_logging` says

A folder appears when its measurement is complete, and not before.

Sweeps are printed in one table, with lines for each checkpoint. `EntropyMeasurements` serves
scripts that follow the configuration dictionary of the original notes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from isentrope.checks.rates import describe_group
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.estimators.identities import in_words, p_value
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import Checks, SweepRow
from isentrope.results.verbs import MEASURE, SCHEMAS
from isentrope.runs.study import Run
from isentrope.system.formatting import MISSING, TERMINAL, known
from isentrope.trainers.as_trained import ASSUMED, OURS
from isentrope.update.step import COMPONENTS
from isentrope.verbs.detailed_log import detailed_log
from isentrope.verbs.loop import Draw, run_verb
from isentrope.verbs.measurement import Measurement, measure_checkpoint
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.price import price_lines
from isentrope.verbs.printed import Column, Printed, Table, bounds, ends, named, number, text
from isentrope.verbs.results import measure_result


def measure(config: MeasureConfig, *, draw: Draw | None = None) -> Run[MeasureResult]:
    """Measure every checkpoint of a configuration and write what was found.

    Args:
        config: What to measure.
        draw: Makes a figure (with `savefig`) of a result; None for no figure.

    Returns:
        The folders and the results.
    """
    return run_verb(MEASURE, config, draw)


def find_change(ready: Prepared) -> MeasureResult:
    """Measure ΔH(η) at a checkpoint.

    Args:
        ready: The checkpoint, at the measuring precision.

    Returns:
        The result; its log is written when its folder is complete.
    """
    measured = measure_checkpoint(ready)
    with ready.clock.stage("log"):
        log = detailed_log(measured)
    result = measure_result(measured)
    tables = {"sweep": sweep_table(result)}
    if measured.influences:
        tables["influences"] = influence_table(measured)
    return replace(result, tables=tables, finish=log)


def influence_table(measured: Measurement) -> pd.DataFrame:
    """Influences of E's prompt draws: quantity (as in results.json), prompt, key and influence."""
    E = measured.ready.E
    keys = dict(zip(E.prompt_index.tolist(), E.prompt_keys or (), strict=False))
    draws = sorted({*E.prompt_index.tolist()})
    head = {"prompt": draws, "key": [keys.get(draw) for draw in draws]}
    parts = [
        pd.DataFrame({"quantity": name, **head, "influence": x.tolist()})
        for name, x in measured.influences.items()
    ]
    return pd.concat(parts, ignore_index=True)


def sweep_table(result: MeasureResult) -> pd.DataFrame:
    """The sweep as a table.

    Args:
        result: Of one checkpoint.

    Returns:
        One row per learning rate: `checkpoint`, then the columns of `sweep`, then delta_j with its
        error and reward_verdict where ΔJ was measured.
    """
    rows = []
    for row in result.sweep:
        gained = result.reward.at(row.eta) if result.reward else None
        of_reward = {} if gained is None else vars(gained) | {"reward_verdict": gained.verdict}
        rows.append({"checkpoint": result.policy.name} | of_reward | vars(row))
    table = pd.DataFrame(rows)
    return table[[name for name in SCHEMAS["sweep"].columns if name in table]]


COLUMNS = {
    "η": 0,
    "ΔH ± se": 0,
    "interval": 1,
    "first order": 2,
    "first + second": 4,
    "ESS": 3,
    "k̂": 5,
    "verdict": 0,
}
"""Headings of a sweep, and their ranks: the largest is left out first."""


def printed_measurements(results: Sequence[MeasureResult]) -> Printed:
    """One table for all checkpoints, whose results are in one unit, and what goes with each."""
    title = f"Change of entropy ΔH(η) in {results[0].unit}"
    if any(s.source == ASSUMED for result in results for s in result.settings.keys.values()):
        title += ", of a step with assumed settings (note)"
    columns = [Column(head, k, rank) for k, (head, rank) in enumerate(COLUMNS.items(), 1)]
    if len(results) > 1:
        columns.insert(0, Column("checkpoint", 0, left=True))
    yield Table(title, [cells for result in results for cells in _rows(result)], columns)
    for result in results:
        yield from summary_lines(result)


def _rows(result: MeasureResult) -> Iterator[tuple[str, ...]]:
    """Cells of each learning rate, and below it those of fresh responses."""
    for row in result.sweep:
        yield (result.policy.name, *_cells(row, result.batches.B_E))
        if fresh := row.resampled:
            yield ("", "", text(fresh), ends(fresh), "", "", "", "", "resampled")


def _cells(row: SweepRow, n: int) -> tuple[str, ...]:
    ess, khat = known(row.effective_size), known(row.khat)
    return (
        f"{row.eta:.3g}",
        TERMINAL.with_error(row.delta_h, row.delta_h_se),
        bounds(row.delta_h_ci_low, row.delta_h_ci_high),
        number(row.first_order),
        number(row.first_order + row.second_order),
        MISSING if ess is None else f"{ess:.0f}/{n}",
        MISSING if khat is None else f"{khat:.2f}",
        row.verdict,
    )


def summary_lines(result: MeasureResult) -> Iterator[str]:
    """What goes with a table: entropy, linear range, checks, warnings."""
    yield f"{result.policy.name}:"
    for group in result.step.param_groups:
        yield f"  param group  {describe_group(group)}"
    for kind in ("per_token", "per_sequence"):
        entropy = result.entropy[kind]
        yield f"  entropy      {text(entropy)} {entropy.unit}"
    yield from _range_line(result)
    yield from _order_lines(result)
    yield from reward_lines(result)
    yield from price_lines(result)
    yield from settings_line(result)
    identities = "; ".join(identity_words(result.checks))
    floor = number(result.checks.rounding_floor.log_weight)
    yield f"  checks       {identities}; rounding {floor} nats per sequence"
    for sentence in result.warnings:
        yield f"  note         {sentence}"


def _range_line(result: MeasureResult) -> Iterator[str]:
    reach = result.linear_range
    if reach is None or known(reach.value) is None:
        return
    interval = ends(reach) if ends(reach) != MISSING else "no interval"
    line = f"  linear range η* = {number(reach.value)} {interval}"
    if (ratio := reach.rate_over_range) is not None:
        line += f"; the training rate {result.rate:.3g} is {ratio:.2g} of it"
    yield line


def _order_lines(result: MeasureResult) -> Iterator[str]:
    first, pathwise = result.first_order, result.pathwise
    if first is None or pathwise is None:
        return
    yield (
        f"  first order  {text(first)} {first.unit}; at fixed samples (what an entropy bonus "
        f"sees) {text(pathwise)}"
    )
    yield f"  of which     {named({name: result.part(name) for name in COMPONENTS})}"


def reward_lines(result: MeasureResult) -> Iterator[str]:
    """Expected reward, its change at the training rate, and where its parabola is highest."""
    reward = result.reward
    if reward is None:
        return
    line = f"  reward       J {text(reward.at_theta)}"
    if (row := reward.at(result.rate)) is not None:
        change = TERMINAL.with_error(row.delta_j, row.delta_j_se)
        interval = bounds(row.delta_j_ci_low, row.delta_j_ci_high)
        line += f"; at η = {row.eta:.3g} ΔJ {change} {interval}"
    if reward.top is not None:
        line += f"; highest at η = {number(reward.top.value)} {ends(reward.top)}"
    yield line


def identity_words(checks: Checks) -> list[str]:
    """Each identity that was tested, with its verdict."""
    identities = {"score identity": checks.score_identity_z, "martingale": checks.martingale_z}
    tested = {name: z for name, z in identities.items() if z is not None}
    return [
        f"{name} z = {number(z)} ({in_words(p_value(z), len(tested))})"
        for name, z in tested.items()
    ]


def settings_line(result: MeasureResult) -> Iterator[str]:
    """What was taken from the checkpoint's own files, in a line; no line where nothing was."""
    settings = result.settings.keys
    taken = {key: setting for key, setting in settings.items() if setting.source not in OURS}
    if taken:
        values = ", ".join(f"{key.split('.')[1]} {x.value}" for key, x in taken.items())
        files = ", ".join(dict.fromkeys(setting.source for setting in taken.values()))
        yield f"  as trained   {values} ({files})"


log = logging.getLogger("isentrope")


class EntropyMeasurements:
    """A measurement described by a dictionary, or by the path of a YAML file.

    Attributes:
        config: The configuration, checked, defaults filled in.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path | MeasureConfig) -> None:
        """Check the configuration.

        Args:
            config: Sections and keys as `isentrope config show` prints them, or a YAML file.
        """
        self.config = config if isinstance(config, MeasureConfig) else load_config(config)

    def run_experiments(self) -> dict[str, Any]:
        """Measure and write the run folder.

        Returns:
            The content of results.json, with "B_E", "B_U" and "run_folder" at the top as well;
            of several checkpoints {"measurements": [one such dictionary each], "run_folder": …}.
        """
        run = measure(self.config)
        for result in run.results:
            for sentence in result.warnings:
                log.warning("%s: %s", result.policy.name, sentence)
        each = [
            result.to_dict() | {"B_E": result.batches.B_E, "B_U": result.batches.B_U}
            for result in run.results
        ]
        content = each[0] if len(each) == 1 else {"measurements": each}
        return content | {"run_folder": str(run.folder)}
