"""A study: one question put to K checkpoints, and to N fresh update batches at each.

    <run folder>/measurements/<verb>_<name>/               with the first update batch
    <run folder>/measurements/<verb>_<name>_repeat_<r>/    with another, r = 1, 2, ...

E has the same prompts and the same seed everywhere; repeats differ in U alone. Each item has a
configuration of its own, which run by itself gives the same item.

Checkpoints of one study share the base model, the settings of its architecture, the shapes of
their adapters and the tokenizer. Otherwise a curve over them would join what does not belong
together: it is refused by the names of two checkpoints and of what differs. Those of two runs may
be measured together if their contracts agree in all that makes the measured step.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.digests import Digests
from isentrope.checkpoint.files import CONTRACT
from isentrope.checkpoint.find import find_with_optimizers
from isentrope.checkpoint.in_force import SettingsInForce, refuse
from isentrope.checkpoint.infer.fields import FIELDS
from isentrope.checkpoint.infer.settings import Obstacle
from isentrope.checkpoint.limits import require_rate
from isentrope.checkpoint.settle import settle
from isentrope.config.measure import MeasureConfig
from isentrope.results.result import item_name
from isentrope.run.identity import Content, Identity, changed, changed_parts, flat_settings
from isentrope.run.origin import measurement_origin, of_measurement
from isentrope.run.resuming import OF_THE_STEP
from isentrope.run.runner import Item
from isentrope.system.manifest import file_digest
from isentrope.system.reading import read_json

_HARMLESS = [name for name, field in FIELDS.items() if field.treatment == "harmless"]
"""Fields of the trainer that do not change the step, or only through the optimizer."""

_RATES = ("lr", "initial_lr")
"""Settings of a param group that a schedule changes along a run."""

_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
"""Settings of a model that say how it was saved, not what it is."""


def require_one_model(checkpoints: Sequence[StoredCheckpoint], base_model: str | None) -> None:
    """Refuse checkpoints of different models.

    Args:
        checkpoints: At least one.
        base_model: Base of all adapters, where the one that they name is not to be used.

    Raises:
        ValueError: Naming two checkpoints and what differs between them.
    """
    first, *others = checkpoints
    if not others:
        return
    expected = _description(first, base_model)
    for other in others:
        description = _description(other, base_model)
        aspects = [aspect for aspect in expected if expected[aspect] and description[aspect]]
        before, after = (
            flat_settings({aspect: side[aspect] for aspect in aspects})
            for side in (expected, description)
        )
        if keys := changed(before, after):
            aspect, _, key = keys[0].partition(".")
            values = f"{before.get(keys[0])} and {after.get(keys[0])}"
            words = f"differ in their {aspect} ({key}: {values})"
        elif set(aspects) <= {"tokenizer"}:
            words = "cannot be compared, as one is an adapter whose base model is not here"
        else:
            continue
        raise ValueError(
            f"The checkpoints {first.name} ({first.path}) and {other.name} ({other.path}) are not "
            f"of one model: they {words}. Evaluate them in studies of their own, each with its own "
            "--out."
        )


def _description(checkpoint: StoredCheckpoint, base_model: str | None) -> dict[str, dict[str, Any]]:
    """What a checkpoint is, by aspect; empty where its files do not tell."""
    path = checkpoint.path
    name = None
    base = path
    shapes: dict[str, tuple[int, ...]] = {}
    if settings := checkpoint.files.adapter:
        name = base_model or settings.get("base_model_name_or_path")
        base = Path(name or path)
        shapes = checkpoint.shapes
    config = base / "config.json"
    tokenizers = [place / "tokenizer.json" for place in (path, base)]
    # the base's counts where the adapter has none
    tokenizer = next((file for file in tokenizers if file.is_file()), None)
    return {
        "base model": {"name": name} if name else {},
        "adapter": shapes,
        "architecture": _without(read_json(config) if config.is_file() else {}, _VOLATILE),
        "tokenizer": {tokenizer.name: file_digest(tokenizer)} if tokenizer else {},
    }


def require_one_contract(checkpoints: Sequence[StoredCheckpoint]) -> None:
    """Refuse checkpoints of runs whose configurations differ in what makes the measured step.

    Args:
        checkpoints: Of one study; those without a contract are not compared.

    Raises:
        ValueError: Naming two checkpoints and what differs.
    """
    contracts = [(c.path, _step_settings(c.contract)) for c in checkpoints if c.contract]
    for path, settings in contracts[1:]:
        first, expected = contracts[0]
        for key in sorted(settings.keys() & expected.keys()):
            if settings[key] != expected[key]:
                raise ValueError(
                    f"The checkpoints {first} and {path} are of runs that trained differently: "
                    f"{key} was {expected[key]!r} and {settings[key]!r}. Measure them in studies "
                    "of their own, each with its own --out, or set checkpoint.allow_mixed=true, "
                    "which puts steps of unlike training into one table."
                )


def other_base(checkpoint: StoredCheckpoint, made_from: Digests) -> list[Obstacle]:
    """Whether the base model under an adapter is another than training had.

    Returns:
        One obstacle, or none; none where the contract does not say.
    """
    recorded = checkpoint.contract.get("made_from")
    if not recorded:
        return []
    parts = [part for part in changed_parts(recorded, made_from) if part.startswith("base ")]
    if not parts:
        return []
    words = f"the {' and '.join(parts)} under the adapter differ from training's ({CONTRACT})"
    return [Obstacle("base_model", words)]


def _step_settings(contract: Content) -> dict[str, Any]:
    settings = {key: contract[key] for key in OF_THE_STEP if key in contract}
    if "param_groups" in contract:
        settings["param_groups"] = [_without(group, _RATES) for group in contract["param_groups"]]
    if "config" in contract:
        settings["trainer"] = _without(contract["config"].get("trainer", {}), _HARMLESS)
    return settings


def _without(content: Content, names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in names}


def require_inputs(config: MeasureConfig) -> list[StoredCheckpoint]:
    """Refuse a configuration whose files are not there, before any work is done."""
    config.batch_config.require_files("batch_config")
    checkpoints = find_with_optimizers(config.checkpoint)
    if len(checkpoints) > 1:
        require_one_model(checkpoints, config.checkpoint.base_model)
        if not config.checkpoint.allow_mixed:
            require_one_contract(checkpoints)
    return checkpoints


def study_items(verb: str, config: MeasureConfig, folder: Path) -> list[Item[SettingsInForce]]:
    """The items of a study, checkpoint by checkpoint and repeat by repeat.

    Args:
        verb: Name of the verb.
        config: The checkpoints and settings.
        folder: The run folder.

    Returns:
        One per checkpoint and repeat, whether it is done or not.
    """
    items = []
    checkpoints = require_inputs(config)
    for checkpoint in checkpoints:
        require_rate(checkpoint, config.estimator)  # of all, before any is measured
    first = config.batch_config.first_repeat
    for checkpoint in checkpoints:
        section = config.checkpoint.model_copy(update={"checkpoint_path": str(checkpoint.path)})
        for repeat in range(first, first + config.batch_config.repeats):
            batch = config.batch_config.model_copy(update={"repeats": 1, "first_repeat": repeat})
            item_config = config.model_copy(update={"checkpoint": section, "batch_config": batch})
            settings = settle(checkpoint, item_config)
            made_from = measurement_origin(settings.config, checkpoint)
            obstacles = (*settings.obstacles, *other_base(checkpoint, made_from))
            refuse(obstacles, settings.ignored, checkpoint.name)
            settings = replace(settings, obstacles=obstacles, made_from=made_from)
            target = folder / "measurements" / f"{verb}_{item_name(checkpoint.name, repeat)}"
            identity = Identity(of_measurement(settings.config), made_from)
            items.append(Item(checkpoint, settings, target, identity, repeat))
    return items
