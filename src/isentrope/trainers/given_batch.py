"""What an update batch from a file or from memory brings: advantages, its length, its step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.nouns.rollouts import saved_length
from isentrope.system.reading import read_arrow, read_schema, read_text
from isentrope.system.strict_json import parse_json
from isentrope.trainers.rules import Obstacle
from isentrope.trainers.settings import TrainingSettings


@dataclass(frozen=True)
class GivenBatch:
    """What an update batch brings that is not drawn here.

    Attributes:
        advantages: Whether it has advantages that are not to be computed anew.
        entropy_weights: Whether it has a recorded entropy term.
        max_new_tokens: Where its sampler cut responses; None where it does not say.
        step: Training's step on it, from 1; None where it does not say.
        drawn: Whether there is none: U is drawn here.
    """

    advantages: bool = False
    entropy_weights: bool = False
    max_new_tokens: int | None = None
    step: int | None = None
    drawn: bool = False


def batch_in_file(file: str | None, *, computed: bool) -> GivenBatch:
    """What U's file brings; `computed`: its advantages are computed anew."""
    if file is None:
        return GivenBatch(drawn=True)
    path = Path(file)
    columns = _first_row(path)
    own = not computed and bool({"advantage", "advantages"} & set(columns))
    length = saved_length(path) if path.suffix == ".parquet" and columns else None
    step = columns.get("step")
    logged = int(step) if isinstance(step, (int, str)) and str(step).isdecimal() else None
    return GivenBatch(own, "entropy_weights" in columns, length, logged)


def _first_row(path: Path) -> dict[str, Any]:
    """The first row of a batch's file; empty where it is not there or cannot be read."""
    if not path.is_file():
        return {}
    if path.suffix == ".parquet":
        names = read_schema(path).names
        (step,) = read_arrow(path)["step"][:1].to_pylist() if "step" in names else (None,)
        return dict.fromkeys(names) | {"step": step}
    try:
        first = parse_json(read_text(path).partition("\n")[0])
    except ValueError:
        return {}  # reading the batch says what is wrong with it
    return first if isinstance(first, dict) else {}


def of_another_step(
    file: str | None, training: TrainingSettings, batch: GivenBatch
) -> list[Obstacle]:
    """Whether U's file was logged at another step than the one from this checkpoint."""
    if file is None or batch.step is None or training.step in (None, batch.step - 1):
        return []
    words = (
        f"{file} is the batch of the step to {batch.step}, and the next step of this checkpoint is "
        f"the one to {training.step + 1}: give the batch of that one, which a trainer with "
        "logging_steps=1 logs"
    )
    return [Obstacle("stale_batch", words)]
