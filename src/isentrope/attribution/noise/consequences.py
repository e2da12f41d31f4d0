"""What follows from noise: the best rate at other batch sizes, and the sign of δH₁ (T8).

The best learning rate at another batch size B follows from the top of J's parabola and B_noise:

    η_top(B) = η_max / (1 + B_noise/(mB)),     m = (1 + β₁)/(1 − β₁)

η_top(B) = −δJ₁/(2δJ₂) is measured along the step of a batch of B prompts, so η_max, that of a step
without noise, follows from it. m is the number of batches that momentum averages over (1 without
momentum). B_noise is tr(HΣ)/(GᵀHG); B_simple stands for it, which is exact where the curvature is
the same along noise and gradient (McCandlish et al., arXiv 1812.06162, eq. 2.6).

The size of U at which the sign of δH₁ is certain is the noise scale of the entropy step. With δH_i
of the sequences of U (T6), x_p = n Σ_{i∈p} δH_i over n prompts has the mean m = Σ_i δH_i, the
gradient part of δH₁, and the variance s². A batch of B prompts from the same population has m ±
s/√B, so

    B = Var_U(δH₁) |U| / δH₁² = s²/(m² − s²/n),     the square of the mean without bias
    B_sign = z² s²/((b + m)² − s²/n)

prompts until the sign of b + m is certain, with b the part that does not depend on the batch
(momentum and decay) and z the one-sided normal quantile. Intervals are made for κ = (b + m)/s,
which is smooth where m passes zero: κ ± t SE by a jackknife that deletes one prompt, then B = 1/κ².
t has the degrees of freedom from the tail of (x_p − m)², and the ends are given by the rule of all
noise (`estimators.tail.noise_interval`). In simulation (docs/results/noise_tails.md) what is
printed covers .95 or more with Gaussian, t₃, lognormal and Pareto x_p and with rare spikes of
either sign. B has no upper end where κ may be zero.

u = P g_H is held fixed: this is the noise of U alone, given the E-batch and P. It includes U's
selection: x_p is that of prompts whose group has an advantage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from scipy.special import ndtri
from torch import Tensor

from isentrope.attribution.noise.scale import require_units
from isentrope.estimators.jackknife import Units
from isentrope.estimators.noise_over_square import noise_over_square
from isentrope.nouns.estimate import Estimate
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.one_line import one_line


@dataclass(frozen=True)
class Range:
    """A number, and its range over the intervals of what it is made of.

    Attributes:
        value: The number.
        low: Its smallest value over those intervals.
        high: Its largest.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BestRate:
    """The best rate as a function of the batch size.

    Attributes:
        top: η_top at the batch that was measured.
        noise: B_noise, prompts.
        prompts: B of that batch.
        averaged: m.
    """

    top: Estimate
    noise: Estimate
    prompts: float
    averaged: float

    @property
    def known(self) -> bool:
        """Whether both have an interval with two ends."""
        ends = (self.top.ci_low, self.top.ci_high, self.noise.ci_low, self.noise.ci_high)
        return all(map(math.isfinite, ends)) and self.noise.value > 0

    def at(self, prompts: float) -> Range:
        """η_top of a batch of another size.

        Args:
            prompts: Its prompts; infinite for η_max.

        Returns:
            The rate, with the range over both intervals.
        """

        def rate(top: float, noise: float) -> float:
            measured = 1 + noise / (self.averaged * self.prompts)
            return top * measured / (1 + noise / (self.averaged * prompts))

        return self._over_both(rate)

    @property
    def lost(self) -> Range:
        """The part of η_max that the noise of the measured batch takes, between 0 and 1."""
        return self._over_both(lambda _, noise: noise / (noise + self.averaged * self.prompts))

    def _over_both(self, f: Callable[[float, float], float]) -> Range:
        tops = self.top.ci_low, self.top.ci_high
        noises = max(self.noise.ci_low, 0.0), self.noise.ci_high
        ends = [f(*pair) for pair in product(tops, noises)]  # monotonic in both
        return Range(f(self.top.value, self.noise.value), min(ends), max(ends))


def averaged_batches(groups: Sequence[Mapping[str, object]]) -> float | None:
    """How many batches momentum averages over, once a run is longer than that.

    Args:
        groups: Settings of the optimizer's param groups: `betas` or `momentum`.

    Returns:
        m; None where groups differ, or do not say.
    """
    betas = set()
    for group in groups:
        pair = group.get("betas")
        momentum = group.get("momentum", 0.0)
        betas.add(pair[0] if isinstance(pair, (list, tuple)) and pair else momentum)
    beta = betas.pop() if len(betas) == 1 else None
    return (1 + beta) / (1 - beta) if isinstance(beta, (int, float)) and 0 <= beta < 1 else None


@dataclass(frozen=True)
class EntropyNoiseScale:
    """Signal and noise of the first-order entropy change.

    Attributes:
        gradient: m, the gradient part of δH₁, with the error of another draw of U's prompts.
        noise_scale: B, in prompts.
        prompts_for_gradient_sign: z² B, from which on the sign of m is certain.
        prompts_for_sign: B_sign, from which on the sign of b + m is certain.
    """

    gradient: Estimate
    noise_scale: Estimate
    prompts_for_gradient_sign: Estimate
    prompts_for_sign: Estimate

    def __repr__(self) -> str:
        return one_line(self, f"B {self.noise_scale}", f"sign from {self.prompts_for_sign}")


@refuse_other_types
def entropy_noise_scale(
    per_sequence: Tensor,
    prompt_index: Tensor,
    baseline: float = 0.0,
    *,
    confidence: float = 0.95,
    unit: str = "nats per η",
) -> EntropyNoiseScale:
    """The size of U at which the sign of the entropy change is certain.

    Args:
        per_sequence: (n,) δH_i of each sequence of U, per unit η: `Influence.per_sequence`.
        prompt_index: (n,) prompt draw of each.
        baseline: b, δH of momentum and decay, per unit η; its own error is not counted.
        confidence: Probability of the sign, in (0.5, 1).
        unit: Of `per_sequence`.

    Returns:
        Noise scale and batch sizes, in prompts.

    Raises:
        ValueError: If sizes differ, values are not finite, the confidence is out of range, there
            are fewer than four prompts, or no prompt differs from another.
    """
    values = torch.as_tensor(per_sequence, dtype=torch.float64)
    if values.ndim != 1 or values.shape != prompt_index.shape or not bool(values.isfinite().all()):
        raise ValueError(
            f"per_sequence and prompt_index must be finite and parallel, got shapes "
            f"{tuple(values.shape)} and {tuple(prompt_index.shape)}, "
            f"{int((~values.isfinite()).sum())} values not finite."
        )
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must be between 0.5 and 1, got {confidence}.")
    units = Units.of(prompt_index)
    n = units.count
    require_units(n, "prompts")
    x = n * units.sums(values)
    if not float(x.var()) > 0:
        raise ValueError("All prompts have the same influence: there is no noise to measure.")
    z = float(ndtri(confidence))
    return EntropyNoiseScale(
        gradient=Estimate.from_influences(
            float(x.mean()),
            (x - x.mean()) / n,
            unit=unit,
            method="mean over prompts",
            confidence=confidence,
        ),
        noise_scale=noise_over_square(x, 1.0, confidence),
        prompts_for_gradient_sign=noise_over_square(x, z * z, confidence),
        prompts_for_sign=noise_over_square(x + baseline, z * z, confidence),
    )
