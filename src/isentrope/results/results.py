"""What the verbs find: one result per checkpoint. Fields are keys of results.json."""

from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from typing import Annotated

from pydantic import FiniteFloat

from isentrope.attribution.fisher.truncation import Prediction
from isentrope.attribution.frontier.frontier import Frontier
from isentrope.attribution.influence.classes import Classes
from isentrope.estimators.spent import Price
from isentrope.estimators.sweep import SweepRow
from isentrope.estimators.variance import MethodVariance
from isentrope.nouns.columns import ByName
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent
from isentrope.results.attributions import (
    BlockRecord,
    Budget,
    Changes,
    EntropyRecord,
    ProxyRecord,
    SecondOrder,
    SharesRecord,
    Tried,
)
from isentrope.results.decode import ResultsError
from isentrope.results.result import Result
from isentrope.results.sweep import Checks, LinearRange, RewardRecord, SavedRow
from isentrope.results.verbs import (
    AUDIT,
    ENTROPIES,
    INFLUENCE,
    KERNEL,
    MEASURE,
    NOISE,
    RESULTS,
    TRY,
    VARIANCE,
)
from isentrope.system.argument_types import refuse_other_types


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasureResult(Result, verb=MEASURE):
    """ΔH(η) with its first and second order.

    Attributes:
        entropy: At θ, by functional.
        first_order: δH₁ per unit η; None if it was not asked for.
        pathwise: Its part at fixed samples.
        second_order: δH₂ per unit η².
        sweep: One row per learning rate.
        linear_range: η* = |δH₁/δH₂|.
        budget: δH₁ per unit η of the step ("total") and of its parts: "momentum", "decay" and
            "gradient", and where there are any "control" and "rounding".
        checks: Whether the instrument is sound.
        reward: ΔJ(η) likewise; None where E has no rewards.
        price: What the step spends and earns at the rate of interest, to first order.
        frontier: What any step of the same length could do, per unit η, and where this one stands.
    """

    entropy: dict[str, Estimate]
    first_order: Estimate | None
    pathwise: Estimate | None
    second_order: Estimate | None
    sweep: tuple[SavedRow, ...]
    linear_range: LinearRange | None
    budget: Annotated[dict[str, Estimate], ByName("per η")]
    checks: Checks
    reward: Absent[RewardRecord] = None
    price: Absent[Price] = None
    frontier: Absent[Frontier] = None

    @property
    def unit(self) -> str:
        """Of entropy."""
        return self.estimator.unit or self.at_theta.unit

    @property
    def rate(self) -> float | None:
        """The learning rate of interest: training's, or `estimator.single_eta`."""
        return self.step.rate_of_interest

    @property
    def rate_name(self) -> str:
        """What the learning rate of interest is: training's own, or one that was chosen."""
        trained = self.rate is not None and isclose(
            self.rate, self.step.learning_rate, rel_tol=1e-6
        )
        return "training rate" if trained else "chosen rate"

    @property
    def at_theta(self) -> Estimate:
        """The entropy that was measured, before the step."""
        return self.entropy[self.estimator.functional]

    def at_rate(self) -> SweepRow | None:
        """The row of the sweep at the learning rate of interest; None if it is not in the sweep."""
        return next((row for row in self.sweep if row.eta == self.rate), None)


