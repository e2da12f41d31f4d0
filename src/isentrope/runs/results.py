"""What the verbs find: one `Result` per checkpoint, written to a folder and read back from it.

    results.json      schema, header, what the verb found, warnings, timing
    <table>.parquet   `tables`; of a result that was loaded they are read when they are asked for

This is the only module that reads or writes results.json. Keys of the file are names of fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pandas as pd
from pydantic import ConfigDict, Field, TypeAdapter

from isentrope.estimate import Estimate
from isentrope.files import write_json
from isentrope.runs.header import Header
from isentrope.runs.kernel_records import BlockRecord, SecondOrder, TruncationRecord
from isentrope.runs.measure_records import Checks, RangeValue, SweepRow
from isentrope.runs.result_coding import OPTIONAL, Number, ResultsError, Value, decode, encode

RESULTS = "results.json"
IN_FILE = {"itself": "self"}
"""Names in the file of fields that Python cannot name so."""

_OURS = ("E", "U")
"""Parquet files of a folder that are batches, not tables."""


class Tables(Mapping[str, pd.DataFrame]):
    """The tables in a folder, by the names of their files; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self:
            raise KeyError(name)
        return pd.read_parquet(self.folder / f"{name}.parquet")

    def __contains__(self, name: object) -> bool:
        return name not in _OURS and (self.folder / f"{name}.parquet").is_file()

    def __iter__(self) -> Iterator[str]:
        names = sorted(path.stem for path in self.folder.glob("*.parquet"))
        return (name for name in names if name not in _OURS)

    def __len__(self) -> int:
        return len(list(iter(self)))


def _nothing(*_: object) -> None:
    """Writes no other files."""


