"""The change ΔH(η) that a step θ → θ + ηv causes, with its first and second order (T2), (T3).

    ΔH(η) = F(r(η), H(η)) − F(r(0), H(0)),     δH₁ = dF/dη,     δH₂ = ½ d²F/dη²,     η* = |δH₁/δH₂|

All are read from one F on one sample, so ΔH − ηδH₁ − η²δH₂ = O(η³) sample by sample, and their
errors (T11) are joint. δH₁ is per unit η, δH₂ per unit η².
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.estimators.importance import Trust
from isentrope.estimators.jackknife import Jackknifed, infinitesimal_jackknife
from isentrope.estimators.means import too_few_for_modes
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.ratio import ratio_of
from isentrope.estimators.sample import (
    FIRST_CHANGE,
    ScoredBatch,
    score_batch,
    statistics_of_sample,
)
from isentrope.estimators.sweep import ChangeAtRate, SweepRow, orders_at
from isentrope.nouns.choices import PER_OF, Method, Per, PerOption
from isentrope.nouns.columns import printed_columns
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.chi_square import Divergence, score_moved
from isentrope.policy.language_model import Policy
from isentrope.policy.token_statistics import Scores
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.figures import figure_of
from isentrope.system.html_table import html_table
from isentrope.system.one_line import one_line, plural
from isentrope.system.progress import ProgressCallback, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MovedScores = tuple[Scores, Divergence | None] | None
"""Scores at θ + ηv, and how far each distribution has moved from the sampler's, where that is
known; None where the scores are not finite."""


@dataclass(frozen=True)
class EntropyChange(PerOption):
    """A sweep of ΔH over learning rates, with its predictions.

    Attributes:
        entropy: ℋ or h at θ.
        first_order: δH₁ per unit η, or None if order was 0.
        pathwise: The part of δH₁ that an entropy bonus differentiates (∂H at fixed samples).
        second_order: δH₂ per unit η², or None if order was below 2.
        linear_range: η*, or None; with Fieller's interval, which has no upper end where δH₂ may be
            0.
        points: One per learning rate, in the order given.
        per: "token" or "sequence".
        method: The estimator.
        sample: The scored E-batch behind all numbers.
        moved: The same batch scored at each learning rate, and how far each distribution moved.
        influences: (P,) of each prompt draw on the changes, by their names in results.json: with
            those of another step on the same E, the error of a mean over steps.
    """

    entropy: Estimate
    first_order: Estimate | None
    pathwise: Estimate | None
    second_order: Estimate | None
    linear_range: Estimate | None
    points: list[ChangeAtRate]
    per: Per
    method: Method
    sample: ScoredBatch = field(repr=False)
    moved: Sequence[MovedScores] = field(default=(), repr=False)
    influences: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False)

    def __repr__(self) -> str:
        first = [] if self.first_order is None else [f"δH₁ {self.first_order}"]
        rates = plural(len(self.points), "learning rate")
        return one_line(self, f"H {self.entropy}", *first, f"{rates}, {self.method}")

    def _repr_html_(self) -> str:
        """Entropy, the first order and the sweep, for a notebook."""
        first = [] if self.first_order is None else [f"First order δH₁ {self.first_order}."]
        columns = [*printed_columns(SweepRow)] if self.points else []
        rows = [[column.cell(None, row) for column in columns] for row in self.rows()]
        titles = [column.title for column in columns]
        return html_table([f"Entropy {self.entropy}.", *first], titles, rows)

    @property
    def unit(self) -> str:
        """Unit of a change."""
        return self.entropy.unit

    def rows(self) -> list[SweepRow]:
        """The sweep as it is saved and printed, one row per learning rate."""
        return [SweepRow.from_point(point) for point in self.points]

    def plot(self) -> "Figure":
        """The report's figure of ΔH(η), a matplotlib figure.

        Returns:
            The figure, of `savefig`; a notebook shows it.

        Raises:
            LookupError: If there is no learning rate.
        """
        return figure_of(self)

    def to_frame(self) -> "pd.DataFrame":
        """A pandas table, one row per learning rate.

        Returns:
            The columns of `SweepRow`: eta, delta_h (ΔH(η)), first_order (ηδH₁), second_order
            (η²δH₂), residual, ess, ess_integrated, khat, verdict, residual_verdict, ...; with _se,
            and beside delta_h and residual _ci_low and _ci_high.
        """
        from isentrope.nouns.tables import frame

        return frame(self.rows())


_ROUNDING = 1e-15
"""Part of F below which an influence on its change is rounding."""

_ONE_UNIT = "One prompt draw has no standard error: draw two or more prompts."


@refuse_other_types
def entropy_change(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    etas: Sequence[float],
    estimator: EstimatorOptions = EstimatorOptions(),
    *,
    order: int = 2,
    progress: ProgressCallback = silent,
) -> EntropyChange:
    """Measure ΔH(η) on an E-batch and predict it to first and second order.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch, not the batch that `direction` was computed from.
        direction: v = Δθ/η by parameter name.
        etas: Learning rates; may be empty.
        estimator: Which entropy, by which method, and the coverage of the intervals.
        order: Derivatives to compute: 0, 1 or 2.
        progress: Called before each evaluation.

    Returns:
        The sweep. A learning rate whose weights collapse gives a value with verdict "resample".
        Where those at θ are bad, because another policy drew the sample, nothing has an interval.

    Raises:
        ValueError: If a learning rate is not finite or `order` is not 0, 1 or 2.
        DerivativeError: If the derivatives of scores are not those of differences.
    """
    if order not in (0, 1, 2) or not all(math.isfinite(eta) for eta in etas):
        raise ValueError(f"etas must be finite and order 0, 1 or 2; got {list(etas)}, {order}.")
    policy.require_direction(direction)
    stages = 2 if etas else 1
    progress(0, stages, "entropy" if order == 0 else f"derivatives to order {order}")
    sample = score_batch(policy, rollouts, estimator, direction=direction, order=order)
    if etas:
        progress(1, stages, f"ΔH at {len(etas)} learning rates")
    moved_scores = score_moved(
        policy, rollouts, direction, etas, sampler=sample.sampler, remainder=order == 2
    )
    return change_of_sample(sample, etas, moved_scores, confidence=estimator.confidence)


def change_of_sample(
    sample: ScoredBatch,
    etas: Sequence[float],
    moved_scores: Sequence[MovedScores],
    *,
    confidence: float = 0.95,
    result: Jackknifed | None = None,
) -> EntropyChange:
    """The sweep from existing scores: arrays only, no model.

    Args:
        sample: Scores at θ, with derivatives to the order requested.
        etas: Learning rates.
        moved_scores: What is known at θ + ηv for each; without a divergence an interval requires
            nearly even weights.
        confidence: Nominal coverage of the intervals.
        result: The jackknifed `statistics_of_sample`, if already computed.

    Returns:
        The sweep.
    """
    order = len(sample.series) - 1
    f = sample.functional
    nan = torch.full_like(sample.entropies, math.nan)
    not_finite = (Scores(nan, nan, sample.series[0].mask), None)
    pairs = [scores_and_divergence or not_finite for scores_and_divergence in moved_scores]
    result = result or infinitesimal_jackknife(
        statistics_of_sample(sample, etas, [scores for scores, _ in pairs]), sample.prompt_index
    )
    rounding = _ROUNDING * result.values[0].abs()  # of F, whose differences the others are
    is_rounding = result.influences.abs().amax(1, keepdim=True) <= rounding
    is_rounding[:FIRST_CHANGE] = False  # F itself and its derivatives
    result = replace(result, influences=result.influences.masked_fill(is_rounding, 0.0))
    base = sample.trust.without_interval(_ONE_UNIT if result.n_units < 2 else "")

    def options(unit: str = f.unit, trust: Trust = base) -> dict[str, Any]:
        return {"unit": unit, "confidence": confidence, **trust.options(f.method)}

    first = pathwise = second = linear_range = None
    if order:
        first = result.estimate(1, **options(f"{f.unit} per η"))
        pathwise = result.estimate(2, **options(f"{f.unit} per η"))
    if order == 2:
        second = result.estimate(3, order=2, **options(f"{f.unit} per η²"))
        linear_range = ratio_of(result, 1, 3, name=f"δ{f.symbol}₂", **options("η"))
    points: list[ChangeAtRate] = []
    for row, eta, (scores, divergence) in zip(count(FIRST_CHANGE, 2), etas, pairs, strict=False):
        trusts = [x.or_worse(base) for x in sample.trust_of_change(scores, divergence)]
        if not math.isfinite(float(result.standard_errors[row])):
            trusts = [x.without_interval() for x in trusts]
        trust, residual_trust = trusts
        change = result.estimate(row, order=trust.order, **options(trust=trust))
        residual = None
        if order == 2:
            of_rest = options(trust=residual_trust) | {"order": residual_trust.order}
            residual = result.estimate(row + 1, **of_rest)
        points.append(
            ChangeAtRate(
                eta=eta,
                change=change,
                **orders_at(eta, first, second, f.unit),
                residual=residual,
                trust=trust,
                residual_trust=None if residual is None else residual_trust,
                first_over_change=_divide_by_change(result, row, eta, order, options("", trust)),
            )
        )
    entropy = result.estimate(0, **options())
    return EntropyChange(
        entropy=replace(entropy, warnings=(*entropy.warnings, *too_few_for_modes(result.n_units))),
        first_order=first,
        pathwise=pathwise,
        second_order=second,
        linear_range=linear_range,
        points=points,
        per=PER_OF[f.functional],
        method=f.method,
        sample=sample,
        moved=moved_scores,
        influences=_name_influences(result.influences, etas, order),
    )


def _divide_by_change(
    result: Jackknifed, row: int, eta: float, order: int, options: dict[str, Any]
) -> Estimate | None:
    """ηδH₁/ΔH; None without derivatives, or where ΔH is exactly 0."""
    if not order or not float(result.values[row]):
        return None
    # its influences are those of what the first order lacks, as the second order's are
    return ratio_of(result, 1, row, name="ΔH", sign="any", order=2, **options).scaled(eta)


_ORDERS = ((), ("first_order", "pathwise"), ("first_order", "pathwise", "second_order"))
_SWEPT = (
    ("delta_h",),
    ("delta_h", "first_order"),
    ("delta_h", "residual", "first_order", "second_order"),
)
"""Numbers with an influence, by the orders that are known: at θ, and at a learning rate."""


def _name_influences(rows: Tensor, etas: Sequence[float], order: int) -> dict[str, Tensor]:
    """Rows of influences by the names of their numbers in results.json."""
    influences = dict(zip(_ORDERS[order], rows[1:FIRST_CHANGE], strict=False))
    for k, eta in enumerate(etas):
        change, residual = rows[FIRST_CHANGE + 2 * k : FIRST_CHANGE + 2 * k + 2]
        at_rate = {
            "delta_h": change,
            "residual": residual,
            "first_order": eta * rows[1],
            "second_order": eta * eta * rows[3],
        }
        influences |= {f"sweep[{eta:g}].{name}": at_rate[name] for name in _SWEPT[order]}
    return influences
