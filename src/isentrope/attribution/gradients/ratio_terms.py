"""What omitting a group of prompts changes in the ratio h = ℋ/N that all samples share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.functional import Functionals, infinitesimal_jackknife
from isentrope.estimators.sample import ScoredBatch


@dataclass(frozen=True)
class RatioTerms:
    """How omitting groups changes the ratio h = ℋ/N that all samples share.

    Attributes:
        of_length: (G,) I_h/N, the coefficient of ∂N.
        of_total: (G,) I_N/N, the coefficient of ∂h.
        length_weights: (n, t) cotangents of s whose gradient is ∂N.
    """

    of_length: Tensor
    of_total: Tensor
    length_weights: Tensor


def ratio_terms(sample: ScoredBatch, group: Tensor) -> RatioTerms:
    """The shared terms of a per-token functional, by group.

    Args:
        sample: E at θ, with the functional h.
        group: (n,) the group of each sample.

    Returns:
        Coefficients that sum to zero over groups, and ∂N as weights.
    """
    f = sample.functional
    whole = "sequence" if f.method == "sequence" else "prefix"
    length = Functionals("per_sequence", whole, f.tokens)  # N is ℋ with every H_ik = 1

    def statistics(omega: Tensor) -> Tensor:
        h = f(omega, sample.log_ratios, sample.entropies)
        return torch.stack((h, length(omega, sample.log_ratios, f.tokens)))

    jackknife = infinitesimal_jackknife(statistics, group)
    ones = torch.ones(len(group), dtype=torch.float64)
    weights = torch.func.grad(lambda r: length(ones, r, f.tokens))(sample.log_ratios)
    of_h, of_n = jackknife.influences / jackknife.values[1]  # (G,) each: I_h/N and I_N/N
    return RatioTerms(of_h, of_n, weights)
