"""`isentrope measure`: checkpoints measured one by one, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/measure_<name>/
        results.json  config.yaml  sweep.parquet  entropy_change.png  [E.parquet  U.parquet]
    <run folder>/measurements/all.parquet      the sweeps of a study, one table
    <run folder>/measurements/measure_study.csv    every number of it (`study_table`)
    <run folder>/logs/                         as `detailed_logging` says

A folder appears when its measurement is complete, and not before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isentrope.config.measure import MeasureConfig
from isentrope.files import finite, whole_folder, write_json
from isentrope.pipelines.detailed_log import DetailedLog
from isentrope.pipelines.measurement import Measurement, measure_checkpoint
from isentrope.pipelines.results import results_of
from isentrope.progress import Progress
from isentrope.runs.folder import differences
from isentrope.runs.study import Run, resolved, writing_study
from isentrope.runs.study_table import write_study

log = logging.getLogger("isentrope")

FIGURE = "entropy_change.png"


def measure(
    config: MeasureConfig,
    *,
    progress: Progress | None = None,
    draw: Callable[[dict[str, Any]], Any] | None = None,
) -> Run:
    """Measure every checkpoint of a configuration and write what was found.

    Args:
        config: What to measure.
        progress: Where to say how far it is.
        draw: Makes a figure (with `savefig`) of the results; None for no figure.

    Returns:
        The folders and the results.
    """
    logging.getLogger("isentrope").setLevel(config.output.log_level)
    for difference in differences(config.provenance or {}):
        log.warning("This configuration is of a run with %s.", difference)
    with writing_study("measure", config) as study:
        for item in study.left:
            log.info("measuring %s", item.subject.path)
            details = DetailedLog(item.config)
            found = measure_checkpoint(
                item.config, item.subject, progress or Progress(), details.observe
            )
            with whole_folder(item.target) as here:
                _write(item.config, found, finite(results_of(item.config, found)), here, draw)
            details.write(found, study.folder / "logs")
            study.keep(config)
        write_study("measure", study, table="sweep", name="all")
        return study.run()


def _sweep(results: dict[str, Any]) -> Any:
    """One row a rate: `checkpoint`, then the columns of `sweep`."""
    import pandas as pd

    rows = [{k: v for k, v in row.items() if k != "resampled"} for row in results["sweep"]]
    return pd.DataFrame([{"checkpoint": results["policy"]["name"]} | row for row in rows])


def _write(
    config: MeasureConfig,
    found: Measurement,
    results: dict[str, Any],
    folder: Path,
    draw: Callable[[dict[str, Any]], Any] | None,
) -> None:
    write_json(folder / "results.json", results)
    (folder / "config.yaml").write_text(resolved(config), encoding="utf-8")
    _sweep(results).to_parquet(folder / "sweep.parquet")
    if draw is not None:
        draw(results).savefig(folder / FIGURE, dpi=150)
    if config.batch_config.save_batches:
        found.batches.E.save(folder / "E.parquet")
        found.batches.U.save(folder / "U.parquet")
