"""A configuration beside the checkpoint it is for: unset keys as in training, others compared.

A key that the configuration does not set has training's value, where a file of the checkpoint says
it (`training.training_settings`). One that is set otherwise is refused, and so is what training's
step has and the computed one has not. `estimator.ignore_training_settings` lists what may differ
all the same; each then leaves a warning in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.config.measure import MeasureConfig
from isentrope.reading import read_columns, read_text
from isentrope.training.settings_rules import Obstacle
from isentrope.training.trainer_facts import Use
from isentrope.training.trainer_fields import KEYS
from isentrope.training.training_settings import TrainingSettings, read_training_settings

_NULL_IS_UNSET = ("estimator.advantages", "estimator.max_response_length", "estimator.micro_batch")
"""Keys whose null leaves the value to others."""


@dataclass(frozen=True)
class Origin:
    """Where a setting came from.

    Attributes:
        value: What is in force.
        source: "configuration", "default", or the checkpoint's file.
        training: Training's own value; None where it is not known, or where the key does not act.
    """

    value: Any
    source: str
    training: Any = None


@dataclass(frozen=True)
class AsTrained:
    """What became of a configuration at a checkpoint.

    Attributes:
        origins: Where each setting came from, by key.
        obstacles: Keys that differ from training, and what training's step has beside.
        ignored: Names that the configuration lets differ.
        notes: Sentences on smaller differences.
        arguments: The trainer's own arguments; empty where the checkpoint has none.
    """

    origins: dict[str, Origin] = field(default_factory=dict)
    obstacles: tuple[Obstacle, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def filled(self) -> dict[str, Any]:
        """Values taken from the checkpoint's files, by key."""
        ours = ("configuration", "default")
        return {key: o.value for key, o in self.origins.items() if o.source not in ours}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the result."""
        return (*allowed(self.obstacles, self.ignored), *self.notes)


def settle(config: MeasureConfig, checkpoint: Path) -> tuple[MeasureConfig, AsTrained]:
    """Fill a configuration's unset keys with training's values, and compare the others.

    Returns:
        The configuration in force, and what became of it; nothing is refused yet.
    """
    given = _given(config)
    training, of_control = _training(config, checkpoint, given)
    objective, missing = _objective(config, training, given)
    use = Use(
        objective,
        config.estimator.off_policy,
        _brings_advantages(config),
        _brings_entropy_weights(config),
        config.precision.updating.autocast,
    )
    acting = _acting(config, training, use)
    origins: dict[str, Origin] = {}
    obstacles = list(missing)
    for key in KEYS:
        own = _value(config, key)
        trained = training.keys[key] if key in acting else None
        if key in given or key not in acting:
            origins[key] = Origin(own, "configuration" if key in given else "default", trained)
            if key in given and key in acting and not _same(own, trained):
                obstacles.append(_difference(key, own, trained, training.sources[key]))
        else:
            origins[key] = Origin(trained, training.sources[key], trained)
    settled = AsTrained(
        origins=origins,
        obstacles=(*obstacles, *training.obstacles(use)),
        ignored=tuple(config.estimator.ignore_training_settings),
        notes=(*of_control, *training.notes(use)),
        arguments=training.arguments.fields if training.arguments else {},
    )
    return _filled(config, settled.filled), settled


def refuse(obstacles: Iterable[Obstacle], ignored: Iterable[str], what: str) -> None:
    """Refuse a step that is not training's, unless the configuration says that it may differ.

    Args:
        obstacles: What differs.
        ignored: Names that may.
        what: The checkpoint, for the message.

    Raises:
        ValueError: In a sentence, with the way out.
    """
    left = [o for o in obstacles if o.name not in set(ignored)]
    if not left:
        return
    names = ", ".join(dict.fromkeys(o.name for o in left))
    raise ValueError(
        f"The step would not be the one that training takes from {what}: "
        f"{'; '.join(o.words for o in left)}. Change that, or list it (estimator."
        f"ignore_training_settings: [{names}]) to measure another step than training's."
    )


def allowed(obstacles: Iterable[Obstacle], ignored: Iterable[str]) -> list[str]:
    """Warnings of what differs from training and may."""
    names = set(ignored)
    return [
        f"NOT TRAINING'S STEP, as estimator.ignore_training_settings allows: {o.words}."
        for o in obstacles
        if o.name in names
    ]


def _training(
    config: MeasureConfig, checkpoint: Path, given: set[str]
) -> tuple[TrainingSettings, tuple[str, ...]]:
    """Training's settings, and a sentence where they are those without the run's control.

    A token control acts through the recorded weights of training's own batch. A fresh batch has
    none, and an objective by name leaves them out.

    Returns:
        Settings and sentences.
    """
    training = read_training_settings(checkpoint)
    plain, estimator = training.uncontrolled, config.estimator
    by_name = "estimator.objective" in given and estimator.objective == plain
    fresh = config.batch_config.U_file is None and "estimator.objective" not in given
    if plain is None or not (by_name or fresh):
        return training, ()
    return read_training_settings(checkpoint, without_control=True), (
        f"Training ran under a control. The step measured here is that of its objective {plain} "
        "without the token weights of the control.",
    )


def _given(config: MeasureConfig) -> set[str]:
    """Keys that the configuration itself sets."""
    keys = set()
    for key in KEYS:
        section, name = key.split(".")
        is_set = (
            section in config.model_fields_set and name in getattr(config, section).model_fields_set
        )
        if is_set and not (key in _NULL_IS_UNSET and _value(config, key) is None):
            keys.add(key)
    return keys


def _value(config: MeasureConfig, key: str) -> Any:
    section, name = key.split(".")
    return config.estimator.clip_pair if name == "clip" else getattr(getattr(config, section), name)


def _objective(
    config: MeasureConfig, training: TrainingSettings, given: set[str]
) -> tuple[str, list[Obstacle]]:
    """The objective in force, and why training's is not where it cannot be."""
    own, key = config.estimator.objective, "estimator.objective"
    trained = training.keys.get(key)
    if key in given or trained is None:
        return own, []
    needed = {
        "recorded": "its token weights (next_update/rollouts.parquet of the checkpoint)",
        "sft": "its demonstrations",
    }
    if trained == "recorded" and config.estimator.off_policy:
        words = (
            f"training's objective is recorded ({training.sources[key]}), whose token weights hold "
            "the ratios already: leave estimator.off_policy out"
        )
        return own, [Obstacle(key, words)]
    if trained != "dr_grpo" and config.estimator.max_response_length is not None:
        words = (
            f"training's objective is {trained} ({training.sources[key]}), and "
            "estimator.max_response_length acts with dr_grpo only"
        )
        return own, [Obstacle(key, words)]
    if trained in needed and config.batch_config.U_file is None:
        words = (
            f"training's objective is {trained} ({training.sources[key]}), which needs "
            f"batch_config.U_file: {needed[trained]}"
        )
        return own, [Obstacle(key, words)]
    return trained, []