@dataclass(frozen=True, kw_only=True)
class Result(Header):
    """What a verb found at one checkpoint.

    Attributes:
        warnings: Sentences on what limits the use of the numbers.
        timing: Seconds by stage, and "total".
        tables: Written as parquet, by name.
        save_more: Writes whatever else there is into the folder.
        finish: Called with the whole result and a folder for logs, when its folder is complete.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, arbitrary_types_allowed=True)
    verb: ClassVar[str] = ""

    warnings: tuple[str, ...] = ()
    timing: dict[str, float] = field(default_factory=dict)
    tables: Annotated[Mapping[str, pd.DataFrame], Field(exclude=True)] = field(
        default_factory=dict, compare=False, repr=False
    )
    save_more: Annotated[Callable[[Path], object], Field(exclude=True)] = field(
        default=_nothing, compare=False, repr=False
    )
    finish: Annotated[Callable[[Any, Path], object], Field(exclude=True)] = field(
        default=_nothing, compare=False, repr=False
    )

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json; null for NaN and infinity."""
        content = encode(_adapter(type(self)), self)
        last = {key: content.pop(key) for key in ("warnings", "timing", "provenance")}
        return {"schema": f"isentrope/{self.verb}/1", **content, **last}

    def save(self, folder: Path) -> None:
        """Write results.json, the tables, and whatever else there is.

        Args:
            folder: An existing folder.
        """
        write_json(folder / RESULTS, self.to_dict())
        for name, table in self.tables.items():
            table.to_parquet(folder / f"{name}.parquet")
        self.save_more(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote.

        Args:
            folder: Of one verb and checkpoint.

        Returns:
            The result; of any verb if this is `Result` itself.

        Raises:
            ResultsError: If the file cannot be read, or is of another verb.
        """
        path = folder / RESULTS
        try:
            text = path.read_text(encoding="utf-8")
            schema = json.loads(text)["schema"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{path} cannot be read ({error}): run the command that made it again."
            ) from error
        known = {f"isentrope/{kind.verb}/1": kind for kind in KINDS}
        if not issubclass(known.get(schema, Header), cls):
            raise ResultsError(
                f"{path}: its schema is {schema!r}, and it should be one of {', '.join(known)}."
            )
        result = decode(_adapter(known[schema]), text, path)
        return replace(result, tables=Tables(folder))


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@dataclass(frozen=True, kw_only=True)
class MeasureResult(Result):
    """ΔH(η) with its first and second order.

    Attributes:
        entropy: At θ, by functional.
        first_order: δH₁ per unit η; None if it was not asked for.
        pathwise: Its part at fixed samples.
        second_order: δH₂ per unit η².
        sweep: One row per learning rate.
        linear_range: η* = |δH₁/δH₂|.
        budget: δH₁ of the step and of its parts, each with its error at NAME_se.
        checks: Whether the instrument is sound.
    """

    verb: ClassVar[str] = "measure"

    entropy: dict[str, Value]
    first_order: Value | None
    pathwise: Value | None
    second_order: Value | None
    sweep: tuple[SweepRow, ...]
    linear_range: RangeValue | None
    budget: dict[str, Number]
    checks: Checks

    @property
    def unit(self) -> str:
        """Of entropy."""
        return self.estimator.unit or self.at_theta.unit

    @property
    def rate(self) -> float | None:
        """The learning rate of interest."""
        return self.step.rate_of_interest

    @property
    def at_theta(self) -> Estimate:
        """The entropy that was measured, before the step."""
        return self.entropy[self.estimator.functional]

    def at_rate(self) -> SweepRow | None:
        """The row of the sweep at the learning rate of interest; None if it is not in the sweep."""
        return next((row for row in self.sweep if row.eta == self.rate), None)

    def change_at(self, row: SweepRow) -> Estimate:
        """The measured change of a row: from fresh responses where they were drawn.

        Args:
            row: Of the sweep.

        Returns:
            ΔH(η).
        """
        if row.resampled is not None:
            return replace(row.resampled, unit=self.unit, n=self.at_theta.n)
        return self.measured_at(row)

    def measured_at(self, row: SweepRow) -> Estimate:
        """The change of a row as it was measured on E.

        Args:
            row: Of the sweep.

        Returns:
            ΔH(η); without an interval where the weights cannot be trusted.
        """
        return Estimate(
            row.deltaH_true,
            row.deltaH_true_se,
            row.deltaH_true_ci_low,
            row.deltaH_true_ci_high,
            self.at_theta.n,
            self.unit,
            row.method,
        )

    def part(self, name: str) -> Estimate | None:
        """A part of δH₁ per unit η, with its interval over the prompts of E.

        Args:
            name: "total", "momentum", "decay", "gradient", "control" or "rounding".

        Returns:
            The part; None if the step has no such part, or δH₁ was not asked for.
        """
        if name not in self.budget:
            return None
        return Estimate.from_standard_error(
            self.budget[name],
            self.budget[f"{name}_se"],
            self.at_theta.n,
            unit=f"{self.unit} per η",
            method="budget",
            confidence=self.estimator.confidence,
        )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """δ of one quantity per unit η, by the parts of the step.

    Attributes:
        momentum: Decided by earlier batches.
        decay: Of the weights.
        baseline: Both together.
        gradient: Of this batch.
        total: Of the whole step.
        closure: The parts less the total: rounding, and nothing else.
        unit: Of all of them.
    """

    momentum: Value
    decay: Value
    baseline: Value
    gradient: Value
    total: Value
    closure: Number
    unit: str


@dataclass(frozen=True, kw_only=True)
class SharesRecord:
    """The gradient's part of δH₁ on other responses, by how two responses are related.

    Attributes:
        measured_on: Those responses.
        itself: Of a response on itself.
        same_prompt: Of responses to the same prompt.
        other_prompt: Of responses to other prompts.
        gradient: The sum.
    """

    measured_on: str
    itself: Annotated[Value | None, OPTIONAL, Field(alias=IN_FILE["itself"])] = None
    same_prompt: Annotated[Value | None, OPTIONAL] = None
    other_prompt: Annotated[Value | None, OPTIONAL] = None
    gradient: Value


@dataclass(frozen=True, kw_only=True)
class InfluenceResult(Result):
    """Which sequences and tokens of U moved the entropy. Tables: sequences, tokens.

    Attributes:
        how: How it was computed.
        groups: Groups of prompts that errors are over.
        degrees_of_freedom: Of those errors.
        measured_on: The responses of E.
        entropy: δH₁ by the parts of the step.
        reward: δJ₁ likewise; None if it was not asked for.
        reliability: Rank correlation with an infinite E, of sequences and tokens.
        listed_share: Share of the largest sizes that is not noise.
        shares: By prompt, if they were asked for.
    """

    verb: ClassVar[str] = "influence"

    how: str
    groups: int
    degrees_of_freedom: int
    measured_on: str
    entropy: Budget
    reward: Budget | None
    reliability: dict[str, Value]
    listed_share: dict[str, Number] = field(default_factory=dict)
    shares: Annotated[SharesRecord | None, OPTIONAL] = None


@dataclass(frozen=True, kw_only=True)
class KernelResult(Result):
    """Blocks of the Fisher kernel. Tables: structure, block_model, truncations.

    Attributes:
        preconditioned: Whether it is that of the optimizer's metric.
        blocks: By name.
        second_order: δH₂ two ways, if it was asked for.
        truncations: How much of δH₁ each truncation predicts.
    """

    verb: ClassVar[str] = "kernel"

    preconditioned: bool
    blocks: dict[str, BlockRecord]
    second_order: Annotated[SecondOrder | None, OPTIONAL] = None
    truncations: Annotated[dict[str, TruncationRecord] | None, OPTIONAL] = None


@dataclass(frozen=True, kw_only=True)
class NoiseResult(Result):
    """Noise scales, in prompts. Table: noise.

    Attributes:
        gradient: |G|², tr Σ and B_simple of the plain gradient.
        preconditioned: The same in the optimizer's metric.
        entropy: The noise scale of δH₁, and the prompts that make its sign certain.
        supervised: The same of a supervised loss, if it was asked for.
    """

    verb: ClassVar[str] = "noise"

    gradient: dict[str, Value]
    preconditioned: dict[str, Value]
    entropy: dict[str, Value]
    supervised: Annotated[dict[str, Value] | None, OPTIONAL] = None

    @property
    def scales(self) -> dict[str, dict[str, Value]]:
        """All of them by name, those that were asked for."""
        names = ("gradient", "preconditioned", "entropy", "supervised")
        return {name: found for name in names if (found := getattr(self, name)) is not None}


@dataclass(frozen=True)
class ProxyRecord:
    """Proxies against the measured influence.

    Attributes:
        items: Tokens or sequences.
        proxies: Statistics by proxy; those of "measured" are of the influence itself.
    """

    items: int
    proxies: dict[str, dict[str, Value]]


@dataclass(frozen=True, kw_only=True)
class AuditResult(Result):
    """The published proxies against the measured influence. Table: audit.

    Attributes:
        off_policy: Whether U is weighted by ratios to the policy that drew it.
        reliability: Rank correlation of the influence with that of an infinite E.
        tokens: By token.
        sequences: By sequence.
    """

    verb: ClassVar[str] = "audit"

    off_policy: bool
    reliability: dict[str, Value]
    tokens: ProxyRecord
    sequences: ProxyRecord


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A control at a strength.

    Attributes:
        control: Its name.
        strength: How hard it acts.
        predicted: ηδH₁ of the step, where the strength was looked for.
        did: What it did to the batch.
        step: ΔH and ΔJ of the whole step, and what it gains.
        gradient: The same of the gradient part alone.
        did_gradient: What it did for that part, where it is not the same.
        reasons: Why a correction is missing or cut, by part.
    """

    control: str
    strength: float
    predicted: float | None
    did: dict[str, Number]
    step: dict[str, Value]
    gradient: dict[str, Value]
    did_gradient: Annotated[dict[str, Number] | None, OPTIONAL] = None
    reasons: Annotated[dict[str, str] | None, OPTIONAL] = None

    def part(self, name: str) -> dict[str, Estimate]:
        """What was measured of a part of the step.

        Args:
            name: "step" or "gradient".

        Returns:
            Changes by name.
        """
        return {"step": self.step, "gradient": self.gradient}[name]


@dataclass(frozen=True, kw_only=True)
class TrialResult(Result):
    """What controls would do to the next step. Table: trial.

    Attributes:
        eta: The learning rate.
        vanilla: ΔH and ΔJ without a control, by part of the step.
        tried: By control and strength.
    """

    verb: ClassVar[str] = "try"

    eta: float
    vanilla: dict[str, dict[str, Value]]
    tried: dict[str, Tried]


KINDS: tuple[type[Result], ...] = (
    MeasureResult,
    InfluenceResult,
    KernelResult,
    NoiseResult,
    AuditResult,
    TrialResult,
)
"""One per verb."""