@dataclass(frozen=True, kw_only=True, repr=False)
class InfluenceResult(Result, verb=INFLUENCE):
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
        classes: Of "tokens" and "sequences"; of "sequences_by_group" where prompts
            have groups.
    """

    how: str
    groups: int
    degrees_of_freedom: int | None = None
    measured_on: str = "E"
    entropy: Budget
    reward: Budget | None
    reliability: dict[str, Estimate]
    listed_share: dict[str, float] = field(default_factory=dict)
    shares: Absent[SharesRecord] = None
    classes: dict[str, Classes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelResult(Result, verb=KERNEL):
    """Blocks of the Fisher kernel. Tables: structure, block_model, truncations.

    Attributes:
        preconditioned: Whether it is that of the optimizer's metric.
        blocks: By name.
        second_order: δH₂ two ways, if it was asked for.
        truncations: How much of δH₁ each truncation predicts.
    """

    preconditioned: bool
    blocks: dict[str, BlockRecord]
    second_order: Absent[SecondOrder] = None
    truncations: Absent[dict[str, Prediction]] = None


@dataclass(frozen=True, kw_only=True, repr=False)
class NoiseResult(Result, verb=NOISE):
    """Noise scales, in prompts. Table: noise.

    Attributes:
        gradient: |G|², tr Σ and B_simple of the plain gradient.
        preconditioned: The same in the optimizer's metric.
        entropy: The noise scale of δH₁, and the prompts that make its sign certain.
        supervised: The same of a supervised loss, if it was asked for.
    """

    gradient: dict[str, Estimate]
    preconditioned: dict[str, Estimate]
    entropy: dict[str, Estimate]
    supervised: Absent[dict[str, Estimate]] = None


@dataclass(frozen=True, kw_only=True, repr=False)
class VarianceResult(Result, verb=VARIANCE):
    """The errors of every estimator on one E-batch. Table: variance.

    Attributes:
        eta: The learning rate of ηδH₁ and ΔH(η).
        wanted_error: The relative error that `prompts_needed` is for.
        methods: By quantity (entropy, first_order, delta_h), then by estimator.
        seconds: Per response of E, by stage; "batches" draws U too.
    """

    eta: FiniteFloat
    wanted_error: FiniteFloat
    methods: dict[str, dict[str, MethodVariance]]
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True, repr=False)
class AuditResult(Result, verb=AUDIT):
    """The published proxies against the measured influence. Table: audit.

    Attributes:
        off_policy: Whether U is weighted by ratios to the policy that drew it.
        reliability: Rank correlation of the influence with that of an infinite E.
        tokens: By token.
        sequences: By sequence.
        classes: Of "tokens" and "sequences".
    """

    off_policy: bool
    reliability: dict[str, Estimate]
    tokens: ProxyRecord
    sequences: ProxyRecord
    classes: dict[str, Classes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrialResult(Result, verb=TRY):
    """What controls would do to the next step. Table: trial.

    Attributes:
        eta: The learning rate.
        vanilla: ΔH and ΔJ without a control, by part of the step.
        tried: By control and strength.
        frontier: What any step of vanilla's length could do, per unit η, and where vanilla stands;
            None where E has no rewards or fewer than 16 prompts.
    """

    eta: FiniteFloat
    vanilla: dict[str, Changes]
    tried: dict[str, Tried]
    frontier: Absent[Frontier] = None


@dataclass(frozen=True, kw_only=True, repr=False)
class EntropiesResult(Result, verb=ENTROPIES):
    """Every definition of entropy at one checkpoint. Table: entropies.

    Attributes:
        logged: What the trainer logged; None where it is not known.
        logged_from: Where that was found.
        rows: One per batch and definition.
    """

    logged: float | None
    logged_from: str | None
    rows: tuple[EntropyRecord, ...]


@refuse_other_types
def load_result(folder: str | Path) -> Result:
    """Read what a verb found at one checkpoint.

    Args:
        folder: A folder of `measurements/` in a run folder, with its results.json.

    Returns:
        The result, of the class of its verb: a `MeasureResult` of `isentrope measure`.

    Raises:
        ResultsError: If the file cannot be read.
        FileError: If a file of the folder was changed after it was written.
    """
    place = Path(folder)
    patterns = (f"*/{RESULTS}", f"*/*/{RESULTS}")
    inside = sorted(file.parent for pattern in patterns for file in place.glob(pattern))
    if inside and not (place / RESULTS).is_file():
        raise ResultsError(
            f"{place} is not the folder of one result: it holds {len(inside)}, give one of them, "
            f"such as {inside[0]}."
        )
    if place.is_dir() and not (place / RESULTS).is_file():
        raise ResultsError(
            f"{place} holds no {RESULTS}, which every verb that measures writes: isentrope show "
            f"{place} prints an evaluation or the results of a run."
        )
    return Result.load(place)
