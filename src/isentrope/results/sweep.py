"""What results.json of `measure` says of a learning rate, of the linear range and of the checks.

Keys of that file are

    schema        "isentrope/measure/1"
    policy        checkpoint, optimizer, trainable parameters, temperature, device, precision
    batches       B_E sequences, B_U prompt groups, G responses per group; statistics of E and U
    estimator     functional, method, order, unit
    settings      keys: value, from (which file), training's own; differs; ignored
    step          learning_rate, gradient_norm, clip_factor, direction_norm, matched_by, ...
    entropy       per_sequence, per_token: Estimates at θ
    first_order, second_order, pathwise      Estimates; null if not asked for
    sweep         one row per rate: eta, delta_h (and _se, _ci_low, _ci_high), first_order =
                  ηδH₁, second_order = η²δH₂ (each and _se), residual (and _se, _ci_low, _ci_high,
                  _verdict), ess and ess_whole (of the batch), ess_integrated (over the vocabulary,
                  from which the verdict follows), carriers, khat, verdict, method, resampled,
                  first_over_change = ηδH₁/ΔH, an Estimate;
                  deltaH_true, deltaH_approx and deltaH_second are the notes' names of the same
    linear_range  Estimate of η* = |δH₁/δH₂|, with `rate_over_range`
    budget        δH₁ per unit η: total, momentum, decay, gradient, each with its _se
    reward        at_theta = J, first_order, second_order, top or no_top (why there is none), sweep:
                  one row per rate, with delta_j in place of delta_h; absent without rewards
    price         whole and at (by class of positions): tokens, entropy, first_order = ηδF, share,
                  reward = ηδJ, reward_for_a_nat, each an Estimate; momentum, cosine; at "group
                  NAME", where prompts of E have groups, change = ΔF too
    frontier      what any step of the same length could do, per unit η (`attribution.frontier`):
                  best, lost, reached, noise, ..., each an Estimate; missing: why there is none
    checks        score_identity and martingale: each _z, _p (of both, by Bonferroni) and _verdict;
                  rounding_floor
    warnings      sentences on what limits the use of these numbers
    timing        seconds by stage, and total
    provenance    versions, seeds

An Estimate is written as {value, se, ci_low, ci_high, n, unit, method, ess, khat, warnings}. What
cannot be known (an interval where the weights are heavy-tailed, for one) is null.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from isentrope.estimators.reward_change import REWARD, RewardOrders
from isentrope.estimators.rounding_floor import RoundingFloor
from isentrope.estimators.sweep import RateRow, SweepRow
from isentrope.nouns.columns import Column
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent
from isentrope.results.names_of_notes import AlsoAs

SavedRow = Annotated[SweepRow, AlsoAs(("deltaH_true", "deltaH_approx", "deltaH_second"))]
"""A row, written with the names of the notes too."""


@dataclass(frozen=True, kw_only=True)
class RewardRow(RateRow):
    """ΔJ at one learning rate, in units of reward.

    Attributes:
        change: ΔJ(η).
        verdict: What the weights allow: "trust", "smooth" or "resample".
    """

    estimates_in: ClassVar[str] = REWARD

    change: Annotated[Estimate, Column(key="delta_j")]
    verdict: str


@dataclass(frozen=True, kw_only=True)
class RewardRecord(RewardOrders):
    """ΔJ(η) with its first and second order.

    Attributes:
        at_theta: J before the step.
        sweep: One row per learning rate.
    """

    at_theta: Estimate
    sweep: tuple[RewardRow, ...]

    def at(self, eta: float | None) -> RewardRow | None:
        """The row of a learning rate; None if ΔJ was not measured there."""
        return next((row for row in self.sweep if row.eta == eta), None)


@dataclass(frozen=True, kw_only=True)
class OfCheckpoint:
    """A row of a table of several checkpoints.

    Attributes:
        checkpoint: Its name.
    """

    checkpoint: Annotated[str, Column("checkpoint", left=True)]


@dataclass(frozen=True, kw_only=True)
class SweepLine(SweepRow, OfCheckpoint):
    """A row of sweep.parquet.

    Attributes:
        gained: ΔJ(η), where it was measured.
        reward_verdict: What the weights allow for it.
    """

    gained: Annotated[Absent[Estimate], Column(key="delta_j")] = None
    reward_verdict: Annotated[Absent[str], Column()] = None


@dataclass(frozen=True)
class LinearRange(Estimate):
    """η* = |δH₁/δH₂|.

    Attributes:
        rate_over_range: The learning rate of interest over it; None where it is 0.
    """

    rate_over_range: float | None = None


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Whether the instrument is sound; None where an identity was not tested.

    Attributes:
        score_identity_z: E[Σ ∂_v s] = 0, as a z-score.
        score_identity_p: Adjusted for both tests.
        score_identity_verdict: What the z-score says, in a word.
        martingale_z: E[S + Σ H] = 0, as a z-score.
        martingale_p: Adjusted for both tests.
        martingale_verdict: What the z-score says, in a word.
        rounding_floor: What rounding alone does.
    """

    score_identity_z: float | None
    score_identity_p: float | None = None
    score_identity_verdict: str | None = None
    martingale_z: float | None
    martingale_p: float | None = None
    martingale_verdict: str | None = None
    rounding_floor: RoundingFloor
