"""How far importance weights can be trusted: the integrated effective sample size (T2).

    E[W²] = 1 + E[ Σ_k W_ik² χ²_ik ],     ESS/n = 1 / (1 + mean_i Σ_k W_ik² χ²_ik)

χ²_ik is the variance of the next factor of the weight over the whole vocabulary (`chi_square`), so
the verdict does not depend on whether a rare, heavily weighted token happens to be in the batch.
The effective sample size of the batch itself does: it is largest in the batches that missed the
tail, and intervals selected by it cover as little as .35 where .95 is claimed. It is kept as a
diagnostic and does not enter the verdict where χ² is known.

    carriers = n (mean_i Σ_k W_ik² χ²_ik)² / mean_i Σ_k W_ik⁴ κ_ik

is the number of responses of a batch of n that are expected to carry the variance of the weights;
the same with ρ for the part of ΔH beyond its second order. Below a few of them an error bar
rests on events that most batches do not contain, even where the weights are nearly equal.

Verdicts: "trust" (value and interval), "smooth" (the value is indicative, no interval), "resample"
(ESS below half of n, where fresh responses are as accurate, or a mean weight that is not 1).
The batches that pass near a threshold are those that hold too little of the tail, so an interval
grows continuously towards it (`Trust.strain`), to many times its length where it ends:

    1/df = order/ν + STRAIN · (1 − ESS/n) / (ESS/n − e),     e = least − (1 − least)/10

with ν the participation of the influences (T11).
The thresholds are measured (docs/results/verdict.md). PSIS k̂ is a second alarm: it adds a warning
and withholds nothing, because it too is computed from the batch.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from isentrope.estimators.weights import effective_sample_size, integrated, pareto_khat

Verdict = Literal["trust", "smooth", "resample"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""From good to bad."""

_INDICATIVE = "the value is indicative only, and has no interval."
_FRESH = 'draw fresh responses from the policy itself (for ΔH, method "resampled").'
UNEVEN = f"The importance weights are too uneven here: {_INDICATIVE}"
FEW_CARRIERS = f"Too few responses carry the variance of the importance weights: {_INDICATIVE}"
UNKNOWN_ERROR = f"The error of the importance weights is not known here: {_INDICATIVE}"
COLLAPSED = f"The importance weights have collapsed here: {_FRESH}"
MEAN_NOT_ONE = f"The mean of the importance weights is not 1 here, as it should be: {_FRESH}"
"""By the rule that decided a verdict."""

COLLAPSED_ESS = 0.5
"""ESS/n below which fresh responses are as accurate as the weights (docs/results/coverage.md)."""

NEGLIGIBLE_ESS_LOSS = 0.99
"""ESS/n from which weights are so even that the shape of their tail does not matter."""

MEAN_WEIGHT_TOLERANCE = 0.1
"""How far from 1 the mean weight may be, beyond five of its standard errors."""

STRAIN = 0.2
"""How fast degrees of freedom are lost towards the threshold of a verdict."""

Rule = tuple[float, float]
"""What an interval requires of the weights: least ESS/n, and least number of carriers."""

PER_TOKEN_PREFIX: Rule = (0.8, 0)
"""Of ΔH per token by "prefix" weights, which are each of a part of the response only."""

OTHERWISE: Rule = (0.9, 2)
"""Of every other ΔH: per sequence, "sequence", "doubly-robust" and "surprisal"."""

RESIDUAL_RULE: Rule = (0.9, 10)
"""Of ΔH − ηδH₁ − η²δH₂, in which the common tokens cancel and the rare ones are left."""

WITHOUT_CHI_SQUARE: Rule = (0.98, 0)
"""Of every ΔH where χ² is not known; ESS/n is then that of the batch."""


