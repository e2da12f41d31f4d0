"""The noise scale at fixed θ: the number of prompts that a step needs (T8).

The unit is the prompt group. Group gradients g_p are scaled so that their mean is the batch
gradient, and only their Gram matrix is used, M_pq = <g_p, P g_q>. With A the mean of
its diagonal and D the mean of the rest,

    |G|² = D,     tr Σ = A − D,     B_simple = tr Σ/|G|² = A/D − 1          (prompts)

|G|² and tr Σ are unbiased. With P, <g, P g'> takes the place of <g, g'> throughout: |G|² is Gᵀ P G,
the first-order decrease of the loss per unit η by the step −P G, tr Σ is tr(P Σ), and B is that of
the gradients P^½ g; P is held fixed. Zero-advantage groups are rejected from U and are not part of
the mean: the noise scale is that of groups with an advantage, like the step.

Errors are those of a jackknife that deletes one group. D is a mean over pairs, which split into
M_pq = D + α_p + α_q + β_pq; the jackknife counts the β twice, and they dominate where noise hides
the gradient. So one of the two is subtracted:

    Var D = 4 σ_α²/n + 2 σ_β²/(n(n − 1)),     both variances by least squares (a diallel cross)

The interval of B is Fieller's, every B for which A − (1 + B) D is not distinguishable from zero. It
has no upper end where |G|² is not distinguishable from zero. tr Σ > 0 has a t-interval on the
logarithm. For both, the degrees of freedom follow from the tail of c_p = |g_p − ḡ|², and the ends
that are given from the rule of all noise (`estimators.tail.noise_interval`): none below 32 groups,
no upper one below 128, and from there on one that allows for groups ten times as large as usual
that the batch holds none of. In simulations (docs/results/noise_tails.md) what is printed covers
.95 or more with Gaussian gradients, with norms multiplied by |t₃|, exp(N(0, 1)) and Pareto(3), and
where 1 % of the gradients are ten times as long and hold half of tr Σ; of 128 groups more than a
quarter of the batches have none of those.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.estimators.jackknife import Units
from isentrope.estimators.ratio import interval_of_ratio
from isentrope.estimators.tail import (
    degrees_of_freedom_of_sums,
    noise_interval,
    uneven,
)
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import freedom_of_units, t_quantile
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.one_line import one_line
from isentrope.update.objective import entropy_weights as of_entropies
from isentrope.update.objective import token_weights as objective_weights

MIN_UNITS = 4
"""Fewest groups: with three, α and β cannot be separated."""

JACKKNIFE = "delete-one jackknife"
ESTIMATES = ("gradient_square", "trace", "b_simple")


@dataclass(frozen=True)
class NoiseScale:
    """Signal and noise of a batch gradient.

    Attributes:
        gradient_square: |G|², or Gᵀ P G.
        trace: tr Σ of one unit's gradient, or tr(P Σ).
        b_simple: Their ratio, in units; its upper end is infinite where |G|² may be zero.
        gram: (n, n) inner products of the units' gradients.
    """

    gradient_square: Estimate
    trace: Estimate
    b_simple: Estimate
    gram: Tensor = field(repr=False)

    def __repr__(self) -> str:
        return one_line(self, f"B_simple {self.b_simple}", f"of {len(self.gram)} units")


@refuse_other_types
def noise_scale(
    policy: Policy,
    U: Rollouts,
    *,
    preconditioner: Vector | None = None,
    token_weights: Tensor | None = None,
    entropy_weights: Tensor | None = None,
    objective: str = "dr_grpo",
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
) -> NoiseScale:
    """B_simple of the loss gradient from the prompt groups of an update batch.

    Args:
        policy: The policy that sampled U.
        U: Update batch, at least two responses per prompt; `prompt_index` gives the groups. Groups
            whose weights are all zero are omitted, and counted in the warnings. What normalises
            the batch as a whole (the tokens of "dapo") is held fixed.
        preconditioner: P, diagonal, for the noise scale of preconditioned gradients; None for 1.
        token_weights: (n, t) c_ik of the gradient Σ (c_ik ∂s_ik + d_ik ∂H_ik);
            `Step.token_weights` will do.
        entropy_weights: (n, t) d_ik, `Step.entropy_weights` will do; None for 0.
        objective: Where no weights are given, the objective they are made from; L of "dr_grpo" is
            the batch's `max_new_tokens`.
        confidence: Nominal coverage.
        gradients: How the groups' gradients are computed and held.

    Returns:
        The noise scale, in prompts.

    Raises:
        ValueError: If a group has one response, there are fewer than four groups, no weight is
            other than zero, or there are entropy weights without token weights.
    """
    units = Units.of(U.prompt_index)
    singles = U.prompt_index[(units.sizes == 1)[units.place]]
    if len(singles):
        raise ValueError(
            f"{len(singles)} prompt groups have one response, the first is prompt draw "
            f"{int(singles.min())}: an advantage is measured against the group's other responses. "
            "Give a batch with at least two responses per prompt."
        )
    if token_weights is None:
        if entropy_weights is not None:
            raise ValueError("entropy_weights belong to a step: give its token_weights too.")
        token_weights = objective_weights(U, objective)
        entropy_weights = of_entropies(U, objective)
    sums = TokenSum(U, token_weights, entropy_weights).as_trained()
    acting = token_weights != 0
    if entropy_weights is not None:
        acting |= entropy_weights != 0
    if not bool(acting.any()):
        raise ValueError("No token has a weight: there is no gradient, and no noise in it.")
    rows = groups_with_weight(U.prompt_index, acting).nonzero()[:, 0]
    weighted = Units.of(U.prompt_index[rows])
    require_units(weighted.count, "prompt groups")
    scaled = sums.times(torch.full((len(U),), float(weighted.count), dtype=torch.float64))
    products = gram(policy, scaled.select(rows, weighted.place), None, preconditioner, gradients)
    square = "|∂loss|²" if preconditioner is None else "loss per η"
    silent = units.count - weighted.count
    notes = (
        f"{silent} of {units.count} prompt groups have no advantage and are omitted, as in a batch "
        "that rejects such groups.",
    )
    return noise_scale_of_gram(
        products, confidence=confidence, square_unit=square, notes=notes if silent else ()
    )


def groups_with_weight(prompt_index: Tensor, acting: Tensor) -> Tensor:
    """Which sequences are in a group that has any weight in the step.

    Args:
        prompt_index: (n,) prompt draw of each sequence.
        acting: (n, t) where a token has a weight, bool or the weights themselves.

    Returns:
        (n,) bool, the same for all sequences of a group.
    """
    units = Units.of(prompt_index)
    return (units.sums(acting.any(1).cpu()) > 0)[units.place]


def noise_scale_of_gram(
    gram: Tensor,
    *,
    confidence: float = 0.95,
    unit: str = "prompts",
    square_unit: str = "|∂loss|²",
    notes: tuple[str, ...] = (),
) -> NoiseScale:
    """The noise scale from the Gram matrix of the units' gradients.

    Args:
        gram: (n, n) <g_p, P g_q>, where the mean of g_p over p is the batch gradient.
        confidence: Nominal coverage.
        unit: Name of the units, in the plural.
        square_unit: Unit of |G|² and tr Σ.
        notes: Warnings on all three numbers.

    Returns:
        The noise scale.

    Raises:
        ValueError: If the matrix is not a Gram matrix to 1 %, or of fewer than four units.
    """
    n = len(gram)
    require_units(n, unit)
    gram = SquareKernel.of(gram, rounding=0.01).matrix
    moments, covariance = _moments(gram)
    if not float(moments[0]) > 0:
        raise ValueError("All gradients are zero: there is no gradient, and no noise in it.")
    signal_noise = torch.tensor([[0.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    value = signal_noise @ moments
    spread = signal_noise @ covariance @ signal_noise.T
    noises = gram.diagonal() - 2 * gram.mean(1) + gram.mean()
    if not float(value[1]) > 0:
        noises = torch.zeros_like(noises)  # rounding
    df = degrees_of_freedom_of_sums(noises)
    warnings = (*uneven(noises, unit), *notes)

    def estimate(k: int, df: float, **caveats: Any) -> Estimate:
        return Estimate.from_standard_error(
            float(value[k]),
            float(spread[k, k].clamp_min(0).sqrt()),
            n,
            unit=square_unit,
            method=JACKKNIFE,
            confidence=confidence,
            degrees_of_freedom=df,
            **caveats,
        )

    rows = gram.sum(1) - gram.diagonal()
    square = estimate(0, freedom_of_units(rows - rows.mean()), warnings=notes)
    trace = estimate(1, df, warnings=warnings).on_log_scale(confidence)
    ratio, caveats = _ratio(moments, covariance, t_quantile(df, confidence), n, unit, warnings)
    rule = noises, unit, confidence
    return NoiseScale(
        square, noise_interval(trace, *rule), noise_interval(ratio, *rule, caveats), gram
    )


def require_units(n: int, unit: str) -> None:
    """Refuse a batch too small to separate signal from noise.

    Args:
        n: Number of units.
        unit: Their name, in the plural.

    Raises:
        ValueError: If there are fewer than four.
    """
    if n < MIN_UNITS:
        raise ValueError(
            f"The noise scale is computed from how {unit} differ, and of {n} it cannot be: it "
            f"needs {MIN_UNITS} or more (16 for a useful interval). Draw U by batch_config.B_U=16, "
            "for a checkpoint folder with --prompts FILE and --reward FILE.py:NAME."
        )


def _moments(gram: Tensor) -> tuple[Tensor, Tensor]:
    """(A, D) and their (2, 2) covariance, the degenerate part of D counted once."""
    n = len(gram)
    diagonal = gram.diagonal()
    rows = gram.sum(1) - diagonal
    squares = diagonal.mean()
    pairs = rows.sum() / (n * (n - 1))
    alpha = (rows - rows.mean()) / (n - 2)
    beta = (gram - pairs - alpha[:, None] - alpha).fill_diagonal_(0)
    var_beta = beta.square().sum() / (n * (n - 3))
    var_alpha = (alpha @ alpha / (n - 1) - var_beta / (n - 2)).clamp_min(0)
    var_pairs = 4 * var_alpha / n + 2 * var_beta / (n * (n - 1))
    var_squares = (diagonal - squares).square().sum() / (n * (n - 1))
    largest = (var_pairs * var_squares).sqrt()  # a correlation is at most one
    cross = (2 * (diagonal - squares) @ alpha / (n * (n - 1))).clamp(-largest, largest)
    covariance = torch.stack([var_squares, cross, cross, var_pairs]).reshape(2, 2)
    return torch.stack([squares, pairs]), covariance


def _ratio(
    moments: Tensor,
    covariance: Tensor,
    t: float,
    n: int,
    unit: str,
    warnings: tuple[str, ...],
) -> tuple[Estimate, tuple[str, ...]]:
    """A/D − 1 with every B that (A − x D)² ≤ t² Var(A − x D) allows, x = 1 + B; and caveats."""
    squares, pairs = moments.tolist()
    low, high = interval_of_ratio(squares, pairs, covariance, t, sign="plus")
    value = se = math.inf
    caveats: tuple[str, ...] = ()
    if high == math.inf:
        caveats = (
            f"|G|² is not distinguishable from zero in these {n} {unit}: the noise scale is "
            "bounded from below only. More of them give an upper end.",
        )
    if pairs > 0:
        along = covariance.new_tensor([1.0, -squares / pairs])
        value = squares / pairs - 1
        se = float((along @ covariance @ along).clamp_min(0).sqrt()) / pairs
    else:
        warnings = (*warnings, f"|G|² came out below zero in these {n} {unit}, {_BY_CHANCE}")
        low = low if high == math.inf else math.nan
        high = high if high == math.inf else math.nan
    low, high = (max(x - 1, 0.0) for x in (low, high))  # NaN stays NaN
    return Estimate(value, se, low, high, n, unit, JACKKNIFE, warnings=warnings), caveats


_BY_CHANCE = "which chance does: there is no noise scale. More of them give one."
