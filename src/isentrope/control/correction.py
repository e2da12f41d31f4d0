"""The correction of an entropy budget: a vector added to a step so that entropy changes by τ.

    θ' = θ + η (v + λu),     u = P (g_a + g_b)/2,     λ = (τ/η − s <g,v>) / c
    c = (<g_a, P g_b> + <g_b, P g_a>)/2,     g = (g_a + g_b)/2

g_a and g_b are entropy gradients of two independent samples a, b of E, and s is the share of <g,v>
that is cancelled (1: all of it). The gain c of u is computed across the two samples. <g,Pg> of one
sample also contains the energy of its noise, tr(PΣ)/n, so λ would be too small; c is an unbiased
estimate of <g_H, P g_H>. Among the steps whose c is larger than twice its error it is too large,
1.2 to 3 times where noise hides it, so the c of a run is filtered over all of its steps. What is
filtered is c/h²: g_H is about proportional to h, which may lose a fifth in one step.

Each g is a sum over K groups of prompts, and the errors of <g,v> and c are those of the
infinitesimal jackknife over these groups. For the bilinear c the jackknife counts the product of
the two noises twice, once per sample. This product is estimated from the (K, K) table of
<g_aj, P g_bk> without its row and column means, and subtracted once.

If there is no correction, or a shorter one, the reason is one of:

    not_finite     a number is NaN or infinite
    no_rate        η is 0
    no_gain        c is not larger than twice its standard error: the effect of u is unknown
    first_step     P has second moments of one gradient: u is long where that gradient was small
    out_of_range   |ηλc| was cut to the step's own change and a share of the entropy beyond it
    too_large      ‖λu‖ was cut to a multiple of ‖v‖, both in the norm √<x, P⁻¹x>
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace

import torch
from torch import Tensor

from isentrope.control.feedback import LEAST, Level
from isentrope.control.gradients import slope_along, summed
from isentrope.control.requirements import Limits
from isentrope.nouns.vectors import Vector, read_numbers


@dataclass(frozen=True)
class Effects:
    """What a step and its correction do to entropy to first order, per unit η.

    Attributes:
        slope: <g_H, v>.
        slope_se: Its error.
        gain: c.
        gain_se: Its error.
    """

    slope: float
    slope_se: float
    gain: float
    gain_se: float


@dataclass(frozen=True)
class Correction:
    """λu, with its statistics.

    Attributes:
        weight: λ; 0 where there is no correction.
        direction: u, float64.
        reason: Why there is no correction, or why it was shortened; None otherwise.
        effects: What v and u do to entropy; None where that was not read.
        numbers: Flat numbers for a log, by name without a prefix.
    """

    weight: float
    direction: Vector
    reason: str | None
    effects: Effects | None
    numbers: dict[str, float] = field(default_factory=dict)

    def withdrawn(self, reason: str) -> Correction:
        """The same numbers with no correction, for a reason."""
        none = {"lambda": 0.0, "no_correction": 1.0, "clamped": 0.0, "step_share": 0.0}
        return replace(self, weight=0.0, reason=reason, numbers=self.numbers | none)

    @property
    def component(self) -> Vector:
        """λu, the vector that is added to v."""
        return {name: self.weight * x for name, x in self.direction.items()}


@dataclass(frozen=True)
class Halves:
    """Entropy gradients of two independent samples, by groups of their sequences.

    Attributes:
        a: (K, ...) by parameter name, float64; the sum over K is g_a.
        b: The same of the other sample.
        past_a: Mean of the g_a of earlier steps, or None.
        past_b: The same of g_b.
        share: Weight of this step's g in the mean from which u is computed; 1 without a past.
    """

    a: Vector
    b: Vector
    past_a: Vector | None = None
    past_b: Vector | None = None
    share: float = 1.0

    def averaged(self, which: str) -> Vector:
        """The weighted mean of this step's gradient and the past, (...) by name."""
        current, past = summed(getattr(self, which)), getattr(self, f"past_{which}")
        if past is None:
            return current
        return {
            n: self.share * x + (1 - self.share) * past[n].to(x.device) for n, x in current.items()
        }


@dataclass(frozen=True)
class Asked:
    """The request to a correction.

    Attributes:
        tau: τ, the requested change of entropy, in the unit of F.
        goal: The change that would meet the target at once; None for τ. A step that by itself
            changes entropy by more than τ towards the goal is left alone up to there.
        limits: Bounds of the correction.
        gains: The gains of earlier steps, to which this one is added; None for this one alone.
    """

    tau: float = 0.0
    goal: float | None = None
    limits: Limits = field(default_factory=Limits)
    gains: Level | None = None

    def of_step(self, predicted: float) -> float:
        """The change that is asked of a step with a predicted change of its own."""
        tau, goal = self.tau, self.goal
        if goal is None or abs(goal) <= abs(tau) or goal * tau < 0:
            return tau
        low, high = sorted((tau, goal))
        return min(max(predicted, low), high)


