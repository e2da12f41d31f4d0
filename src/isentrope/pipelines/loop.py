"""A verb run on every checkpoint of a configuration, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/<verb>_<name>/
        results.json  config.yaml  <table>.parquet ...  [E.parquet  U.parquet]
    <run folder>/measurements/<verb>_all.parquet      the first table of a study's items
    <run folder>/measurements/<verb>_study.csv        every number of them (`study_table`)

A folder appears when its work is complete, and not before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from isentrope.config.measure import MeasureConfig
from isentrope.estimate import Estimate
from isentrope.files import finite, whole_folder, write_json
from isentrope.pipelines.precision_stages import at_precision
from isentrope.pipelines.prepare import Prepared, prepare_checkpoint
from isentrope.pipelines.results import batches_of, step_of
from isentrope.progress import Clock, Progress
from isentrope.runs.folder import versions
from isentrope.runs.study import Item, Run, resolved, writing_study
from isentrope.runs.study_table import write_study

log = logging.getLogger("isentrope")

Verb = Literal["influence", "kernel", "noise", "audit", "try"]

FIRST_TABLE: dict[Verb, str] = {
    "influence": "sequences",
    "kernel": "structure",
    "noise": "noise",
    "audit": "audit",
    "try": "trial",
}
"""The table of each verb that is joined over the items of a study."""


@dataclass(frozen=True)
class Found:
    """What a verb found at one checkpoint.

    Attributes:
        results: Its own part of results.json; Estimates are written as dictionaries.
        tables: Written as parquet, by name.
        save: Writes whatever else there is into the folder.
        warnings: Sentences on what limits the use of the numbers.
    """

    results: dict[str, Any]
    tables: dict[str, pd.DataFrame]
    save: Callable[[Path], object] = lambda _: None
    warnings: list[str] = field(default_factory=list)


Analyse = Callable[[MeasureConfig, Prepared, Progress], Found]


def run_verb(
    verb: Verb, analyse: Analyse, config: MeasureConfig, progress: Progress | None = None
) -> Run:
    """Run a verb on every checkpoint and write what it finds.

    Args:
        verb: Its name, for folders and schema.
        analyse: What it does at one checkpoint, at the measuring precision.
        config: What to do.
        progress: Where to say how far it is.

    Returns:
        The folders and the results.

    Raises:
        ValueError: If the rounded step is asked for, whose parts do not sum to v.
    """
    logging.getLogger("isentrope").setLevel(config.output.log_level)
    with writing_study(verb, config) as study:
        for item in study.left:
            log.info("%s of %s", verb, item.subject.path)
            _run_item(verb, analyse, item, progress or Progress())
            study.keep(config)
        write_study(verb, study, table=FIRST_TABLE[verb], name=f"{verb}_all")
        return study.run()


def _run_item(verb: Verb, analyse: Analyse, item: Item, progress: Progress) -> None:
    config, clock = item.config, Clock()
    ready = prepare_checkpoint(config, item.subject, progress, clock)
    if ready.along is not None:
        raise ValueError(
            "estimator.rounded_step=true acts in measure: the shares of "
            f"{verb} sum to v, which rounding is no part of. Set it to false."
        )
    with clock.stage(verb), at_precision(ready.policy, config.precision.measuring):
        found = analyse(config, ready, progress)
    said = _head(verb, config, ready, clock) | plain(found.results)
    said["warnings"] = list(dict.fromkeys([*ready.step.warnings, *found.warnings]))
    with whole_folder(item.target) as here:
        _write(config, ready, found, said, here)


def plain(content: Any) -> Any:
    """The same content with estimates as dictionaries and None for what JSON cannot hold.

    Args:
        content: Dictionaries, lists, numbers, texts and estimates.

    Returns:
        A copy.
    """
    if isinstance(content, Estimate):
        return finite(content.to_dict())
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list):
        return [plain(value) for value in content]
    return finite(content)


def _head(verb: Verb, config: MeasureConfig, ready: Prepared, clock: Clock) -> dict[str, Any]:
    estimator = config.estimator
    return {
        "schema": f"isentrope/{verb}/1",
        "policy": finite(ready.described),
        "batches": finite(batches_of(ready.batches)),
        "estimator": {
            "functional": estimator.functional,
            "method": estimator.method,
            "confidence": estimator.confidence,
        },
        "settings": plain(ready.subject.as_trained.to_dict()),
        "step": finite(step_of(config, ready.step) | ready.facts),
        "timing": dict(clock.seconds),
        "provenance": versions() | {"seeds": config.batch_config.seeds},
    }


def _write(
    config: MeasureConfig, ready: Prepared, found: Found, said: dict[str, Any], folder: Path
) -> None:
    write_json(folder / "results.json", said)
    (folder / "config.yaml").write_text(resolved(config), encoding="utf-8")
    for name, table in found.tables.items():
        table.to_parquet(folder / f"{name}.parquet")
    found.save(folder)
    if config.batch_config.save_batches:
        ready.batches.E.save(folder / "E.parquet")
        ready.batches.U.save(folder / "U.parquet")
