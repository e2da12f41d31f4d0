"""δH₁ in its kernel form, by how the two responses of a pair are related (T7).

    δH₁ = −Σ_j x_j E_t[(S(t) − S̄) K(t, t_j)] = Σ_ij e_i K_ij x_j,     e_i = −(S_i − S̄)/n_E
        = Σ_c f_c m_c,     m_c = mean over the pairs of class c of n_E n_U e_i K_ij x_j

f_c is the share of the pairs that are in the class. With B prompts of G responses in U, n = B G:

    class          E = U                E fresh on U's prompts        E on D prompts, U's among them
    own            1/n                  p/B, p = P(equal responses)   p/D
    same_prompt    1/B − 1/n            (1 − p)/B                     (1 − p)/D
    other_prompt   1 − 1/B              1 − 1/B                       1 − 1/D

*own* is a response with itself, or with an equal response to the same prompt. m_c does not depend
on n, B and D (as far as S̄ and P do not), so contributions fall by these laws: the share of δH₁ that
a class has says how large the batch was. On prompts that U does not have, all of δH₁ is coupling
between different sequences. With E = U, own and same_prompt are biased, because the advantages of a
group hold the rewards of its own responses.

Errors of the classes delete a prompt's rows and columns together, those of the sum δH₁ over E alone
a prompt's rows, U held.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import PromptPairs, delete_one, shared_identities
from isentrope.estimators.jackknife import Units
from isentrope.nouns.estimate import Estimate

CHANGE_UNIT = "nats per sequence per η"

HELD_OUT = (
    "E has none of U's prompts, so all of δH₁ on E is coupling between different sequences: there "
    "are no own or same-prompt pairs to have a share of it."
)


@dataclass(frozen=True)
class PairClass:
    """The pairs of one class.

    Attributes:
        pairs: Their number.
        fraction: f_c, their share of all pairs.
        per_pair: m_c, what δH₁ would be if all pairs were of this class.
        contribution: f_c m_c; over all classes they sum to δH₁.
        falls_as: How f_c falls with n responses of B prompts in U, or with D prompts of E.
    """

    pairs: int
    fraction: float
    per_pair: Estimate
    contribution: Estimate
    falls_as: str = ""


def kernel_form(matrix: Tensor, logprobs: Tensor, x: Tensor, row_prompt: Tensor) -> Estimate:
    """−Σ_j x_j E[(S − S̄) K(t, t_j)] on a batch E.

    Args:
        matrix: (n, m) K.
        logprobs: (n,) S of the rows, nats.
        x: (m,) w_j A_j, the weight of each response in the step.
        row_prompt: (n,) prompt draw of each row.

    Returns:
        δH₁ in nats per sequence and unit η, with an error over E's prompts.
    """
    S = logprobs
    y = matrix @ x
    units = Units.of(row_prompt)
    n, of_s, of_y, of_sy = (_left(v, units) for v in (torch.ones_like(S), S, y, S * y))
    forms = -(of_sy - of_s * of_y / n) / n
    return delete_one(forms[0] + 0.0, forms[1:], units.count, CHANGE_UNIT)  # no −0


def pair_classes(
    matrix: Tensor, logprobs: Tensor, x: Tensor, pairs: PromptPairs, same_response: Tensor
) -> dict[str, PairClass]:
    """Contributions to δH₁ by class.

    Args:
        matrix: (n, m) K.
        logprobs: (n,) S of the rows, nats.
        x: (m,) w_j A_j.
        pairs: Rows and columns by prompt.
        same_response: (n, m) bool, the pairs of a response with itself or with an equal one
            (`own_pairs`).

    Returns:
        "own", "same_prompt" and "other_prompt", those that have a pair.
    """
    S = logprobs
    kx = matrix * x * len(x)
    masks = {
        "own": same_response & pairs.same,
        "same_prompt": pairs.same & ~same_response,
        "other_prompt": ~pairs.same,
    }
    of_rows = Units(pairs.rows, pairs.n_prompts)
    S_bar = _left(S, of_rows) / _left(torch.ones_like(S), of_rows)
    classes = {}
    for name, mask in masks.items():
        if not bool(mask.any()):
            continue
        means = pairs.means(-S[:, None] * kx, mask) + S_bar * pairs.means(kx, mask)
        fraction = int(mask.sum()) / mask.numel()
        per_pair, part = (pairs.estimate(f * means, mask, CHANGE_UNIT) for f in (1.0, fraction))
        classes[name] = PairClass(int(mask.sum()), fraction, per_pair, part)
    return classes


def own_pairs(rows: list[Tensor], columns: list[Tensor], same_prompt: Tensor) -> Tensor:
    """Pairs of equal responses to one prompt.

    Args:
        rows: Token ids of each row's response.
        columns: Token ids of each column's response.
        same_prompt: (n, m) bool.

    Returns:
        (n, m) bool.
    """
    return same_prompt & shared_identities(rows, columns).same


def _left(values: Tensor, units: Units) -> Tensor:
    """(1 + P,) the sum of (n,) values, whole and without each prompt."""
    total = values.sum()[None]
    return torch.cat([total, total - units.sums(values)])
