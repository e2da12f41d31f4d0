"""A study: one question put to K checkpoints, and to N fresh update batches at each.

    <run folder>/measurements/<verb>_<name>/               with the first update batch
    <run folder>/measurements/<verb>_<name>_repeat_<r>/    with another, r = 1, 2, ...

E has the same prompts and the same seed everywhere; repeats differ in U alone. Each item has a
configuration of its own, which run by itself gives the same item, so a study that was stopped is
run again: what is done with the same settings is left, the rest is made.

Checkpoints of one study share the base model, the settings of its architecture, the shapes of
their adapters and the tokenizer. Otherwise a curve over them would join what does not belong
together: it is refused by the names of two checkpoints and of what differs. Those of two runs may
be measured together if their contracts agree in all that makes the measured step.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from isentrope.checkpoint.checkpoint import Checkpoint, Subject, find_subjects
from isentrope.checkpoint.digests import Digests
from isentrope.checkpoint.files import ADAPTER, CONTRACT, CheckpointFolder
from isentrope.checkpoint.infer.as_trained import refuse
from isentrope.checkpoint.infer.fields import FIELDS
from isentrope.checkpoint.infer.settings import Obstacle
from isentrope.checkpoint.record.contract import contract_of
from isentrope.config.measure import MeasureConfig
from isentrope.config.values import inputs_of
from isentrope.results.result import Result, item_name
from isentrope.results.verbs import MEASURE
from isentrope.run.folder import noted_if_interrupted, one_writer, resolved_content, run_directory
from isentrope.run.identity import (
    OF_THE_STEP,
    Content,
    changed,
    flat_settings,
    require_same_measurement,
)
from isentrope.run.origin import changed_parts, measurement_origin
from isentrope.system.files import write_bytes
from isentrope.system.manifest import file_digest
from isentrope.system.outputs import require_apart, require_writable
from isentrope.system.reading import read_json

log = logging.getLogger("isentrope")

_HARMLESS = [name for name, field in FIELDS.items() if field.treatment == "harmless"]
"""Fields of the trainer that do not change the step, or only through the optimizer."""

_RATES = ("lr", "initial_lr")
"""Settings of a param group that a schedule changes along a run."""

_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
"""Settings of a model that say how it was saved, not what it is."""

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
        return Result.load(self.target)


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


def require_one_model(checkpoints: Sequence[Checkpoint], base_model: str | None) -> None:
    """Refuse checkpoints of different models.

    Args:
        checkpoints: At least one.
        base_model: Base of all adapters, where the one that they name is not to be used.

    Raises:
        ValueError: Naming two checkpoints and what differs between them.
    """
    first, *others = checkpoints
    known = _description(first.path, base_model)
    for other in others:
        here = _description(other.path, base_model)
        both = [aspect for aspect in known if known[aspect] and here[aspect]]
        a, b = (flat_settings({aspect: x[aspect] for aspect in both}) for x in (known, here))
        if keys := changed(a, b):
            aspect, _, key = keys[0].partition(".")
            words = f"differ in their {aspect} ({key}: {a.get(keys[0])} and {b.get(keys[0])})"
        elif set(both) <= {"tokenizer"}:
            words = "cannot be compared, as one is an adapter whose base model is not here"
        else:
            continue
        raise ValueError(
            f"The checkpoints {first.name} ({first.path}) and {other.name} ({other.path}) are not "
            f"of one model: they {words}. Evaluate them in studies of their own, each with its own "
            "--out."
        )


def _description(path: Path, base_model: str | None) -> dict[str, dict[str, Any]]:
    """What a checkpoint is, by aspect; empty where its files do not tell."""
    folder = CheckpointFolder(path)
    name, base, shapes = None, path, {}
    if settings := folder.adapter:
        name = base_model or settings.get("base_model_name_or_path")
        base = Path(name or path)
        shapes = {key: tuple(shape) for key, (_, shape) in folder.header(ADAPTER).items()}
    config = base / "config.json"
    tokenizers = [at / "tokenizer.json" for at in (path, base)]
    own = next((file for file in tokenizers if file.is_file()), None)  # the base's counts without
    return {
        "base model": {"name": name} if name else {},
        "adapter": shapes,
        "architecture": _without(read_json(config) if config.is_file() else {}, _VOLATILE),
        "tokenizer": {own.name: file_digest(own)} if own else {},
    }


def require_one_contract(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse checkpoints of runs whose configurations differ in what makes the measured step.

    Args:
        checkpoints: Of one study; those without a contract are not compared.

    Raises:
        ValueError: Naming two checkpoints and what differs.
    """
    known = [(c.path, _of_the_step(x)) for c in checkpoints if (x := contract_of(c.path))]
    for path, own in known[1:]:
        first, settings = known[0]
        for key in sorted(own.keys() & settings.keys()):
            if own[key] != settings[key]:
                raise ValueError(
                    f"The checkpoints {first} and {path} are of runs that trained differently: "
                    f"{key} was {settings[key]!r} and {own[key]!r}. Measure them in studies of "
                    "their own, each with its own --out, or set checkpoint.allow_mixed=true, which "
                    "puts steps of unlike training into one table."
                )


def other_base(checkpoint: Path, made_from: Digests) -> list[Obstacle]:
    """Whether the base model under an adapter is another than training had.

    Returns:
        One obstacle, or none; none where the contract does not say.
    """
    recorded = contract_of(checkpoint).get("made_from", {})
    parts = [part for part in changed_parts(recorded, made_from) if part.startswith("base ")]
    if not parts:
        return []
    words = f"the {' and '.join(parts)} under the adapter differ from training's ({CONTRACT})"
    return [Obstacle("base_model", words)]


def _of_the_step(contract: Content) -> dict[str, Any]:
    settings = {key: contract[key] for key in OF_THE_STEP if key in contract}
    if "param_groups" in contract:
        settings["param_groups"] = [_without(group, _RATES) for group in contract["param_groups"]]
    if "config" in contract:
        settings["trainer"] = _without(contract["config"].get("trainer", {}), _HARMLESS)
    return settings


def _without(content: Content, names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in names}


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
    folder = run_directory(config.output.directory)
    logs = config.detailed_logging
    if logs.enabled and verb == MEASURE.name:
        require_writable(
            logs.output_directory or folder / "logs", "detailed_logging.output_directory"
        )
    if logs.enabled and logs.output_directory is not None:
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
        if item.done and len(items) == 1:
            raise FileExistsError(
                f"{item.target} holds results already: choose another --out, or remove it."
            )
        if item.done:
            require_same_measurement(item.target, item.config, item.subject.made_from)
    return Study(folder, items)
