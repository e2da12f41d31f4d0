"""Cheap predictions of a token's effect on the entropy, each a function of s, H and A (T9).

All are predictions of δH_ik up to a positive factor: the higher, the more entropy is gained. They
use one state at a time. There, with z the logits and π = softmax(z),

    ∂H/∂z_a = −S*_a,     S*_a = π_a (H + log π_a),
    dH = −Σ_a S*_a dz_a = −Cov_{a~π}(log π_a, dz_a)

    raise the logit of token k by c A           dH = −c A S*_k                     (discriminator)
    a policy-gradient step, dz = c A (e_k − π)  dH = −c A (S*_k − Σ_a π_a S*_a)    (local change)
    a natural-gradient step, dz_a = c A_a       dH = −c Cov_{a~π}(s_a, A_a)        (covariance)

The rest are further from this. The batch-centred discriminator has the mean of S* over the batch's
tokens in the place of Σ_a π_a S*_a, which takes the whole vocabulary, and so a scoring pass
(`mean_discriminators`). STEER has (1 − π)(s + H) in the place of S*_k − Σ_a π_a S*_a. STARE knows
two sets: of the rewarded tokens the tenth that is most surprising raises entropy, and of the
punished ones that tenth lowers it. The covariance of a batch pools states: its summand is
−(s − s̄)(A − Ā). Over whole responses, the kernel form (T7) with a kernel that is a multiple of the
identity gives −(S − S̄)(A − Ā). Surprisal × advantage is the covariance without centring, the
advantage alone its sign for unlikely tokens (S* < 0). Entropy says only how much can be lost, and
the top-entropy mask has no sign at all: it predicts |δH_ik|. None of them includes how the step at
one state moves the others, which the kernel describes.

Sources, with what is equal to them on a fresh batch:

- Token covariance: Cui et al. (2025), arXiv 2505.22617.
- S*, and the local change: arXiv 2602.03392, theorems 3.2 and 3.3. Its Clip_B thresholds the
  centred S* of punished tokens, and its Clip_V their Σ_a π_a S*_a − S*.
- STEER: arXiv 2510.10150; Ω of `compute_token_weights` in zz-haooo/STEER, with π_old = π, which the
  source uses without its sign. A comment there has (1 − π)², the code (1 − π).
- STARE: arXiv 2606.19236; the sets L⁺ and L⁻ of `compute_stare_token_weights` in hp-luo/STARE.
- Forking tokens: arXiv 2506.01939.

The entropy polarity of arXiv 2605.11775 is A times a term of the sampled token and a correction by
state, which are the two parts of the local change. Its own formula was not found in public, nor
which layers and heads the attention entropy of arXiv 2605.07660 is a mean of: neither has a row.
Where A multiplies a proxy it is the advantage itself, also on a stale batch.
"""

import torch
from torch import Tensor

from isentrope.attribution.mid_ranks import lowest
from isentrope.models.batching import MicroBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect_columns
from isentrope.policy.token_statistics import Scores, rows_held

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


def mean_discriminators(policy: Policy, rollouts: Rollouts) -> Tensor:
    """Σ_a π_a S*_a of the state before every token, by a scoring pass.

    Args:
        policy: The policy.
        rollouts: n sequences.

    Returns:
        (n, t) float64, nats; 0 where there is no token.
    """
    rows = rows_held(policy.vocabulary, policy.device)

    def packed(batch: MicroBatch) -> list[Tensor]:
        means = list[Tensor]()
        with policy.precision.active():
            for hidden in policy.packed_hidden(batch).split(rows):
                logits = policy.head(hidden).double() / policy.temperature
                log_p = logits.log_softmax(-1)  # (rows, v) log π_a
                probabilities = log_p.exp()
                entropies = -(probabilities * log_p).sum(-1, keepdim=True)
                means.append((probabilities * discriminator(log_p, entropies)).sum(-1))
        return [torch.cat(means)]

    with torch.no_grad():
        return collect_columns(policy, rollouts, packed)[0]


