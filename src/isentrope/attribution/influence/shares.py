"""The change of entropy by relation of the responses: self, same-prompt, other-prompt (T6).

    M_ij = <e_i, P u_j>,     Σ_i M_ij = δH_j
    e_i = Σ_k (a_ik ∂s_ik + b_ik ∂H_ik),     u_j = Σ_k (c_jk ∂s_jk + d_jk ∂H_jk)

Row i is a response on which entropy is measured, column j a response of the step.
The shares need an E that holds U's prompts, and describe the entropy on those prompts:

    E of fresh responses     same prompt: the prompt's own group moved it; other prompt: the rest
    E = U itself             also self, i = j; self and same prompt are then biased upwards in size,
                             since the advantages of a group hold the rewards of its own responses
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import shared_identities
from isentrope.attribution.gradients.groups import ratio_terms
from isentrope.attribution.gradients.token_sum import TokenSum, step_functions
from isentrope.attribution.influence.influence import InfluenceOptions
from isentrope.attribution.influence.projection import pairs_by_unit
from isentrope.estimators.entropy import cotangents
from isentrope.estimators.functional import UNITS, Units
from isentrope.estimators.sample import score_batch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.update.step import Step


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
    rows, columns = shared_identities(E.prompt_ids, U.prompt_ids)
    same = rows[:, None] == columns
    if not bool(same.any()):
        raise ValueError(
            "E and U have no prompt in common, so all of U's influence on E is other-prompt: the "
            "shares need fresh responses to U's prompts."
        )
    masks = {"same_prompt": same, "other_prompt": ~same}
    if E.fingerprint == U.fingerprint:
        itself = torch.eye(len(U), dtype=torch.bool)
        masks = {"self": itself, "same_prompt": same & ~itself, "other_prompt": ~same}
    sample = score_batch(policy, E, functional=options.functional, method=options.method)
    units, ratio = Units.of(E.prompt_index), None
    if options.functional == "per_token":
        ratio = ratio_terms(sample, units.place)
    of_E, weights = TokenSum(E, *cotangents(sample)), torch.stack(list(masks.values())).double()
    table = pairs_by_unit(
        policy, step_functions(U, step), step, of_E, ratio, units, weights, options.gradients
    )  # (relations, P, n_U)
    tables = dict(zip([*masks, "gradient"], (*table, table.sum(0)), strict=True))
    share, sums = units.sizes / len(E), {name: x.sum(1) for name, x in tables.items()}
    totals = {
        name: Estimate.from_influences(
            float(x.sum()),
            x - share * x.sum(),
            unit=f"{UNITS[options.functional]} per η",
            method="jackknife over prompts",
            confidence=options.confidence,
            caveats=sample.trust.caveats,
        )
        for name, x in sums.items()
    }
    return Shares(totals, {name: x.sum(0) for name, x in tables.items()})
