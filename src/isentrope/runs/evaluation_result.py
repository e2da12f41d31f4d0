"""What `isentrope evaluate` finds at one checkpoint, written as metrics.json and read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from isentrope.nouns.estimate import Estimate
from isentrope.results.coding import decode, encode
from isentrope.system.files import write_json
from isentrope.system.reading import read_json


@dataclass(frozen=True)
class RewardCounts:
    """How rewards are distributed.

    Attributes:
        edges: Of the bins, one more than there are bins.
        counts: Responses in each bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class EvaluatedRow:
    """The numbers of one decoding.

    Attributes:
        decoding: "sampled" or "greedy".
        n_prompts: Prompts.
        samples_per_prompt: Responses per prompt.
        metrics: By name; None where a metric has no value for this decoding.
        rewards: Of all responses.
    """

    decoding: str
    n_prompts: int
    samples_per_prompt: int
    metrics: dict[str, Estimate | None]
    rewards: RewardCounts


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The evaluation of one checkpoint.

    Attributes:
        schema: Of the file.
        checkpoint: Its name.
        path: Its folder.
        step: Its training step; None where its name has none.
        dataset: Name of the task.
        split: Of its prompts.
        temperature: Of sampling.
        max_new_tokens: Of a response.
        rows: One per decoding.
        made_from: Digests of what the numbers depend on (`runs.origin`).
        verified: Whether what it was made from was compared with its manifests (`--no-verify`).
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True)

    schema: str
    checkpoint: str
    path: str
    step: int | None
    dataset: str
    split: str
    temperature: float
    max_new_tokens: int
    rows: tuple[EvaluatedRow, ...]
    made_from: dict[str, str] = field(default_factory=dict)
    verified: Annotated[bool, Field(exclude_if=bool)] = True

    def save(self, file: Path) -> None:
        """Write metrics.json."""
        write_json(file, encode(_adapter(), self))

    @classmethod
    def load(cls, file: Path) -> EvaluationResult:
        """Read metrics.json."""
        return decode(_adapter(), read_json(file, "Remove the folder to evaluate it again."), file)


@cache
def _adapter() -> TypeAdapter[EvaluationResult]:
    return TypeAdapter(EvaluationResult)