def local_change(discriminators: Tensor, means: Tensor, advantages: Tensor) -> Tensor:
    """−A (S*_k − Σ_a π_a S*_a): exact where every state has a softmax of its own.

    Args:
        discriminators: (n, t) S*_k, nats.
        means: (n, t) Σ_a π_a S*_a (`mean_discriminators`).
        advantages: (n,) A.

    Returns:
        (n, t) float64.
    """
    return -advantages[:, None] * (discriminators - means)


def steer(logprobs: Tensor, entropies: Tensor, advantages: Tensor) -> Tensor:
    """−A (1 − π)(s + H), the estimate of STEER with its sign, on a fresh batch.

    Args:
        logprobs: (n, t) s, nats.
        entropies: (n, t) H, nats.
        advantages: (n,) A.

    Returns:
        (n, t) float64; 0 where s and H are 0, as they are where there is no token.
    """
    return advantages[:, None] * logprobs.expm1() * (logprobs + entropies)


def stare(logprobs: Tensor, mask: Tensor, advantages: Tensor, share: float = 0.1) -> Tensor:
    """1 on the most surprising rewarded tokens, −1 on the most surprising punished ones.

    Args:
        logprobs: (n, t) s, nats.
        mask: (n, t) bool.
        advantages: (n,) A.
        share: Share of the tokens of each sign; those tied with the last one, to rounding, are in.

    Returns:
        (n, t) float64, −1, 0 or 1.
    """
    predicted = torch.zeros_like(logprobs)
    for sign in (1.0, -1.0):
        tokens = mask & (sign * advantages > 0)[:, None]
        if bool(tokens.any()):
            predicted[tokens] = sign * lowest(logprobs[tokens], share).to(predicted)
    return predicted


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


def token_proxies(
    scores: Scores, advantages: Tensor, means: Tensor | None = None
) -> dict[str, Tensor]:
    """Every proxy that s, H and A give, by name.

    Args:
        scores: s and H of n responses at θ.
        advantages: (n,) A.
        means: (n, t) Σ_a π_a S*_a, which `local_change` needs; without them it is omitted.

    Returns:
        (n, t) float64 each, 0 where there is no token; those in `UNSIGNED` predict |δH_ik|.
    """
    s = scores.logprobs
    h = scores.entropies
    m = scores.mask
    by_token = advantages[:, None]
    discriminators = discriminator(s, h)  # (n, t) S*_ik
    exact = (
        {} if means is None else {"local_change": local_change(discriminators, means, advantages)}
    )
    return {
        "token_covariance": token_covariance(s, m, advantages),
        "discriminator": -by_token * discriminators,  # exact where only its own logit moves
        "centred_discriminator": -by_token * _centred(discriminators, m),
        **exact,
        "steer": steer(s, h, advantages),
        "stare": stare(s, m, advantages),
        "surprisal_advantage": -s * by_token,  # rewarded unlikely tokens raise the entropy
        "advantage": by_token * m,
        "entropy": h,
        "top_entropy": top_entropy(h, m),
    }


def sequence_proxies(
    scores: Scores, advantages: Tensor, means: Tensor | None = None
) -> dict[str, Tensor]:
    """The covariance of whole responses, the advantage, and the sums of the token proxies.

    Args:
        scores: s and H of n responses at θ.
        advantages: (n,) A.
        means: As for `token_proxies`.

    Returns:
        (n,) float64 each; δH_i is the sum of δH_ik, and so are these.
    """
    sums = {name: x.sum(1) for name, x in token_proxies(scores, advantages, means).items()}
    total = scores.logprobs.sum(1)  # S_i
    covariance = -(total - total.mean()) * (advantages - advantages.mean())
    return {"sequence_covariance": covariance} | sums | {"advantage": advantages}


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """Values less their mean over the tokens of the batch; 0 where there is no token."""
    return torch.where(mask, values - values[mask].mean(), 0.0)
