"""A step along directions, by sequence and token (T6), (T7).

    <u, Σ_k (c_ik ∂s_ik + d_ik ∂H_ik)>

Tokens come from forward mode, sequences from their gradients, and the pairs of a U-statistic from
the Gram matrix of two sets of gradients.

The change of entropy by relation of the responses: self, same-prompt, other-prompt (T6).

    M_ij = <e_i, P u_j>,     Σ_i M_ij = δH_j
    e_i = Σ_k (a_ik ∂s_ik + b_ik ∂H_ik),     u_j = Σ_k (c_jk ∂s_jk + d_jk ∂H_jk)

Row i is a response on which entropy is measured, column j a response of the step.
The shares need an E that holds U's prompts, and describe the entropy on those prompts:

    E of fresh responses     same prompt: the prompt's own group moved it; other prompt: the rest
    E = U itself             also self, i = j; self and same prompt are then biased upwards in size,
                             since the advantages of a group hold the rewards of its own responses
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import shared_identities
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.groups import ratio_terms
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import TokenSum, step_functions
from isentrope.attribution.influence.contributions import InfluenceOptions
from isentrope.estimators.functional import UNITS
from isentrope.estimators.jackknife import Units
from isentrope.estimators.sample import ScoredBatch, cotangents, score_batch
from isentrope.models.architecture import DerivativeOfTraining
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.parallel.sharded import largest_part, local_part
from isentrope.policy.gradient import score_jvp
from isentrope.policy.language_model import Policy
from isentrope.policy.short_memory import tried_again
from isentrope.policy.token_statistics import Scores
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.one_line import one_line
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
    scores = None
    remaining = iter(directions)
    for first in remaining:
        chunk = chain([first], islice(remaining, DIRECTIONS_AT_ONCE - 1))
        with DerivativeOfTraining():  # U's tokens, differentiated as in the step
            c = step.token_weights
            d = step.entropy_weights
            scores, *slopes = score_jvp(policy, U, chunk, entropies=d is not None)
            for slope in slopes:
                projection = c * slope.logprobs
                projections.append(projection if d is None else projection + d * slope.entropies)
    assert scores is not None
    return scores, torch.stack(projections)


def on_sums(
    policy: Policy, sums: TokenSum, directions: Iterable[Vector], gradients: GradientOptions
) -> Tensor:
    """<u, g_i> with the gradients of weighted sums of tokens, one per sequence: (directions, n)."""
    theta = policy.parts
    size = sum(largest_part(p) * p.element_size() for p in policy.theta.values())
    short = ({n: local_part(u[n]).flatten().to(p) for n, p in theta.items()} for u in directions)
    projections: list[Tensor] = []

    def once(stacked: Vector, count: int) -> Tensor:
        """(count, n) of directions that are stacked by parameter, by one backward pass."""
        out = torch.zeros(len(sums.rollouts), count, dtype=torch.float64, device=policy.device)

        def project(name: str, rows: Tensor, rows_of: Tensor) -> None:
            out.index_add_(0, rows, (rows_of.flatten(1) @ stacked[name].T).double())

        SequenceGradients(policy, gradients.backend).visit(sums, project)
        policy.sum_over_processes([out])
        return out.T.cpu()

    while chunk := list(islice(short, max(1, MAX_STACKED_BYTES // size))):
        stacked = {n: torch.stack([u.pop(n) for u in chunk]) for n in theta}
        projections.append(tried_again(policy, sums.rollouts, partial(once, stacked, len(chunk))))
    return torch.cat(projections)


def pairs_by_unit(
    policy: Policy,
    of_E: tuple[Rollouts, ScoredBatch],
    update: TokenSum,
    step: Step,
    units: Units,
    weights: Tensor,
    gradients: GradientOptions,
) -> Tensor:
    """Sums of M_ij w_ij over the rows i of each unit, and of what a unit changes in a ratio.

    Args:
        policy: The policy.
        of_E: E, and its scores at θ with the functional that is differentiated.
        update: U of the step.
        step: The step, for P.
        units: The unit of each row.
        weights: (K, n_E, n_U) w, of each of K sums.
        gradients: How gradients are computed and held.

    Returns:
        (K, P, n_U).
    """
    E, sample = of_E

    def pairs(a: Tensor, b: Tensor | None = None) -> Tensor:
        of_rows = TokenSum(E, a, b)
        return gram(policy, of_rows, update, step.preconditioner, gradients) * weights

    of_total = pairs(*cotangents(sample))
    out = units.sums(of_total.mT).mT
    if (ratio := ratio_terms(sample, units.place)) is not None:
        (of_h, of_n), length_weights = ratio
        out -= of_h[:, None] * pairs(length_weights).sum(1, keepdim=True)
        out -= of_n[:, None] * of_total.sum(1, keepdim=True)
    return out


@dataclass(frozen=True)
class Shares:
    """δH of the gradient part of a step, by how the two responses of a pair are related.

    Attributes:
        totals: "self" (where E is U), "same_prompt", "other_prompt" and "gradient", their sum; per
            unit η, with errors over E's prompts.
        by_sequence: The same for each sequence of U, (n_U,).
    """

    totals: dict[str, Estimate]
    by_sequence: dict[str, Tensor]

    def __repr__(self) -> str:
        parts = (f"{name} {self.totals[name]}" for name in ("gradient", *self.totals))
        return one_line(self, *dict.fromkeys(parts))


@refuse_other_types
def influence_shares(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    step: Step,
    options: InfluenceOptions = InfluenceOptions(),
) -> Shares:
    """Split the influence of U by the relation of the pairs.

    Args:
        policy: The policy at the θ of the step.
        E: Responses to U's prompts: fresh draws (some may equal U's by chance), or U itself.
        U: The update batch of the step.
        step: What `optimizer_step` returned for U.
        options: Of which entropy, and how gradients are computed; groups and overlap are not used.

    Returns:
        The shares.

    Raises:
        ValueError: If the step is of another batch, or E and U have no prompt in common.
    """
    step.require_batch(U)
    same_prompt = shared_identities(E.prompt_ids, U.prompt_ids).same
    if not bool(same_prompt.any()):
        raise ValueError(
            "E and U have no prompt in common, so all of U's influence on E is other-prompt: the "
            "shares need fresh responses to U's prompts."
        )
    masks = {"same_prompt": same_prompt, "other_prompt": ~same_prompt}
    if E.fingerprint == U.fingerprint:
        itself = torch.eye(len(U), dtype=torch.bool)
        masks = {"self": itself, "same_prompt": same_prompt & ~itself, "other_prompt": ~same_prompt}
    sample = score_batch(policy, E, options)
    units = Units.of(E.prompt_index)
    weights = torch.stack(list(masks.values())).double()
    update = step_functions(U, step)
    table = pairs_by_unit(
        policy, (E, sample), update, step, units, weights, options.gradients
    )  # (relations, P, n_U)
    tables = dict(zip([*masks, "gradient"], (*table, table.sum(0)), strict=True))
    share = units.sizes / len(E)
    sums = {name: x.sum(1) for name, x in tables.items()}
    totals = {
        name: Estimate.from_influences(
            float(x.sum()),
            x - share * x.sum(),
            unit=f"{UNITS[options.functional]} per η",
            method="jackknife over prompts",
            confidence=options.confidence,
            **sample.trust.caveats,
        )
        for name, x in sums.items()
    }
    return Shares(totals, {name: x.sum(0) for name, x in tables.items()})
