"""Cheap predictions of a token's effect on the entropy, each a function of s, H and A (T9).

All are predictions of δH_ik up to a positive factor: the higher, the more entropy is gained. They
use one state at a time. There, with z the logits and π = softmax(z),

    ∂H/∂z_a = −S*_a,     S*_a = π_a (H + log π_a),
    dH = −Σ_a S*_a dz_a = −Cov_{a~π}(log π_a, dz_a)

    raise the logit of token k by c A           dH = −c A S*_k                     (discriminator)
    a policy-gradient step, dz = c A (e_k − π)  dH = −c A (S*_k − Σ_a π_a S*_a)    (local change)
    a natural-gradient step, dz_a = c A_a       dH = −c Cov_{a~π}(s_a, A_a)        (covariance)

The rest are further from this. The batch-centred discriminator has the mean of S* over the batch's
tokens in the place of Σ_a π_a S*_a, which takes the whole vocabulary. The covariance of a batch
pools states: its summand is −(s − s̄)(A − Ā). Over whole responses, the kernel form (T7) with a
kernel that is a multiple of the identity gives −(S − S̄)(A − Ā). Surprisal × advantage is the
covariance without centring, the advantage alone its sign for unlikely tokens (S* < 0). Entropy says
only how much can be lost, and the top-entropy mask has no sign at all: it predicts |δH_ik|.
None of them includes how the step at one state moves the others, which the kernel describes.

Token covariance: Cui et al. (2025), arXiv 2505.22617. S*: arXiv 2602.03392. Forking tokens: arXiv
2506.01939. Where A multiplies a proxy it is the advantage itself, also on a stale batch.
"""

import torch
from torch import Tensor

from isentrope.attribution.mid_ranks import lowest
from isentrope.policy.token_statistics import Scores

UNSIGNED = ("top_entropy",)
"""Proxies that predict the size of an influence and not its sign."""


def token_covariance(logprobs: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """−(s_ik − s̄)(A_i − Ā), the means over the tokens of the batch.

    Args:
        logprobs: (n, t) s, nats.
        mask: (n, t) bool.
        advantages: (n,) A.

    Returns:
        (n, t) float64, 0 where there is no token.
    """
    by_token = advantages[:, None].expand_as(logprobs)
    return -_centred(logprobs, mask) * _centred(by_token, mask)


def discriminator(logprobs: Tensor, entropies: Tensor) -> Tensor:
    """S* = π_k (H_k + log π_k), positive for tokens likelier than e^−H.

    Args:
        logprobs: s = log π_k, nats, of any shape.
        entropies: H_k, nats, of the same shape.

    Returns:
        S*; 0 where s and H are 0, as they are where there is no token.
    """
    return logprobs.exp() * (entropies + logprobs)


def top_entropy(entropies: Tensor, mask: Tensor, share: float = 0.2) -> Tensor:
    """1 for the tokens of highest entropy, 0 for the rest: no sign, it predicts |δH_ik|.

    Args:
        entropies: (n, t) H, nats.
        mask: (n, t) bool.
        share: Share of the batch's tokens; those tied with the last one, to rounding, are in.

    Returns:
        (n, t) float64, 0 or 1.
    """
    chosen = torch.zeros_like(mask)
    chosen[mask] = lowest(-entropies[mask], share)
    return chosen.double()


def token_proxies(scores: Scores, advantages: Tensor) -> dict[str, Tensor]:
    """Every proxy that s, H and A give, by name.

    Args:
        scores: s and H of n responses at θ.
        advantages: (n,) A.

    Returns:
        (n, t) float64 each, 0 where there is no token; those in `UNSIGNED` predict |δH_ik|.
    """
    s, h, m = scores.logprobs, scores.entropies, scores.mask
    by_token, own_token = advantages[:, None], discriminator(s, h)  # (n, 1) A_i and (n, t) S*_ik
    return {
        "token_covariance": token_covariance(s, m, advantages),
        "discriminator": -by_token * own_token,  # exact where only the token's own logit moves
        "centred_discriminator": -by_token * _centred(own_token, m),
        "surprisal_advantage": -s * by_token,  # rewarded unlikely tokens raise the entropy
        "advantage": by_token * m,
        "entropy": h,
        "top_entropy": top_entropy(h, m),
    }


def sequence_proxies(scores: Scores, advantages: Tensor) -> dict[str, Tensor]:
    """The covariance of whole responses, the advantage, and the sums of the token proxies.

    Args:
        scores: s and H of n responses at θ.
        advantages: (n,) A.

    Returns:
        (n,) float64 each; δH_i is the sum of δH_ik, and so are these.
    """
    sums = {name: x.sum(1) for name, x in token_proxies(scores, advantages).items()}
    total = scores.logprobs.sum(1)  # S_i
    covariance = -(total - total.mean()) * (advantages - advantages.mean())
    return {"sequence_covariance": covariance} | sums | {"advantage": advantages}


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """Values less their mean over the tokens of the batch; 0 where there is no token."""
    return torch.where(mask, values - values[mask].mean(), 0.0)
