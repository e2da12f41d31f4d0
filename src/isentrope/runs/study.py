"""A study: one question put to K checkpoints, and to N fresh update batches at each.

    <run folder>/measurements/<verb>_<name>/               with the first update batch
    <run folder>/measurements/<verb>_<name>_repeat_<r>/    with another, r = 1, 2, ...

E has the same prompts and the same seed everywhere; repeats differ in U alone. Each item has a
configuration of its own, which run by itself gives the same item, so a study that was stopped is
run again: what is done with the same settings is left, the rest is made.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from isentrope.config.measure import MeasureConfig
from isentrope.config.values import inputs_of
from isentrope.results.result import Result, item_name
from isentrope.results.results import load_result
from isentrope.runs.checkpoints import Subject, find_subjects
from isentrope.runs.folder import (
    noted_if_interrupted,
    require_new,
    require_writable,
    resolved_content,
    run_directory,
)
from isentrope.runs.identity import require_same_measurement
from isentrope.runs.one_study import other_base, require_one_contract, require_one_model
from isentrope.runs.one_writer import one_writer
from isentrope.runs.origin import measurement_origin
from isentrope.system.files import write_bytes
from isentrope.system.outputs import require_apart
from isentrope.system.processes import from_first
from isentrope.trainers.as_trained import refuse

log = logging.getLogger("isentrope")

R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Item:
    """One checkpoint with one update batch.

    Attributes:
        subject: The checkpoint.
        repeat: Which update batch, from 0.
        config: What to do for this item alone.
        target: The folder of its results.
        done: Whether they are there already.
    """

    subject: Subject
    repeat: int
    config: MeasureConfig
    target: Path
    done: bool

    @property
    def name(self) -> str:
        """step_40, or step_40_repeat_2."""
        return item_name(self.subject.name, self.repeat)

    def result(self) -> Result:
        """What was found; it must be done."""
        return load_result(self.target)


@dataclass(frozen=True)
class Run(Generic[R]):
    """What a run of a verb made, or found made.

    Attributes:
        folder: The run folder.
        measurements: Name of each item → the folder of its results.
        results: In that order.
    """

    folder: Path
    measurements: dict[str, Path]
    results: list[R]


@dataclass(frozen=True)
class Study:
    """All items of a configuration.

    Attributes:
        folder: The run folder.
        items: Checkpoint by checkpoint, repeat by repeat.
    """

    folder: Path
    items: list[Item]

    def keep(self, config: MeasureConfig) -> None:
        """Write the configuration into the run folder, if it has none."""
        if not (self.folder / "config.yaml").exists():
            filled = {key for item in self.items for key in item.subject.as_trained.filled}
            content = resolved_content(
                config, self.folder, seeds=config.batch_config.seeds, omit=filled
            )
            write_bytes(self.folder / "config.yaml", content)

    def how_to_go_on(self) -> str | None:
        """A sentence for those who stop the study; None where nothing is done yet."""
        if not any(item.target.exists() for item in self.items):
            return None
        return f"Finished items are kept: go on by the same command with --out {self.folder}."

    def run(self) -> Run[Any]:
        """What was made, when all items are done."""
        results = [item.result() for item in self.items]
        return Run(self.folder, {item.name: item.target for item in self.items}, results)

    @property
    def left(self) -> list[Item]:
        """What is still to be done; says how much is there already."""
        left = [item for item in self.items if not item.done]
        if done := len(self.items) - len(left):
            log.info("%d of %d are done already", done, len(self.items))
        return left


def require_inputs(config: MeasureConfig) -> list[Subject]:
    """Refuse a configuration whose files are not there, before any work is done."""
    config.batch_config.require_files("batch_config")
    subjects = find_subjects(config.checkpoint)
    require_one_model(subjects, config.checkpoint.base_model)
    if not config.checkpoint.allow_mixed:
        require_one_contract(subjects)
    return subjects


@contextmanager
def writing_study(verb: str, config: MeasureConfig) -> Iterator[Study]:
    """Plan a study whose run folder nobody else writes into meanwhile."""
    folder = from_first(lambda: run_directory(config.output.directory))
    logs = config.detailed_logging
    if logs.enabled and logs.output_directory is not None:
        require_writable(logs.output_directory, "detailed_logging.output_directory")
        require_apart(logs.output_directory, inputs_of(config))
    with one_writer(folder, inputs_of(config)):
        study = plan_study(verb, config, folder)
        with noted_if_interrupted(study.how_to_go_on):
            yield study


def plan_study(verb: str, config: MeasureConfig, folder: Path | None = None) -> Study:
    """Which items there are in a run folder, and which of them are done."""
    subjects = require_inputs(config)
    folder = folder or run_directory(config.output.directory)
    items = []
    for subject in subjects:
        checkpoint = config.checkpoint.model_copy(update={"checkpoint_path": str(subject.path)})
        for repeat in config.batch_config.repeat_numbers:
            batch = config.batch_config.model_copy(update={"repeats": 1, "first_repeat": repeat})
            alone = config.model_copy(update={"checkpoint": checkpoint, "batch_config": batch})
            alone, settled = alone.as_trained(subject.path)
            target = folder / "measurements" / f"{verb}_{item_name(subject.name, repeat)}"
            made_from = measurement_origin(alone, subject.path, subject.optimizer)
            obstacles = (*settled.obstacles, *other_base(subject.path, made_from))
            refuse(obstacles, settled.ignored, subject.name)
            settled = replace(settled, obstacles=obstacles)
            known = replace(subject, as_trained=settled, made_from=made_from)
            items.append(Item(known, repeat, alone, target, target.exists()))
    for item in items:
        if len(items) == 1:
            require_new(item.target)
        elif item.done:
            require_same_measurement(item.target, item.config, item.subject.made_from)
    return Study(folder, items)
