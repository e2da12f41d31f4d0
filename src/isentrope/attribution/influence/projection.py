"""A step along directions, by sequence and token (T6), (T7).

    <u, Σ_k (c_ik ∂s_ik + d_ik ∂H_ik)>

Tokens come from forward mode, sequences from their gradients, and the pairs of a U-statistic from
the Gram matrix of two sets of gradients.
"""

from collections.abc import Iterable
from functools import partial
from itertools import chain, islice

import torch
from torch import Tensor

from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.groups import RatioTerms
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.estimators.functional import Units
from isentrope.models.architecture import DerivativeOfTraining
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, largest_part, local_part
from isentrope.policy.gradient import score_jvp
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import tried_again
from isentrope.policy.token_statistics import Scores
from isentrope.update.step import Step

DIRECTIONS_AT_ONCE = 8
"""Directions of one forward-mode pass."""

MAX_STACKED_BYTES = 4 * 2**30
"""Bytes of the directions that one backward pass is projected on; more take another pass."""


def on_tokens(
    policy: Policy, U: Rollouts, step: Step, directions: Iterable[Vector]
) -> tuple[Scores, Tensor]:
    """c_ik ∂_u s_ik + d_ik ∂_u H_ik for every direction, (directions, n, t); and the scores."""
    projections: list[Tensor] = []
    scores, left = None, iter(directions)
    for first in left:
        some = chain([first], islice(left, DIRECTIONS_AT_ONCE - 1))
        with DerivativeOfTraining():  # U's tokens, differentiated as in the step
            c, d = step.token_weights, step.entropy_weights
            scores, *slopes = score_jvp(policy, U, some, entropies=d is not None)
            for slope in slopes:
                moved = c * slope.logprobs
                projections.append(moved if d is None else moved + d * slope.entropies)
    assert scores is not None
    return scores, torch.stack(projections)


def on_sums(
    policy: Policy, sums: TokenSum, directions: Iterable[Vector], gradients: GradientOptions
) -> Tensor:
    """<u, g_i> with the gradients of weighted sums of tokens, one per sequence: (directions, n)."""
    theta = policy.parts
    size = sum(largest_part(p) * p.element_size() for p in policy.theta.values())
    short = ({n: local_part(u[n]).flatten().to(p) for n, p in theta.items()} for u in directions)
    found: list[Tensor] = []

    def once(stacked: Vector, count: int) -> Tensor:
        """(count, n) of directions that are stacked by parameter, by one backward pass."""
        out = torch.zeros(len(sums.rollouts), count, dtype=torch.float64, device=policy.device)

        def project(name: str, rows: Tensor, rows_of: Tensor) -> None:
            out.index_add_(0, rows, (rows_of.flatten(1) @ stacked[name].T).double())

        SequenceGradients(policy, gradients.backend).visit(sums, project)
        policy.ranks.sum([out])
        return out.T.cpu()

    while some := list(islice(short, max(1, MAX_STACKED_BYTES // size))):
        stacked = {n: torch.stack([u.pop(n) for u in some]) for n in theta}
        found.append(tried_again(policy, sums.rollouts, partial(once, stacked, len(some))))
    return torch.cat(found)


def pairs_by_unit(
    policy: Policy,
    update: TokenSum,
    step: Step,
    of_E: TokenSum,
    ratio: RatioTerms | None,
    units: Units,
    weights: Tensor,
    gradients: GradientOptions,
) -> Tensor:
    """Sums of M_ij w_ij over the rows i of each unit, and of what a unit changes in a ratio.

    Args:
        policy: The policy.
        update: U of the step.
        step: The step, for P.
        of_E: What is differentiated on E.
        ratio: The terms that all rows share, by unit; None for none.
        units: The unit of each row.
        weights: (K, n_E, n_U) w, of each of K sums.
        gradients: How gradients are computed and held.

    Returns:
        (K, P, n_U).
    """

    def pairs(rows: TokenSum) -> Tensor:
        return gram(policy, rows, update, step.preconditioner, gradients) * weights

    of_total = pairs(of_E)
    out = units.sums(of_total.mT).mT
    if ratio is not None:
        of_length = pairs(TokenSum(of_E.rollouts, ratio.length_weights))
        out -= ratio.of_length[:, None] * of_length.sum(1, keepdim=True)
        out -= ratio.of_total[:, None] * of_total.sum(1, keepdim=True)
    return out
