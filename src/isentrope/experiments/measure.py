"""`isentrope measure`: checkpoints measured one by one, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/measure_<name>/
        results.json  config.yaml  sweep.parquet  entropy_change.png  [E.parquet  U.parquet]
    <run folder>/measurements/all.parquet      the sweeps of several checkpoints, one table
    <run folder>/logs/                         as `detailed_logging` says

A folder appears when its measurement is complete, and not before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.experiments.batches import require_files
from isentrope.experiments.checkpoints import Subject, find_subjects
from isentrope.experiments.config import MeasureConfig
from isentrope.experiments.config_io import dump_config
from isentrope.experiments.detailed_log import DetailedLog
from isentrope.experiments.measurement import Measurement, measure_checkpoint
from isentrope.experiments.progress import Progress
from isentrope.experiments.results import results_of
from isentrope.experiments.run_folder import (
    differences,
    finite,
    parquet,
    require_new,
    run_directory,
    versions,
    whole_folder,
    write_bytes,
    write_json,
)

log = logging.getLogger("isentrope")

FIGURE = "entropy_change.png"


@dataclass(frozen=True)
class Run:
    """What a run of `measure` made.

    Attributes:
        folder: The run folder.
        measurements: Name of each checkpoint → the folder of its results.
        results: The content of each results.json, in the order measured.
    """

    folder: Path
    measurements: dict[str, Path]
    results: list[dict[str, Any]]


def require_inputs(config: MeasureConfig) -> list[Subject]:
    """Refuse a configuration whose files are not there, before any work is done.

    Args:
        config: What to measure.

    Returns:
        The checkpoints.
    """
    require_files(config)
    return find_subjects(config)


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
    subjects = require_inputs(config)
    folder = run_directory(config.output.directory)
    targets = {s.name: folder / "measurements" / f"measure_{s.name}" for s in subjects}
    for target in targets.values():
        require_new(target)
    results = []
    for subject in subjects:
        log.info("measuring %s", subject.path)
        details = DetailedLog(config)
        found = measure_checkpoint(config, subject, progress or Progress(), details.observe)
        results.append(finite(results_of(config, found)))
        with whole_folder(targets[subject.name]) as here:
            _write(config, found, results[-1], here, draw)
            details.write(found, folder / "logs")
        if not (folder / "config.yaml").exists():
            write_bytes(folder / "config.yaml", resolved(config).encode())
    if len(results) > 1:
        write_bytes(folder / "measurements" / "all.parquet", parquet(sweep_table(results)))
    return Run(folder, targets, results)


def sweep_table(results: list[dict[str, Any]]) -> Any:
    """The sweeps of several results as one pandas table.

    Args:
        results: Contents of results.json files.

    Returns:
        One row a checkpoint and rate: `checkpoint`, then the columns of `sweep`.
    """
    import pandas as pd

    rows = [
        {"checkpoint": result["policy"]["name"]}
        | {k: v for k, v in row.items() if k != "resampled"}
        for result in results
        for row in result["sweep"]
    ]
    return pd.DataFrame(rows)


def _write(
    config: MeasureConfig,
    found: Measurement,
    results: dict[str, Any],
    folder: Path,
    draw: Callable[[dict[str, Any]], Any] | None,
) -> None:
    write_json(folder / "results.json", results)
    (folder / "config.yaml").write_text(resolved(config), encoding="utf-8")
    sweep_table([results]).to_parquet(folder / "sweep.parquet")
    if draw is not None:
        draw(results).savefig(folder / FIGURE, dpi=150)
    if config.batch_config.save_batches:
        found.batches.E.save(folder / "E.parquet")
        found.batches.U.save(folder / "U.parquet")


def resolved(config: MeasureConfig) -> str:
    """The configuration with what it was run with; its output folder left to the rerun.

    Args:
        config: What was asked.

    Returns:
        YAML.
    """
    provenance = versions() | {"seeds": config.batch_config.seeds}
    output = config.output.model_copy(update={"directory": None})
    return dump_config(config.model_copy(update={"provenance": provenance, "output": output}))