def _acting(config: MeasureConfig, training: TrainingSettings, use: Use) -> set[str]:
    """Keys of training that act on the step in question."""
    batch, objective = config.batch_config, use.objective
    same = objective == training.keys.get("estimator.objective")
    weighted = objective not in ("recorded", "sft")
    sampled = batch.U_file is None or batch.E_file is None
    acts = {
        "sampling.temperature": True,
        "sampling.max_new_tokens": sampled,
        "estimator.max_grad_norm": True,
        "estimator.objective": objective != "recorded" or same,
        "batch_config.G": weighted and batch.U_file is None,
        "estimator.advantages": weighted and same and not use.own_advantages,
        "estimator.max_response_length": same and objective == "dr_grpo",
        "estimator.clip": weighted and same and (use.off_policy or objective == "cispo"),
        "estimator.micro_batch": (same and objective == "bnpo") or use.autocast is not None,
    }
    if objective != training.keys.get("estimator.objective"):
        given = "estimator.objective" in _given(config)
        acts["estimator.objective"] = given and objective != "recorded"
    return {key for key, does in acts.items() if does and key in training.keys}


def _brings_advantages(config: MeasureConfig) -> bool:
    """Whether U's file has advantages that are not to be computed anew."""
    path = config.batch_config.U_file
    if path is None or config.estimator.advantages is not None or Path(path).suffix != ".parquet":
        return False
    return "advantages" in read_columns(path)


def _brings_entropy_weights(config: MeasureConfig) -> bool:
    """Whether U's file has a recorded entropy term."""
    path = None if config.batch_config.U_file is None else Path(config.batch_config.U_file)
    if path is None or not path.is_file():
        return False
    if path.suffix == ".parquet":
        return "entropy_weights" in read_columns(path)
    return '"entropy_weights"' in read_text(path).partition("\n")[0]


def _same(own: Any, trained: Any) -> bool:
    if isinstance(own, (tuple, list)) and isinstance(trained, (tuple, list)):
        return len(own) == len(trained) and all(map(_same, own, trained))
    if isinstance(own, (int, float)) and isinstance(trained, (int, float)):
        return abs(own - trained) <= 1e-9 * max(abs(own), abs(trained))
    return own == trained


def _difference(key: str, own: Any, trained: Any, source: str) -> Obstacle:
    own, trained = (list(x) if isinstance(x, tuple) else x for x in (own, trained))
    return Obstacle(key, f"{key} is {own!r}, training had {trained!r} ({source})")


def _filled(config: MeasureConfig, values: dict[str, Any]) -> MeasureConfig:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    updated = {
        section: getattr(config, section).model_copy(update=new)
        for section, new in sections.items()
    }
    return config.model_copy(update=updated)
