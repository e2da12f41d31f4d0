"""`isentrope measure`: checkpoints measured one by one, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/measure_<name>/
        results.json  config.yaml  sweep.parquet  influences.parquet  entropy_change.png
        [E.parquet  U.parquet]
    <run folder>/measurements/all.parquet      the sweeps of a study, one table
    <run folder>/measurements/measure_study.csv    every number of it (`study_table`)
    <run folder>/logs/                         as `detailed_logging` says

A folder appears when its measurement is complete, and not before.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from isentrope.config.measure import MeasureConfig
from isentrope.results.columns import SCHEMAS
from isentrope.results.results import MeasureResult
from isentrope.results.verbs import MEASURE
from isentrope.runs.study import Run
from isentrope.system.progress import Progress
from isentrope.verbs.detailed_log import DetailedLog
from isentrope.verbs.loop import Draw, run_verb
from isentrope.verbs.measurement import Measurement, measure_checkpoint
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.results import measure_result


def measure(
    config: MeasureConfig, *, progress: Progress | None = None, draw: Draw | None = None
) -> Run[MeasureResult]:
    """Measure every checkpoint of a configuration and write what was found.

    Args:
        config: What to measure.
        progress: Where to say how far it is.
        draw: Makes a figure (with `savefig`) of a result; None for no figure.

    Returns:
        The folders and the results.
    """
    return run_verb(MEASURE, config, progress, draw)


def find_change(ready: Prepared, progress: Progress) -> MeasureResult:
    """Measure ΔH(η) at a checkpoint.

    Args:
        ready: The checkpoint, at the measuring precision.
        progress: Where to say how far it is.

    Returns:
        The result; its log is written when its folder is complete.
    """
    measured = measure_checkpoint(ready, progress)
    with ready.clock.stage("log"):
        log = DetailedLog(measured)
    result = measure_result(measured)
    tables = {"sweep": sweep_table(result)}
    if measured.influences:
        tables["influences"] = influence_table(measured)
    return replace(result, tables=tables, finish=log.write)


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
