"""A configuration beside the checkpoint it is for: unset keys as in training, others compared.

A key that the configuration does not set has training's value, where a file of the checkpoint says
it (`training.training_settings`). One that is set otherwise is refused, and so is what training's
step has and the computed one has not. `estimator.ignore_training_settings` lists what may differ
all the same; each then leaves a warning in the result, and so does a default in place of a setting
that no file says. The command line and `ise.optimizer_step` both go through `settle`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.config.estimator import ADVANTAGES_OF
from isentrope.config.measure import MeasureConfig
from isentrope.reading import read_columns, read_text
from isentrope.rollouts import saved_length
from isentrope.training.settings_rules import Obstacle
from isentrope.training.trainer_facts import Use
from isentrope.training.trainer_fields import KEYS
from isentrope.training.training_settings import TrainingSettings, read_training_settings

ASSUMED = "assumed"
OURS = ("configuration", "default", ASSUMED)
"""Sources that are not a file of the checkpoint."""

_NULL_IS_UNSET = ("estimator.advantages", "estimator.max_response_length", "estimator.micro_batch")
"""Keys whose null leaves the value to others."""


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


@dataclass(frozen=True)
class GivenBatch:
    """What an update batch brings that is not drawn here.

    Attributes:
        advantages: Whether it has advantages that are not to be computed anew.
        entropy_weights: Whether it has a recorded entropy term.
        max_new_tokens: Where its sampler cut responses; None where it does not say.
    """

    advantages: bool
    entropy_weights: bool
    max_new_tokens: int | None = None


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
    batch = given_batch or _batch_in_file(config)
    given = _given(config)
    training, of_control = _training(config, checkpoint, given, batch)
    objective, missing = _objective(config, training, given, batch)
    use = Use(
        objective,
        config.estimator.off_policy,
        batch is not None and batch.advantages,
        batch is not None and batch.entropy_weights,
        config.precision.updating.autocast,
    )
    acting = _acting(config, training, use, batch)
    assumed = _assumable(config, use, batch, given | set(training.keys)) & acting
    origins: dict[str, Origin] = {}
    obstacles = list(missing)
    for key in KEYS:
        own = _value(config, key)
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
    config: MeasureConfig, checkpoint: Path, given: set[str], batch: GivenBatch | None
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
    fresh = batch is None and "estimator.objective" not in given
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
    config: MeasureConfig, training: TrainingSettings, given: set[str], batch: GivenBatch | None
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
    if trained in needed and batch is None:
        words = (
            f"training's objective is {trained} ({training.sources[key]}), which needs "
            f"batch_config.U_file: {needed[trained]}"
        )
        return own, [Obstacle(key, words)]
    return trained, []


def _acting(
    config: MeasureConfig, training: TrainingSettings, use: Use, batch: GivenBatch | None
) -> set[str]:
    """Keys that act on the step in question, or on the batches that it is measured on."""
    objective, trained = use.objective, training.keys.get("estimator.objective")
    same = trained in (None, objective)
    weighted = objective not in ("recorded", "sft")
    sampled = batch is None or config.batch_config.E_file is None
    if same:
        of_objective = objective != "recorded" or trained is not None
    else:
        of_objective = "estimator.objective" in _given(config) and objective != "recorded"
    acts = {
        "sampling.temperature": True,
        "sampling.max_new_tokens": sampled,
        "estimator.max_grad_norm": True,
        "estimator.objective": of_objective,
        "batch_config.G": weighted and batch is None,
        "estimator.advantages": weighted and same and not use.own_advantages,
        "estimator.max_response_length": same and objective == "dr_grpo",
        "estimator.clip": weighted and same and (use.off_policy or objective == "cispo"),
        "estimator.micro_batch": (same and objective == "bnpo") or use.autocast is not None,
    }
    return {key for key, does in acts.items() if does}


def _assumable(
    config: MeasureConfig, use: Use, batch: GivenBatch | None, known: set[str]
) -> set[str]:
    """Keys whose default would act on the step; G and the length of E's responses do not."""
    constant = use.objective == "dr_grpo" and "estimator.max_response_length" not in known
    cut = "sampling.max_new_tokens" in known or (batch is not None and batch.max_new_tokens)
    keys = {"sampling.temperature", "estimator.objective", "estimator.advantages"}
    keys |= {"estimator.max_grad_norm", "estimator.clip"}
    if use.objective == "bnpo":
        keys.add("estimator.micro_batch")
    if (batch is None or constant) and not cut:
        keys.add("sampling.max_new_tokens")
    return keys


def _in_force(config: MeasureConfig, key: str, objective: str) -> Any:
    """The value of a key that is not set."""
    if key == "estimator.advantages":
        return ADVANTAGES_OF[objective]
    return _value(config, key)


def _text(value: Any) -> str:
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _batch_in_file(config: MeasureConfig) -> GivenBatch | None:
    """What U's file brings; None where U is drawn."""
    path = config.batch_config.U_file
    if path is None:
        return None
    columns = _columns(file := Path(path))
    own = config.estimator.advantages is None and bool({"advantage", "advantages"} & columns)
    length = saved_length(file) if file.suffix == ".parquet" and columns else None
    return GivenBatch(own, "entropy_weights" in columns, length)


def _columns(path: Path) -> set[str]:
    """Names of the columns of a batch's file; none where it is not there or cannot be read."""
    if not path.is_file():
        return set()
    if path.suffix == ".parquet":
        return set(read_columns(path))
    try:
        first = json.loads(read_text(path).partition("\n")[0])
    except ValueError:
        return set()  # reading the batch says what is wrong with it
    return set(first) if isinstance(first, dict) else set()


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
