"""What the verbs find: one result per checkpoint. Fields are keys of results.json."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from isentrope.nouns.estimate import Estimate
from isentrope.results.attribution_records import (
    Budget,
    Changes,
    ProxyRecord,
    SharesRecord,
    Tried,
)
from isentrope.results.class_records import ClassesRecord
from isentrope.results.entropy_records import EntropiesResult
from isentrope.results.kernel_records import BlockRecord, SecondOrder, TruncationRecord
from isentrope.results.measure_records import ChecksValue, RangeValue, RowValue, SweepRow
from isentrope.results.momentum_records import MomentumRecord
from isentrope.results.result import RESULTS, Result, read_schema
from isentrope.results.result_coding import OPTIONAL, Number, ResultsError, Value
from isentrope.results.reward_records import RewardRecord
from isentrope.results.variance_records import MethodRecord


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
        budget: δH₁ of the step and of its parts, each with its error at NAME_se and the
            error's degrees of freedom at NAME_degrees_of_freedom, NaN where it has no interval.
        checks: Whether the instrument is sound.
        reward: ΔJ(η) likewise; None where E has no rewards.
    """

    verb: ClassVar[str] = "measure"

    entropy: dict[str, Value]
    first_order: Value | None
    pathwise: Value | None
    second_order: Value | None
    sweep: tuple[RowValue, ...]
    linear_range: RangeValue | None
    budget: dict[str, Number]
    checks: ChecksValue
    reward: Annotated[RewardRecord | None, OPTIONAL] = None

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
        """ΔH(η) of a row: from fresh responses where they were drawn."""
        if row.resampled is not None:
            return replace(row.resampled, unit=self.unit, n=self.at_theta.n)
        return self.measured_at(row)

    def measured_at(self, row: SweepRow) -> Estimate:
        """ΔH(η) of a row as measured on E; no interval where the weights cannot be trusted."""
        return Estimate(
            row.delta_h,
            row.delta_h_se,
            row.delta_h_ci_low,
            row.delta_h_ci_high,
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
        n, unit, se = self.at_theta.n, f"{self.unit} per η", self.budget[f"{name}_se"]
        if se == 0:  # the step has no such component
            return Estimate.exact(self.budget[name], n, unit=unit, method="budget")
        return Estimate.from_standard_error(
            self.budget[name],
            se,
            n,
            unit=unit,
            method="budget",
            confidence=self.estimator.confidence,
            degrees_of_freedom=self.budget.get(f"{name}_degrees_of_freedom"),
        )


@dataclass(frozen=True, kw_only=True)
class InfluenceResult(Result):
    """Which sequences and tokens of U moved the entropy. Tables: sequences, tokens.

    Attributes:
        how: How it was computed.
        groups: Groups of prompts that errors are over.
        degrees_of_freedom: Of those errors; None in results of earlier versions.
        measured_on: The responses of E.
        entropy: δH₁ by the parts of the step.
        reward: δJ₁ likewise; None if it was not asked for.
        reliability: Rank correlation with an infinite E, of sequences and tokens.
        listed_share: Share of the largest sizes that is not noise.
        shares: By prompt, if they were asked for.
        past: The momentum by past update, if that was asked for. Table: momentum.
        classes: Of "tokens" and "sequences".
    """

    verb: ClassVar[str] = "influence"

    how: str
    groups: int
    degrees_of_freedom: int | None = None
    measured_on: str = "E"
    entropy: Budget
    reward: Budget | None
    reliability: dict[str, Value]
    listed_share: dict[str, Number] = field(default_factory=dict)
    shares: Annotated[SharesRecord | None, OPTIONAL] = None
    past: Annotated[MomentumRecord | None, OPTIONAL] = None
    classes: dict[str, ClassesRecord] = field(default_factory=dict)


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
        return {name: scale for name in names if (scale := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class VarianceResult(Result):
    """The errors of every estimator on one E-batch. Table: variance.

    Attributes:
        eta: The learning rate of ηδH₁ and ΔH(η).
        wanted_error: The relative error that `prompts_needed` is for.
        methods: By quantity (entropy, first_order, delta_h), then by estimator.
        seconds: Per response of E, by stage; "batches" draws U too.
    """

    verb: ClassVar[str] = "variance"

    eta: float
    wanted_error: float
    methods: dict[str, dict[str, MethodRecord]]
    seconds: dict[str, Number]


@dataclass(frozen=True, kw_only=True)
class AuditResult(Result):
    """The published proxies against the measured influence. Table: audit.

    Attributes:
        off_policy: Whether U is weighted by ratios to the policy that drew it.
        reliability: Rank correlation of the influence with that of an infinite E.
        tokens: By token.
        sequences: By sequence.
        classes: Of "tokens" and "sequences".
    """

    verb: ClassVar[str] = "audit"

    off_policy: bool
    reliability: dict[str, Value]
    tokens: ProxyRecord
    sequences: ProxyRecord
    classes: dict[str, ClassesRecord] = field(default_factory=dict)


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
    vanilla: dict[str, Changes]
    tried: dict[str, Tried]


KINDS: tuple[type[Result], ...] = (
    MeasureResult,
    InfluenceResult,
    KernelResult,
    NoiseResult,
    VarianceResult,
    AuditResult,
    TrialResult,
    EntropiesResult,
)
"""One per verb."""


def load_result(folder: Path) -> Result:
    """Read a result of any verb.

    Returns:
        The result.

    Raises:
        ResultsError: If the file cannot be read, or is of no verb.
    """
    schema = read_schema(folder)[1]
    known = {f"isentrope/{kind.verb}/1": kind for kind in KINDS}
    if schema not in known:
        raise ResultsError(
            f"{folder / RESULTS}: its schema is {schema!r}, and it should be one of "
            f"{', '.join(known)}."
        )
    return known[schema].load(folder)
