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

Over the steps of a run u is made of means of the gradients (`gradient_means`).

A correction that is impossible, or shortened, has a `Reason`.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from isentrope.control.budget_options import BudgetOptions
from isentrope.control.gradient_means import GradientMeans, Halves, mean_of
from isentrope.control.gradients import slope_along
from isentrope.control.kalman_filter import SMALLEST_ENTROPY, KalmanFilter
from isentrope.nouns.vectors import Vector
from isentrope.parallel.sharded import read_numbers

Reason = Literal[
    "not_finite",
    "no_rate",
    "first_step",
    "no_gain",
    "no_position",
    "few_prompts",
    "out_of_range",
    "too_large",
]
"""Why there is no correction of a step, or a shorter one.

    not_finite     a number is NaN or infinite
    no_rate        η is 0
    first_step     P has second moments of one gradient: u is long where that gradient was small
    no_gain        c is not larger than twice its standard error: the effect of u is unknown
    no_position    no token of E stands at a position of the controlled class
    few_prompts    E has too few prompts to leave each out in turn
    out_of_range   |ηλc| was cut to the step's own change and a share of the entropy beyond it
    too_large      ‖λu‖ was cut to a multiple of ‖v‖, both in the norm √<x, P⁻¹x>
"""


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

    def filtered(self, gains: KalmanFilter, entropy: float) -> Effects:
        """The same with the gain of all steps so far.

        Args:
            gains: The gains of earlier steps, to which this one is added.
            entropy: h, in the unit of F.

        Returns:
            Itself where the gain is not finite.
        """
        if not math.isfinite(self.gain + self.gain_se):
            return self
        gain, se = gains.filtered(self.gain, self.gain_se, max(entropy, SMALLEST_ENTROPY) ** 2)
        return replace(self, gain=gain, gain_se=se)


@dataclass(frozen=True)
class Correction:
    """λu, with its statistics.

    Attributes:
        direction: u, float64.
        weight: λ; 0 where there is no correction.
        reason: Why there is no correction, or why it was shortened; None otherwise.
        numbers: Flat numbers for a log, by name without a prefix.
    """

    direction: Vector
    weight: float
    reason: Reason | None
    numbers: dict[str, float]

    @property
    def component(self) -> Vector:
        """λu, the vector that is added to v."""
        return {name: self.weight * x for name, x in self.direction.items()}


@dataclass(frozen=True)
class Request:
    """What a correction is to achieve.

    Attributes:
        tau: τ, the requested change of entropy, in the unit of F.
        goal: The change that would meet the target at once; None for τ. A step that by itself
            changes entropy by more than τ towards the goal is left alone up to there.
        limits: Bounds of the correction, and the share of the change that is cancelled.
    """

    tau: float = 0.0
    goal: float | None = None
    limits: BudgetOptions = field(default_factory=BudgetOptions)

    def change_of_step(self, predicted: float) -> float:
        """The change that is requested of a step with a predicted change of its own."""
        if self.goal is None or abs(self.goal) <= abs(self.tau) or self.goal * self.tau < 0:
            return self.tau
        low, high = sorted((self.tau, self.goal))
        return min(max(predicted, low), high)


def effects_of(
    groups: Halves, means: GradientMeans, along_v: tuple[Tensor, Tensor], P: Vector
) -> tuple[Effects, Vector]:
    """What v and u do to entropy, with errors that are conditional on the past.

    Args:
        groups: Entropy gradients of a reading, (K, ...) by groups.
        means: The means after this reading.
        along_v: (K,) <g_a, v> and <g_b, v>, by groups.
        P: The preconditioner.

    Returns:
        The effects, and u.
    """
    u_a, u_b = means.conditioned(P)
    # a group of a enters <g_a, u_b> and, with its share of the mean, u_a of <g_b, u_a>
    across = slope_along(groups[0], u_b), slope_along(groups[1], u_a)
    products = [(x * P[n]).flatten(1) @ groups[1][n].flatten(1).T for n, x in groups[0].items()]
    table = torch.stack(products).sum(0)  # (K of a, K of b)
    k = len(across[1])
    shares = [(x + means.share * table.sum(1 - i)) / 2 for i, x in enumerate(across)]
    by_sample = [_variance_of_sum(x) for x in shares]
    residual = table - table.mean(1, keepdim=True) - table.mean(0) + table.mean()
    product = means.share**2 * float(k**2 * (residual**2).sum() / (k - 1) ** 2)
    effects = Effects(
        slope=float(along_v[0].sum() + along_v[1].sum()) / 2,
        slope_se=math.sqrt(sum(map(_variance_of_sum, along_v))) / 2,  # of two independent sums
        gain=float(across[0].sum() + across[1].sum()) / 2,
        gain_se=math.sqrt(max(sum(by_sample) - product, *by_sample)),
    )
    return effects, mean_of((u_a, u_b))


def _variance_of_sum(parts: Tensor) -> float:
    """The variance of a sum over groups, from their sample variance."""
    return float(len(parts) * parts.var())


def correct(
    effects: Effects,
    u: Vector,
    v: Vector,
    P: Vector,
    eta: float,
    entropy: float,
    request: Request,
    obstacle: Reason | None = None,
) -> Correction:
    """λ of a given u.

    Args:
        effects: What the step and u do to entropy.
        u: The direction that is added.
        v: The optimizer's direction.
        P: The preconditioner.
        eta: η.
        entropy: h, in the unit of F.
        request: The change to achieve, and its bounds.
        obstacle: Why there is no correction, where that is known before.

    Returns:
        λ and u.
    """
    predicted = eta * effects.slope
    v_size = _measure_size(v, P)
    u_size = _measure_size(u, P)
    tau = request.change_of_step(predicted)
    weight = 0.0
    reason = obstacle or _find_obstacle(eta, effects, v_size + u_size)
    if reason is None and tau != predicted:
        limits = request.limits
        if tau == request.tau:
            missing = tau / eta - limits.strength * effects.slope
        else:  # the step goes beyond the goal by itself: a share of the excess is cancelled
            missing = limits.strength * (tau / eta - effects.slope)
        weight = missing / effects.gain
        largest_change = abs(predicted) + limits.range * abs(entropy)
        bounds: dict[Reason, float] = {
            "out_of_range": largest_change / abs(eta * effects.gain),
            "too_large": limits.largest * v_size / u_size if u_size else math.inf,
        }
        nearest = min(bounds, key=lambda name: bounds[name])
        if abs(weight) > bounds[nearest]:
            weight = math.copysign(bounds[nearest], weight)
            reason = nearest
    numbers = {
        "predicted": predicted,
        "predicted_se": eta * effects.slope_se,
        "asked": tau,
        "gain": effects.gain,
        "gain_se": effects.gain_se,
        "lambda": weight,
        "no_correction": float(weight == 0.0 and reason is not None),
        "clamped": float(weight != 0.0 and reason is not None),
        "step_share": abs(weight) * u_size / v_size if weight else 0.0,
    }
    return Correction(u, weight, reason, numbers)


def _measure_size(x: Vector, P: Vector) -> float:
    """√<x, P⁻¹x>, over the entries that the optimizer moves."""
    squares = (torch.where(P[n] > 0, y * y / P[n], 0).sum() for n, y in x.items())
    return math.sqrt(sum(read_numbers(squares)))


def _find_obstacle(eta: float, effects: Effects, sizes: float) -> Reason | None:
    if not all(map(math.isfinite, (eta, sizes, *astuple(effects)))):
        return "not_finite"
    if eta == 0:
        return "no_rate"
    return None if effects.gain > 2 * effects.gain_se else "no_gain"
