"""Settings beside the checkpoint they are for: unset ones as in training, others compared.

A key that the configuration does not set has training's value, where a file of the checkpoint says
it (`settings`). One that is set otherwise is refused, and so is what training's step has and the
computed one has not. `estimator.ignore_training_settings` lists what may differ all the same; each
then leaves a warning in the result, and so does a default in place of a setting that no file says.
The command line and `ise.optimizer_step` both go through `settle`.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from isentrope.checkpoint.infer.fields import KEYS
from isentrope.checkpoint.infer.settings import (
    GivenBatch,
    Obstacle,
    TrainingSettings,
    batch_in_file,
    of_another_step,
    read_training_settings,
)
from isentrope.checkpoint.infer.step import Use
from isentrope.update.objective import ADVANTAGES_OF, RECORDED, SFT

SAMPLER_RECORD = "sampler_logprobs"
"""Name of the obstacle of a record that cannot be that of U, which no setting allows."""
ASSUMED = "assumed"
OURS = ("configuration", "default", ASSUMED)
"""Sources that are not a file of the checkpoint."""

ROUNDING = "rounding"
"""Among the values: the type that the step's products are rounded to; None for none."""
_OBJECTIVE = "estimator.objective"
_NULL_IS_UNSET = ("estimator.advantages", "estimator.max_response_length", "estimator.micro_batch")
"""Keys whose null leaves the value to others."""
_NEEDED = {
    RECORDED: "its token weights (next_update/rollouts.parquet of the checkpoint)",
    SFT: "its demonstrations",
}


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
        sentences = [
            f"ASSUMED, because no file of the checkpoint says it: {', '.join(assumed)}. Where "
            "training had other values, this is not its step: set them."
        ] * bool(assumed)
        return (*sentences, *allowed(self.obstacles, self.ignored), *self.notes)


def settle(
    values: Mapping[str, Any],
    given: Collection[str],
    checkpoint: Path,
    batch: GivenBatch | None = None,
) -> AsTrained:
    """Compare settings with training's, and find the values of those that are not set.

    Args:
        values: The settings by key, and `ROUNDING`; the clip as a pair.
        given: Keys that the configuration itself sets.
        checkpoint: The folder.
        batch: U, where it is in memory; None: as the settings say.

    Returns:
        What became of them; nothing is refused yet.
    """
    file = values["batch_config.U_file"]
    batch = batch or batch_in_file(file, computed=values["estimator.advantages"] is not None)
    given = {k for k in given if k in KEYS and (k not in _NULL_IS_UNSET or values[k] is not None)}
    own_objective = values[_OBJECTIVE] if _OBJECTIVE in given else None
    training = read_training_settings(checkpoint, own_objective, drawn=batch.drawn)
    objective, obstacles = _objective(values, training, given, batch)
    use = Use(
        objective,
        values["estimator.off_policy"],
        batch.advantages,
        batch.entropy_weights,
        values[ROUNDING],
        () if batch.rewards else _reward_weights(values),
    )
    sampled = batch.drawn or values["batch_config.E_file"] is None
    acting, assumed = _acting_keys(training, use, batch, given, sampled=sampled)
    obstacles += of_another_step(file, training, batch)
    origins: dict[str, Origin] = {}
    for key in KEYS:
        own, source = values[key], training.sources.get(key) if key in acting else None
        trained = None if source is None else training.keys[key]
        if key in given:
            origins[key] = Origin(own, "configuration", trained)
            if source is not None and not _same(own, trained):
                words = f"{key} is {_plain(own)!r}, training had {_plain(trained)!r} ({source})"
                obstacles.append(Obstacle(key, words))
        elif source is not None:
            origins[key] = Origin(trained, source, trained)
        elif key in assumed:
            by_rule = key == "estimator.advantages"
            origins[key] = Origin(ADVANTAGES_OF[objective] if by_rule else own, ASSUMED)
        else:
            origins[key] = Origin(own, "default")
    return AsTrained(
        origins=origins,
        obstacles=(*obstacles, *training.obstacles(use)),
        ignored=tuple(values["estimator.ignore_training_settings"]),
        notes=tuple(training.notes(use)),
        arguments=training.arguments.fields if training.arguments else {},
        advantages=training.keys.get("estimator.advantages"),
    )


