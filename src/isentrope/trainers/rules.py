"""What a trainer's arguments add to its step and the computed step lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from isentrope.trainers.arguments import TRAINING_ARGS, SavedArguments
from isentrope.trainers.fields import FIELDS
from isentrope.trainers.step import TrainerStep, Use
from isentrope.update.objective import RECORDED


@dataclass(frozen=True)
class Obstacle:
    """A part of training's step that the computed step lacks.

    Attributes:
        name: The field of training that it comes from.
        words: Its description, a clause.
    """

    name: str
    words: Annotated[str, Field(alias="what")]


def obstacles_of(arguments: SavedArguments, use: Use) -> list[Obstacle]:
    """The parts of training's step that the computed step lacks, one obstacle per refusal."""
    step, unknown = TrainerStep(arguments, use), []
    if step.kind == "other" and use.objective != RECORDED:
        words = f"it was trained with {arguments.kind}, whose loss is not known here"
        unknown = [Obstacle("trainer", words)]
    return unknown + [
        Obstacle(name, f"{refusal.words} ({name}={step.get(name)}){refusal.where.remedy(step)}")
        for name, field in FIELDS.items()
        for refusal in field.refusals
        if refusal.obstructs(step, step.get(name))
    ]


def notes_of(arguments: SavedArguments, use: Use) -> list[str]:
    """Sentences on small or unknown differences between training's step and the computed step."""
    fields = arguments.fields
    notes = [
        f"Training ran under {name} autocast: its gradient is one of rounded products, and the "
        "step measured here is not rounded. In tests v differed by 13 to 16 % at the first step "
        "of Adam and by .6 to 2 % at the fourth. With precision.update_vector: {use_amp: true, "
        f"amp_dtype: {kind}}} it is rounded too."
        for name, kind in (("bf16", "bfloat16"), ("fp16", "float16"))
        if fields.get(name) and use.rounding != kind
    ]
    if use.objective == RECORDED:
        return notes
    if fields.get("use_vllm"):
        notes.append(
            "Training sampled with vLLM: its correction for vLLM's log-probabilities is not in the "
            "step measured here."
        )
    plain = (name for name, value in fields.items() if value and not name.startswith("_"))
    if unknown := sorted(name for name in plain if name not in FIELDS):
        notes.append(
            f"{TRAINING_ARGS} sets {', '.join(unknown)}, which this version does not know: compare "
            "one step with training's own if that changes the loss."
        )
    return notes
