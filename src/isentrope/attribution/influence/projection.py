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
from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import TokenSum, step_functions
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


def without_own_prompt(
    policy: Policy,
    U: Rollouts,
    step: Step,
    groups: GradientGroups,
    gradients: GradientOptions,
) -> Tensor:
    """(G, n) Σ_{i not of j's prompt draw} M_ij n/(n − n_p), by group of i, with the ratio terms."""
    own = U.prompt_index[:, None] == U.prompt_index

    def pairs(a: Tensor, b: Tensor | None = None) -> Tensor:
        found = gram(
            policy, TokenSum(U, a, b), step_functions(U, step), step.preconditioner, gradients
        )
        return found.masked_fill(own, 0.0) * len(U) / (~own).sum(0)

    of_total = pairs(groups.logprob_weights, groups.entropy_weights)
    out = torch.zeros(len(groups.parts), len(U), dtype=torch.float64)
    out.index_add_(0, groups.group, of_total)
    if groups.ratio is not None:
        of_length = pairs(groups.ratio.length_weights)
        out -= torch.outer(groups.ratio.of_length, of_length.sum(0))
        out -= torch.outer(groups.ratio.of_total, of_total.sum(0))
    return out