def _reward_weights(values: Mapping[str, Any]) -> tuple[float, ...]:
    """Weights of the reward functions of U's task; empty where none are set."""
    task = values["batch_config.dataset_name"]
    if values["batch_config.U_dataset_name"] not in (None, task):
        return ()  # the options are those of E's task
    weights = values["batch_config.dataset_options"].get("weights")
    return tuple(weights) if isinstance(weights, list) else ()


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
    names = ", ".join(dict.fromkeys(o.name for o in left if o.name != SAMPLER_RECORD))
    way_out = (
        f", or list it (estimator.ignore_training_settings: [{names}]) to measure another step "
        "than training's: the result then says that it differs in this"
    )
    raise ValueError(
        f"The step would not be the one that training takes from {what}: "
        f"{'; '.join(o.words for o in left)}. Change that{way_out if names else ''}."
    )


def allowed(obstacles: Iterable[Obstacle], ignored: Iterable[str]) -> list[str]:
    """Warnings of what differs from training and may."""
    names = set(ignored)
    return [
        f"NOT TRAINING'S STEP, as estimator.ignore_training_settings allows: {o.words}."
        for o in obstacles
        if o.name in names
    ]


def _objective(
    values: Mapping[str, Any],
    training: TrainingSettings,
    given: Collection[str],
    batch: GivenBatch,
) -> tuple[str, list[Obstacle]]:
    """The objective in force, and why training's is not where it cannot be."""
    own, trained = values[_OBJECTIVE], training.keys.get(_OBJECTIVE)
    if _OBJECTIVE in given or trained is None:
        return own, []
    if trained == RECORDED and values["estimator.off_policy"]:
        why = "whose token weights hold the ratios already: leave estimator.off_policy out"
    elif trained != "dr_grpo" and values["estimator.max_response_length"] is not None:
        why = "and estimator.max_response_length acts with dr_grpo only"
    elif trained in _NEEDED and batch.drawn:
        why = f"which needs batch_config.U_file: {_NEEDED[trained]}"
    else:
        return trained, []
    words = f"training's objective is {trained} ({training.sources[_OBJECTIVE]}), {why}"
    return own, [Obstacle(_OBJECTIVE, words)]


def _acting_keys(
    training: TrainingSettings,
    use: Use,
    batch: GivenBatch,
    given: Collection[str],
    *,
    sampled: bool,
) -> tuple[set[str], set[str]]:
    """Keys that act on the step in question or on its batches, and those that are assumed."""
    objective, trained = use.objective, training.keys.get(_OBJECTIVE)
    same, recorded = trained in (None, objective), objective == RECORDED
    weighted = objective not in (RECORDED, SFT)
    acts = {
        "sampling.temperature": True,
        "sampling.max_new_tokens": sampled,
        "batch_config.chat_template_kwargs": True,
        "estimator.max_grad_norm": True,
        _OBJECTIVE: same and trained is not None if recorded else same or _OBJECTIVE in given,
        "batch_config.G": weighted and batch.drawn,
        "estimator.advantages": weighted and same and not use.own_advantages,
        "estimator.max_response_length": same and objective == "dr_grpo",
        "estimator.clip": weighted and same and (use.off_policy or objective == "cispo"),
        "estimator.micro_batch": (same and objective == "bnpo") or use.rounding is not None,
    }
    acting, known = {key for key, does in acts.items() if does}, {*given, *training.keys}
    # the number of responses of a group and the length of those of E make no other step
    same_step = {"batch_config.G", "estimator.max_response_length"}
    same_step.add("batch_config.chat_template_kwargs")  # most prompts have none
    arguments = {} if training.arguments is None else training.arguments.fields
    if objective != "bnpo" or "per_device_train_batch_size" in arguments:  # null: one pass
        same_step.add("estimator.micro_batch")
    constant = objective == "dr_grpo" and "estimator.max_response_length" not in known
    if batch.max_new_tokens or not (batch.drawn or constant):
        same_step.add("sampling.max_new_tokens")
    return acting, acting - known - same_step


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    return "null" if value is None else str(_plain(value))


def _same(own: Any, trained: Any) -> bool:
    if isinstance(own, (tuple, list)) and isinstance(trained, (tuple, list)):
        return len(own) == len(trained) and all(map(_same, own, trained))
    if isinstance(own, (int, float)) and isinstance(trained, (int, float)):
        return math.isclose(own, trained, rel_tol=1e-9)
    return own == trained