def correct(
    halves: Halves,
    along_v: tuple[Tensor, Tensor],
    v: Vector,
    preconditioner: Vector,
    eta: float,
    entropy: float,
    asked: Asked,
) -> Correction:
    """λ and u from entropy gradients.

    Args:
        halves: Entropy gradients of two samples.
        along_v: (K,) <g_a, v> and <g_b, v>, by groups.
        v: The optimizer's direction.
        preconditioner: P.
        eta: η.
        entropy: h, in the unit of F.
        asked: The request.

    Returns:
        λ and u.
    """

    def conditioned(x: Vector) -> Vector:
        return {n: preconditioner[n] * y for n, y in x.items()}

    u_a, u_b = (conditioned(halves.averaged(which)) for which in ("a", "b"))
    gain, gain_se = _gain(halves, u_a, u_b, conditioned)
    if asked.gains is not None and math.isfinite(gain + gain_se):
        gain, gain_se = asked.gains.filtered(gain, gain_se, max(entropy, LEAST) ** 2)
    a, b = along_v
    slope_se = math.sqrt(_variance(a) + _variance(b)) / 2  # of two independent sums over groups
    effects = Effects(float(a.sum() + b.sum()) / 2, slope_se, gain, gain_se)
    u = {n: (x + u_b[n]) / 2 for n, x in u_a.items()}
    return weighed(effects, u, v, preconditioner, eta, entropy, asked)


def weighed(
    effects: Effects,
    u: Vector,
    v: Vector,
    preconditioner: Vector,
    eta: float,
    entropy: float,
    asked: Asked,
) -> Correction:
    """λ of a given u.

    Args:
        effects: What the step and u do to entropy.
        u: The direction that is added.
        v: The optimizer's direction.
        preconditioner: P.
        eta: η.
        entropy: h, in the unit of F.
        asked: The request.

    Returns:
        λ and u.
    """
    limits, slope, gain = asked.limits, effects.slope, effects.gain
    sizes = _size(v, preconditioner), _size(u, preconditioner)
    tau = asked.of_step(eta * slope)
    weight, reason = 0.0, _obstacle(eta, effects, sizes)
    if reason is None and tau != eta * slope:
        at_goal = tau != asked.tau
        exact = (tau / eta - (1.0 if at_goal else limits.strength) * slope) / gain
        exact *= limits.strength if at_goal else 1.0
        most = abs(eta * slope) + limits.range * abs(entropy)
        weight, reason = _cut(exact, most / abs(eta * gain), sizes, limits)
    numbers = {
        "predicted": eta * slope,
        "predicted_se": eta * effects.slope_se,
        "asked": tau,
        "gain": gain,
        "gain_se": effects.gain_se,
        "lambda": weight,
        "no_correction": float(weight == 0.0 and reason is not None),
        "clamped": float(weight != 0.0 and reason is not None),
        "step_share": abs(weight) * sizes[1] / sizes[0] if weight else 0.0,
    }
    return Correction(weight, u, reason, effects, numbers)


def _obstacle(eta: float, effects: Effects, sizes: tuple[float, float]) -> str | None:
    if not all(map(math.isfinite, (eta, *astuple(effects), *sizes))):
        return "not_finite"
    if eta == 0:
        return "no_rate"
    return None if effects.gain > 2 * effects.gain_se else "no_gain"


def _cut(
    weight: float, in_range: float, sizes: tuple[float, float], limits: Limits
) -> tuple[float, str | None]:
    """λ within its bounds, and the name of the bound that was reached, or None."""
    v_size, u_size = sizes
    bounds = {
        "out_of_range": in_range,
        "too_large": limits.largest * v_size / u_size if u_size else math.inf,
    }
    reason = min(bounds, key=lambda name: bounds[name])
    if abs(weight) <= bounds[reason]:
        return weight, None
    return math.copysign(bounds[reason], weight), reason


def _gain(
    halves: Halves, u_a: Vector, u_b: Vector, conditioned: Callable[[Vector], Vector]
) -> tuple[float, float]:
    """The gain c and its error, conditional on the past."""
    across = slope_along(halves.a, u_b), slope_along(halves.b, u_a)
    gain = float(across[0].sum() + across[1].sum()) / 2
    # a group of a enters <g_a, u_b> and, with its share of the mean, u_a of <g_b, u_a>
    table = torch.stack(
        [
            slope_along(halves.a, conditioned({n: x[k] for n, x in halves.b.items()}))
            for k in range(len(across[1]))
        ],
        dim=1,
    )  # (K of a, K of b)
    parts = [
        (across[0] + halves.share * table.sum(1)) / 2,
        (across[1] + halves.share * table.sum(0)) / 2,
    ]
    by_sample = [_variance(x) for x in parts]
    product = halves.share**2 * _interaction(table)
    return gain, math.sqrt(max(sum(by_sample) - product, *by_sample))


def _interaction(table: Tensor) -> float:
    """The variance of the sum over a (K, K) table due to the interaction of rows and columns."""
    k = len(table)
    residual = table - table.mean(1, keepdim=True) - table.mean(0) + table.mean()
    return float(k**2 * (residual**2).sum() / (k - 1) ** 2)


def _variance(parts: Tensor) -> float:
    """The variance of a sum over groups, from their sample variance."""
    return float(len(parts) * parts.var())


def _size(x: Vector, preconditioner: Vector) -> float:
    """√<x, P⁻¹x>, where P is not 0."""
    pairs = [(y.double(), preconditioner[name]) for name, y in x.items()]
    return math.sqrt(sum(read_numbers(torch.where(P > 0, y * y / P, 0).sum() for y, P in pairs)))
