"""A configuration beside the checkpoint it is for: unset keys as in training, others compared.

A key that the configuration does not set has training's value, where a file of the checkpoint says
it (`trainers.settings`). One that is set otherwise is refused, and so is what training's
step has and the computed one has not. `estimator.ignore_training_settings` lists what may differ
all the same; each then leaves a warning in the result, and so does a default in place of a setting
that no file says. The command line and `ise.optimizer_step` both go through `settle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from isentrope.config.acting import acting_keys, assumable_keys, given_keys, value_of
from isentrope.config.estimator import ADVANTAGES_OF
from isentrope.config.given_batch import GivenBatch, batch_in_file, of_another_step
from isentrope.config.measure import MeasureConfig
from isentrope.trainers.fields import KEYS
from isentrope.trainers.rules import Obstacle
from isentrope.trainers.settings import TrainingSettings, read_training_settings
from isentrope.trainers.step import Use

ASSUMED = "assumed"
OURS = ("configuration", "default", ASSUMED)
"""Sources that are not a file of the checkpoint."""


@dataclass(frozen=True)
class Origin:
    """Where a setting came from.

    Attributes:
        value: What is in force.
        source: "configuration", "default" (it does not act, or only elsewhere than in the step),
            "assumed" (a default that acts on the step), or the checkpoint's file.
        training: Training's own value; None where it is not known, or where the key does not act.
    """

    value: Any
    source: Annotated[str, Field(alias="from")]
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
        advantages: Training's rule of advantages where it has a name; None where it has none.
    """

    origins: dict[str, Origin] = field(default_factory=dict)
    obstacles: tuple[Obstacle, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    advantages: str | None = None

    @property
    def filled(self) -> dict[str, Any]:
        """Values taken from the checkpoint's files, by key."""
        return {key: o.value for key, o in self.origins.items() if o.source not in OURS}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the result."""
        assumed = [f"{k}={_text(o.value)}" for k, o in self.origins.items() if o.source == ASSUMED]
        sentence = (
            f"ASSUMED, because no file of the checkpoint says it: {', '.join(assumed)}. Where "
            "training had other values, this is not its step: set them."
        )
        return (
            *([sentence] if assumed else []),
            *allowed(self.obstacles, self.ignored),
            *self.notes,
        )


def settle(
    config: MeasureConfig, checkpoint: Path, given_batch: GivenBatch | None = None
) -> tuple[MeasureConfig, AsTrained]:
    """Fill a configuration's unset keys with training's values, and compare the others.

    Args:
        config: The configuration.
        checkpoint: The folder.
        given_batch: U, where it is in memory; None: as the configuration says.

    Returns:
        The configuration in force, and what became of it; nothing is refused yet.
    """
    batch = given_batch or batch_in_file(config)
    given = given_keys(config)
    training, of_control = _training(config, checkpoint, given, batch)
    objective, missing = _objective(config, training, given, batch)
    use = Use(
        objective,
        config.estimator.off_policy,
        batch.advantages,
        batch.entropy_weights,
        config.precision.updating.rounding,
    )
    acting = acting_keys(config, training, use, batch)
    assumed = assumable_keys(use, batch, given | set(training.keys)) & acting
    origins: dict[str, Origin] = {}
    obstacles = [*missing, *of_another_step(config, training, batch)]
    for key in KEYS:
        own = value_of(config, key)
        trained = training.keys[key] if key in acting and key in training.keys else None
        if key in given:
            origins[key] = Origin(own, "configuration", trained)
            if key in acting and key in training.keys and not _same(own, trained):
                obstacles.append(_difference(key, own, trained, training.sources[key]))
        elif key in acting and key in training.keys:
            origins[key] = Origin(trained, training.sources[key], trained)
        elif key in assumed:
            origins[key] = Origin(_in_force(config, key, objective), ASSUMED)
        else:
            origins[key] = Origin(own, "default")
    settled = AsTrained(
        origins=origins,
        obstacles=(*obstacles, *training.obstacles(use)),
        ignored=tuple(config.estimator.ignore_training_settings),
        notes=(*of_control, *training.notes(use)),
        arguments=training.arguments.fields if training.arguments else {},
        advantages=training.keys.get("estimator.advantages"),
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
    config: MeasureConfig, checkpoint: Path, given: set[str], batch: GivenBatch
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
    fresh = batch.drawn and "estimator.objective" not in given
    if plain is None or not (by_name or fresh):
        return training, ()
    return read_training_settings(checkpoint, without_control=True), (
        f"Training ran under a control. The step measured here is that of its objective {plain} "
        "without the token weights of the control.",
    )


def _objective(
    config: MeasureConfig, training: TrainingSettings, given: set[str], batch: GivenBatch
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
    if trained in needed and batch.drawn:
        words = (
            f"training's objective is {trained} ({training.sources[key]}), which needs "
            f"batch_config.U_file: {needed[trained]}"
        )
        return own, [Obstacle(key, words)]
    return trained, []


def _in_force(config: MeasureConfig, key: str, objective: str) -> Any:
    """The value of a key that is not set."""
    if key == "estimator.advantages":
        return ADVANTAGES_OF[objective]
    return value_of(config, key)


def _text(value: Any) -> str:
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)


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