@dataclass(frozen=True)
class Trust:
    """Diagnostics of one set of prefix weights.

    Attributes:
        ess: Effective sample size of the batch, averaged over positions by the tokens there.
        ess_by_position: (t,) effective sample size of W_ik at each position k.
        ess_whole: Effective sample size of the whole-sequence weights: the last and worst.
        ess_integrated: Effective sample size with each token integrated over the vocabulary, from
            which the verdict follows; NaN where χ² is not known.
        carriers: Number of responses expected to carry the variance; infinite where it is zero,
            NaN where it is not known.
        khat: Pareto shape of the tail of the whole-sequence weights; NaN if they are too few
            or all equal.
        bound: Largest acceptable k̂ for this n, min(1 − 1/log10 n, 0.7) (Vehtari et al., PSIS).
        verdict: "trust", "smooth" or "resample".
        strain: What 1/df of an interval with these weights has in addition.
        order: By which ν of a change is divided: 2 where ΔH has the tail of whole responses.
        notes: Warnings that hold for every verdict.
        reason: Why the verdict is not "trust", or there is no interval; else empty.
    """

    ess: float
    ess_by_position: Tensor
    ess_whole: float
    ess_integrated: float
    carriers: float
    khat: float
    bound: float
    verdict: Verdict
    strain: float = 0.0
    order: int = 1
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for a number computed with these weights: of the verdict, and of k̂."""
        return (self.reason, *self.notes) if self.reason else self.notes

    @property
    def caveats(self) -> dict[str, Any]:
        """Warnings, and whether a number computed with these weights has an interval."""
        trusted = self.verdict == "trust"
        return {"warnings": self.warnings, "trusted": trusted, "strain": self.strain}

    def options(self, method: str) -> dict[str, Any]:
        """What an `Estimate` that is made with these weights says of them.

        Args:
            method: The estimator: "sequence" has one weight per response.

        Returns:
            Method, effective sample size, k̂ and caveats.
        """
        ess = self.ess_whole if method == "sequence" else self.ess
        return {"method": method, "ess": ess, "khat": self.khat, **self.caveats}

    def for_residual(self, log_ratios: Tensor, remainder: Tensor) -> Trust:
        """The verdict on ΔH − ηδH₁ − η²δH₂ with the same weights.

        Args:
            log_ratios: (n, t) per-token log-ratios.
            remainder: (n, t, 2) ρ of each token.

        Returns:
            A copy with the residual's carriers and verdict.
        """
        carriers = integrated(log_ratios.cumsum(1) - log_ratios, remainder)[1]
        ess_ratio = self.ess_integrated / len(log_ratios)
        verdict, reason = _judge(ess_ratio, carriers, RESIDUAL_RULE)
        strain = _lengthen_near_threshold(ess_ratio, RESIDUAL_RULE)
        # the verdict on ΔH stays, where it is the worse one
        as_judged = replace(self, carriers=carriers, order=3)
        return as_judged.or_worse(replace(as_judged, verdict=verdict, reason=reason, strain=strain))

    def without_interval(self, reason: str = UNKNOWN_ERROR) -> Trust:
        """The same, at best "smooth".

        Args:
            reason: Why; empty for no reason, which changes nothing.

        Returns:
            A copy; this one where it has no interval already.
        """
        if self.verdict != "trust" or not reason:
            return self
        return replace(self, verdict="smooth", reason=reason)

    def or_worse(self, other: Trust) -> Trust:
        """The one with the worse verdict, where a number uses both sets of weights.

        Args:
            other: Diagnostics of the other set.

        Returns:
            This one, unless the other's verdict is worse, with the notes of both.
        """
        worse = max(self, other, key=lambda trust: VERDICTS.index(trust.verdict))
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        strain = worse.strain
        order = worse.order
        if worse.verdict == "trust":  # else there is no interval
            strain = max(self.strain, other.strain)
            order = max(self.order, other.order)
        if (worse.notes, worse.strain, worse.order) == (notes, strain, order):
            return worse
        return replace(worse, notes=notes, strain=strain, order=order)


_HEAVY = (
    "k̂ of the weights is beyond its bound: a few responses weigh much more than the rest; compare "
    'with method "resampled".'
)


def diagnose(
    log_ratios: Tensor,
    tokens: Tensor,
    moments: Tensor | None = None,
    rule: Rule = OTHERWISE,
    *,
    notes: tuple[str, ...] = (),
) -> Trust:
    """Judge importance weights.

    Args:
        log_ratios: (n, t) per-token log-ratios, 0 where there is no token.
        tokens: (n, t) mask or token counts.
        moments: (n, t, 2) χ² and κ of each token, or (n, t, 1) χ² alone; None where they are
            not known, and the effective sample size of the batch is used instead.
        rule: What an interval requires where they are known; else `WITHOUT_CHI_SQUARE`.
        notes: Warnings to add.

    Returns:
        The diagnostics.
    """
    n = len(log_ratios)
    after = log_ratios.cumsum(1)
    log_weights = after[:, -1]
    by_position = effective_sample_size(after - log_ratios)
    share = tokens.double().sum(0) / tokens.sum()
    worst = float(effective_sample_size(log_weights))
    khat = pareto_khat(log_weights)
    bound = min(1 - 1 / math.log10(max(n, 2)), 0.7) if n > 10 else 0.0
    if moments is None:
        rule = WITHOUT_CHI_SQUARE
        ess_ratio = worst / n
        carriers = math.nan
    else:
        ess_ratio, carriers = integrated(after - log_ratios, moments)
    weights = log_weights.exp()
    spread = float(weights.std(correction=min(1, n - 1)) / math.sqrt(n))
    verdict, reason = _judge(ess_ratio, carriers, rule)
    # `not … <=`, because weights that overflow have a mean of NaN
    mean_is_off = not abs(float(weights.mean()) - 1) <= MEAN_WEIGHT_TOLERANCE + 5 * spread
    if mean_is_off and verdict != "resample":
        verdict = "resample"
        reason = MEAN_NOT_ONE
    if khat > bound and worst / n < NEGLIGIBLE_ESS_LOSS:
        notes = (*notes, _HEAVY)
    return Trust(
        ess=float(by_position @ share),
        ess_by_position=by_position,
        ess_whole=worst,
        ess_integrated=math.nan if moments is None else n * ess_ratio,
        carriers=carriers,
        khat=khat,
        bound=bound,
        verdict=verdict,
        strain=_lengthen_near_threshold(ess_ratio, rule),
        order=1 if rule == PER_TOKEN_PREFIX else 2,
        reason=reason,
        notes=notes,
    )


def _judge(ess_ratio: float, carriers: float, rule: Rule) -> tuple[Verdict, str]:
    """The verdict, and why it is not "trust"."""
    if not ess_ratio >= COLLAPSED_ESS:
        return "resample", COLLAPSED
    least_ess, fewest = rule
    if not ess_ratio >= least_ess:
        return "smooth", UNEVEN
    return ("smooth", FEW_CARRIERS) if carriers < fewest else ("trust", "")


def _lengthen_near_threshold(ess_ratio: float, rule: Rule) -> float:
    """What 1/df has in addition so near to the threshold; 0 where there is no interval."""
    least = rule[0]
    if not ess_ratio >= least:
        return 0.0
    return STRAIN * (1 - ess_ratio) / (ess_ratio - least + (1 - least) / 10)
