"""A verb run on every checkpoint of a configuration, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/<verb>_<name>/
        results.json  config.yaml  <table>.parquet ...  [E.parquet  U.parquet]
    <run folder>/measurements/<verb>_all.parquet      the first table of a study's items
    <run folder>/measurements/<verb>_study.csv        every number of them (`study_table`)

The first of the two tables of `measure` is all.parquet. A folder appears when its work is complete,
and not before. Processes of torchrun share the work on each batch (`Policy.ranks`); each has all
numbers, and the first of them writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from isentrope.config.measure import MeasureConfig
from isentrope.results.result import Result
from isentrope.runs.folder import differences, resolved
from isentrope.runs.study import Item, Run, writing_study
from isentrope.runs.study_table import write_study
from isentrope.system.files import whole_folder
from isentrope.system.manifest import verification
from isentrope.system.processes import from_first, join_processes, world_size
from isentrope.system.progress import Clock, Progress
from isentrope.verbs.plan import require_memory
from isentrope.verbs.precision_stages import at_precision
from isentrope.verbs.prepare import Prepared, prepare_checkpoint

log = logging.getLogger("isentrope")

Verb = Literal["measure", "influence", "kernel", "noise", "variance", "audit", "try", "entropies"]

R = TypeVar("R", bound=Result)

FIXED_PROMPTS = (
    "batch_config.fixed_prompts: errors are over prompts, as if other prompts could be drawn. For "
    "a statement about these prompts alone they are too large."
)

Analyse = Callable[[Prepared, Progress], R]


@dataclass(frozen=True)
class Joined:
    """The table of a verb that is joined over the items of a study.

    Attributes:
        table: Its name in the folder of an item.
        name: Its name in the folder of all of them.
    """

    table: str
    name: str


JOINED: dict[Verb, Joined] = {
    "measure": Joined("sweep", "all"),
    "influence": Joined("sequences", "influence_all"),
    "kernel": Joined("structure", "kernel_all"),
    "noise": Joined("noise", "noise_all"),
    "variance": Joined("variance", "variance_all"),
    "audit": Joined("audit", "audit_all"),
    "try": Joined("trial", "try_all"),
    "entropies": Joined("entropies", "entropies_all"),
}


def run_verb(
    verb: Verb, analyse: Analyse[R], config: MeasureConfig, progress: Progress | None = None
) -> Run[R]:
    """Run a verb on every checkpoint and write what it finds.

    Args:
        verb: Its name, for folders.
        analyse: What it does at one checkpoint, at the measuring precision.
        config: What to do.
        progress: Where to say how far it is.

    Returns:
        The folders and the results.

    Raises:
        ValueError: If the rounded step is asked for, whose parts do not sum to v, a noise scale
            of fewer than four prompt groups, or `try` in several processes.
    """
    join_processes()
    batch = config.batch_config
    if verb == "try" and world_size() > 1:
        raise ValueError(
            "isentrope try runs in one process: its controls share out work as training does. "
            "Start it without torchrun."
        )
    if verb == "noise" and batch.U_file is None and batch.B_U < 4:
        raise ValueError(
            f"A noise scale needs four prompt groups or more, and batch_config.B_U is {batch.B_U}."
        )
    logging.getLogger("isentrope").setLevel(config.output.log_level)
    for difference in differences(config.provenance or {}):
        log.warning("This configuration is of a run with %s.", difference)
    with verification(config.checkpoint.verify), writing_study(verb, config) as study:
        for item in study.left:
            log.info("%s of %s", verb, item.subject.path)
            result = _run_item(
                verb, analyse, item, progress or Progress(), lambda: study.keep(config)
            )
            from_first(partial(result.finish, result, study.folder / "logs"))
        joined = JOINED[verb]
        from_first(lambda: write_study(verb, study, table=joined.table, name=joined.name))
        return from_first(study.run)


def _run_item(
    verb: Verb,
    analyse: Analyse[R],
    item: Item,
    progress: Progress,
    keep_configuration: Callable[[], None],
) -> R:
    config, clock, subject = item.config, Clock(), item.subject
    require_memory(verb, subject.name, subject.path, config)
    ready = prepare_checkpoint(config, item.subject, progress, clock)
    if ready.along is not None and verb != "measure":
        raise ValueError(
            "estimator.rounded_step=true acts in measure: the shares of "
            f"{verb} sum to v, which rounding is no part of. Set it to false."
        )
    timed = nullcontext() if verb == "measure" else clock.stage(verb)  # measure has stages
    with at_precision(ready.policy, config.precision.measuring), timed:
        result = analyse(ready, progress)
    fixed = (FIXED_PROMPTS,) if config.batch_config.fixed_prompts else ()
    warnings = tuple(dict.fromkeys([*ready.step.warnings, *fixed, *result.warnings]))
    result = replace(result, warnings=warnings, timing=dict(clock.seconds))

    def save() -> None:
        with whole_folder(item.target) as here:
            result.save(here)
            _save_inputs(config, ready, here, item.target)
            keep_configuration()  # a folder of results is the last thing that appears

    from_first(save)
    return result


def _save_inputs(config: MeasureConfig, ready: Prepared, folder: Path, target: Path) -> None:
    """Write beside a result what it was made with; the folder gets the target's name."""
    run, seeds = target.parents[1], config.batch_config.seeds
    (folder / "config.yaml").write_bytes(resolved(config, run, target, seeds=seeds))
    if config.batch_config.save_batches:
        ready.batches.E.save(folder / "E.parquet")
        ready.batches.U.save(folder / "U.parquet")
