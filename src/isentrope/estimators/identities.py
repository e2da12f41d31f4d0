"""Two identities that hold only if the sampler drew from the policy that is scored.

    E[ S + Σ_k H_k ] = 0         (martingale: surprisal and exact entropy have the same mean)
    E[ Σ_k ∂_v s_k ] = 0         (score identity, along any v)

Each is a z-test on the E-batch at hand. A hidden top-k, another temperature, a masked EOS or a
shifted prompt all break them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.estimators.functional import Functionals
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import EntropySample


def martingale_z(sample: EntropySample) -> float:
    """Mean of S + Σ_k H_k over its standard error: standard normal if all is well.

    Args:
        sample: A scored E-batch.

    Returns:
        z; NaN with a single prompt draw.
    """
    return _z(sample, sample.series[0].logprobs + sample.entropies)


def score_identity_z(sample: EntropySample) -> float:
    """Mean of Σ_k ∂_v s_k over its standard error: standard normal if all is well.

    Args:
        sample: An E-batch scored with derivatives along v.

    Returns:
        z; NaN with a single prompt draw.

    Raises:
        ValueError: If the sample has no derivatives.
    """
    if len(sample.series) < 2:
        raise ValueError("The score identity needs derivatives along v: ask for order 1 or 2.")
    return _z(sample, sample.series[1].logprobs)


def _z(sample: EntropySample, terms: Tensor) -> float:
    f = Functionals("per_sequence", "sequence", sample.functional.tokens)
    no_weights = torch.zeros_like(terms)
    result = infinitesimal_jackknife(lambda w: f(w, no_weights, terms)[None], sample.prompt_index)
    return float(result.values[0] / result.standard_errors[0])
