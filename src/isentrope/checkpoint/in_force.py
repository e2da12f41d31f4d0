"""The settings in force for one measurement of a checkpoint: where each came from, what differs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from isentrope.checkpoint.infer.settings import Obstacle
from isentrope.config.measure import MeasureConfig

SAMPLER_RECORD = "sampler_logprobs"
"""Name of the obstacle of a record that cannot be that of U, which no setting allows."""
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
class SettingsInForce:
    """The settings of one measurement of a checkpoint.

    Attributes:
        config: The configuration, filled with training's settings.
        origins: Where each setting came from, by key.
        obstacles: Keys that differ from training, and what training's step has beside.
        notes: Sentences on smaller differences.
        reward_notes: Those of them that are on reward functions.
        prompts_per_step: Prompt groups of a step of another trainer, those without an advantage
            too; None where no file says how many.
        made_from: Digests of what the results depend on, by part.
    """

    config: MeasureConfig
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    obstacles: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()
    reward_notes: tuple[str, ...] = ()
    prompts_per_step: int | None = None
    made_from: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names that the configuration lets differ from training."""
        return self.config.estimator.ignore_training_settings

    @property
    def filled(self) -> dict[str, Any]:
        """Values taken from the checkpoint's files, by key."""
        return {key: o.value for key, o in self.origins.items() if o.source not in OURS}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the result."""
        assumed: list[str] = []
        for key, origin in self.origins.items():
            if origin.source == ASSUMED:
                value = list(origin.value) if isinstance(origin.value, tuple) else origin.value
                assumed.append(f"{key}={'null' if value is None else value}")
        sentences: list[str] = []
        if assumed:
            sentences.append(
                "ASSUMED, because no file of the checkpoint says it: "
                f"{', '.join(assumed)}. Where training had other values, this is not its step: "
                "set them."
            )
        return (*sentences, *allowed(self.obstacles, self.ignored), *self.notes)


def refuse(obstacles: Iterable[Obstacle], ignored: Iterable[str], checkpoint: str) -> None:
    """Refuse a step that is not training's, unless the configuration says that it may differ.

    Args:
        obstacles: What differs.
        ignored: Names that may.
        checkpoint: Its name.

    Raises:
        ValueError: In a sentence, with the way out.
    """
    refused = [o for o in obstacles if o.name not in set(ignored)]
    if not refused:
        return
    raise ValueError(
        f"The step would not be the one that training takes from {checkpoint}: "
        f"{'; '.join(o.words for o in refused)}. {ways_on(refused)}"
    )


def ways_on(refused: Iterable[Obstacle]) -> str:
    """What to do about that which differs from training, in a sentence."""
    names = ", ".join(dict.fromkeys(o.name for o in refused if o.name != SAMPLER_RECORD))
    if not names:
        return "Change that."
    return (
        f"Change that, or list it (estimator.ignore_training_settings: [{names}]) to measure "
        "another step than training's: the result then says that it differs in this."
    )


def allowed(obstacles: Iterable[Obstacle], ignored: Iterable[str]) -> list[str]:
    """Warnings of what differs from training and may."""
    names = set(ignored)
    return [
        f"NOT TRAINING'S STEP, as estimator.ignore_training_settings allows: {o.words}."
        for o in obstacles
        if o.name in names
    ]
