"""Are the checkpoints of a study one model at several steps, and of runs that train alike?

Checkpoints of one study share the base model, the settings of its architecture, the shapes of
their adapters and the tokenizer. Otherwise a curve over them would join what does not belong
together: it is refused by the names of two checkpoints and of what differs. Those of two runs may
be measured together if their contracts agree in all that makes the measured step.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from isentrope.config.io import ConfigError
from isentrope.recording.contract import read_contract
from isentrope.runs.checkpoints import Checkpoint
from isentrope.runs.identity import OF_THE_STEP, Content, changed
from isentrope.runs.origin import Digests, changed_parts
from isentrope.system.checkpoint_folder import ADAPTER, CONTRACT, CheckpointFolder
from isentrope.system.manifest import file_digest
from isentrope.system.reading import read_json
from isentrope.trainers.fields import FIELDS
from isentrope.trainers.settings import Obstacle

_HARMLESS = [name for name, field in FIELDS.items() if field.treatment == "harmless"]
"""Fields of the trainer that do not change the step, or only through the optimizer."""

_RATES = ("lr", "initial_lr")
"""Settings of a param group that a schedule changes along a run."""

_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
"""Settings of a model that say how it was saved, not what it is."""


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
        differing = [aspect for aspect in both if known[aspect] != here[aspect]]
        if differing:
            a, b = known[differing[0]], here[differing[0]]
            key = changed(a, b)[0]
            words = f"differ in their {differing[0]} ({key}: {a.get(key)} and {b.get(key)})"
        elif both in ([], ["tokenizer"]):
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
    base, named, shapes = path, {}, {}
    if settings := folder.adapter:
        name = base_model or settings.get("base_model_name_or_path")
        base, named = Path(name or path), {"name": name} if name else {}
        shapes = {key: tuple(shape) for key, (_, shape) in folder.header(ADAPTER).items()}
    config = base / "config.json"
    content = read_json(config) if config.is_file() else {}
    files = (path / "tokenizer.json", base / "tokenizer.json")
    tokenizer = next((file_digest(file) for file in files if file.is_file()), None)
    return {
        "base model": named,
        "adapter": shapes,
        "architecture": _without(content, _VOLATILE),
        "tokenizer": {"tokenizer.json": tokenizer} if tokenizer else {},
    }


def require_one_contract(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse checkpoints of runs whose configurations differ in what makes the measured step.

    Args:
        checkpoints: Of one study; those without a contract are not compared.

    Raises:
        ConfigError: Naming two checkpoints and what differs.
    """
    known = [(c.path, _of_the_step(x)) for c in checkpoints if (x := _contract(c.path))]
    for path, own in known[1:]:
        first, settings = known[0]
        for key in sorted(own.keys() & settings.keys()):
            if own[key] != settings[key]:
                raise ConfigError(
                    f"The checkpoints {first} and {path} are of runs that trained differently: "
                    f"{key} was {settings[key]!r} and {own[key]!r}. Measure them in studies of "
                    "their own, each with its own --out, or set checkpoint.allow_mixed=true."
                )


def other_base(checkpoint: Path, made_from: Digests) -> list[Obstacle]:
    """Whether the base model under an adapter is another than training had.

    Returns:
        One obstacle, or none; none where the contract does not say.
    """
    recorded = _contract(checkpoint).get("made_from", {})
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


def _contract(checkpoint: Path) -> dict[str, Any]:
    return read_contract(checkpoint) if (checkpoint / CONTRACT).is_file() else {}
