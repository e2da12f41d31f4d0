"""Token log-probabilities s_k and exact conditional entropies H_k at the sampling temperature.

    s_k = l_{t_k} − log Σ_a e^{l_a},     H_k = log Σ_a e^{l_a} − Σ_a π_a l_a,     l = logits / T

The vocabulary is visited in chunks with a running maximum, so no (tokens × vocabulary) array is
ever held, and the same code serves values, forward mode and reverse mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isentrope.forward_mode import derivatives_at_zero
from isentrope.policy.batching import MicroBatch, micro_batches
from isentrope.policy.logits import ScaledHead
from isentrope.policy.second_order_guard import require_second_derivatives
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector

if TYPE_CHECKING:
    from isentrope.policy.language_model import Policy

LOGITS_HELD = 2**23
"""Largest number of logits held at once, whatever the tokens and the vocabulary."""


class NotFiniteError(ValueError):
    """A log-probability or an entropy is NaN or infinite."""


@dataclass(frozen=True)
class Scores:
    """What a policy says of n responses, padded to t tokens, on the CPU.

    Attributes:
        logprobs: (n, t) float64, s_k in nats; 0 where there is no token.
        entropies: (n, t) float64, H_k in nats; 0 where there is no token.
        mask: (n, t) bool, where there is a token.
        features: (n, t, k) float64, hidden state before each token, projected; or None.
    """

    logprobs: Tensor
    entropies: Tensor
    mask: Tensor
    features: Tensor | None = None


def token_statistics(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    *,
    temperature: float,
    vocab_chunk: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution.

    Args:
        hidden: (m, d) hidden states that predict the targets.
        head: Output embedding. A plain linear layer is applied in vocabulary chunks; any other
            module is applied whole.
        targets: (m,) int64.
        temperature: Sampling temperature T.
        vocab_chunk: Vocabulary entries at a time.
        dtype: Type of the softmax arithmetic.

    Returns:
        s and H, each (m,), in nats.
    """
    rows = max(1, LOGITS_HELD // _columns(head, vocab_chunk))
    parts = []
    for h, t in zip(hidden.split(rows), targets.split(rows), strict=True):
        args = (h, head, t, temperature, vocab_chunk, dtype)
        if hidden.requires_grad and len(targets) > rows:
            parts.append(checkpoint(_statistics, *args, use_reentrant=False))
        else:
            parts.append(_statistics(*args))
    s, entropy = zip(*parts, strict=True)
    return torch.cat(s), torch.cat(entropy)


def _columns(head: nn.Module, chunk: int) -> int:
    """Vocabulary entries whose logits are held at once."""
    if isinstance(head, ScaledHead):  # applied whole
        return head.vocabulary
    return min(chunk, head.weight.shape[0]) if type(head) is nn.Linear else chunk


def _logit_chunks(hidden: Tensor, head: nn.Module, chunk: int):
    if type(head) is not nn.Linear:
        yield 0, head(hidden)
        return
    for start in range(0, head.weight.shape[0], chunk):
        bias = None if head.bias is None else head.bias[start : start + chunk]
        yield start, nn.functional.linear(hidden, head.weight[start : start + chunk], bias)


def _statistics(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    temperature: float,
    vocab_chunk: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    # top = max l, total = Σ e^{l−top}, weighted = Σ e^{l−top}(l−top), chosen = l_target: each (m,)
    top = torch.full(targets.shape, -torch.inf, dtype=dtype, device=hidden.device)
    total = weighted = chosen = torch.zeros_like(top)
    for start, logits in _logit_chunks(hidden, head, vocab_chunk):
        logits = logits.to(dtype) / temperature  # (m, chunk)
        new_top = torch.maximum(top, logits.detach().amax(1))
        shifted = logits - new_top[:, None]
        weights = shifted.exp()
        if start:
            drop = top - new_top
            weighted = drop.exp() * (weighted + total * drop)
            total = drop.exp() * total
        total = total + weights.sum(1)
        weighted = weighted + (weights * shifted).sum(1)
        place = targets - start
        picked = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        chosen = torch.where((place >= 0) & (place < logits.shape[1]), picked, chosen)
        top = new_top
    log_total = total.log()
    return (chosen - top) - log_total, log_total - weighted / total


def score(policy: Policy, rollouts: Rollouts, params: Vector | None = None) -> Scores:
    """Score every response under the policy, or under other parameters of it.

    Args:
        policy: The policy.
        rollouts: n sequences.
        params: Trainable parameters to use in place of θ; the model is not touched.

    Returns:
        Scores at θ, or at `params`.

    Raises:
        NotFiniteError: If a score is not finite, naming the first such sequence.
    """
    with torch.no_grad():
        return collect(policy, rollouts, lambda batch: policy.packed_scores(batch, params))[0]


def score_with_features(policy: Policy, rollouts: Rollouts, features: int = 32) -> Scores:
    """Like `score` at θ, with the hidden state before each token projected to a few numbers.

    Args:
        policy: The policy.
        rollouts: n sequences.
        features: Number of projected hidden-state coordinates k.

    Returns:
        Scores with `features` (n, t, k).
    """
    with torch.no_grad():
        return collect(
            policy, rollouts, lambda batch: policy.packed_scores_and_features(batch, features)
        )[0]


def score_along(
    policy: Policy, rollouts: Rollouts, direction: Vector, order: int
) -> tuple[Scores, ...]:
    """Scores at θ and their derivatives along θ + e v at e = 0, by forward mode.

    Args:
        policy: The policy.
        rollouts: n sequences.
        direction: v.
        order: Highest derivative: 1, or 2 (forward over forward).

    Returns:
        (scores, ∂_v scores) or (scores, ∂_v scores, ∂²_v scores); `logprobs` and `entropies` of
        the latter hold derivatives per unit η and η².

    Raises:
        SecondDerivativeError: If the model's second derivatives are wrong.
    """
    policy.require_direction(direction)
    if order == 2:
        require_second_derivatives(policy, rollouts)

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        def at(e: Tensor) -> tuple[Tensor, Tensor]:
            return policy.packed_scores(batch, policy.parameters_along(direction, e))

        return sum(derivatives_at_zero(at, order, policy.device), ())

    return collect(policy, rollouts, packed)


def score_along_each(
    policy: Policy, rollouts: Rollouts, directions: Sequence[Vector]
) -> tuple[Scores, ...]:
    """Scores at θ and their first derivative along each of several directions, in one pass.

    Args:
        policy: The policy.
        rollouts: n sequences.
        directions: v_1 … v_m, at least one.

    Returns:
        (scores, ∂_v1 scores, …, ∂_vm scores), as `score_along` gives them one by one.
    """
    for direction in directions:
        policy.require_direction(direction)
    options: dict[str, Any] = {"dtype": torch.float64, "device": policy.device}
    zero, basis = torch.zeros(len(directions), **options), torch.eye(len(directions), **options)

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        def at(e: Tensor) -> tuple[Tensor, Tensor]:  # θ + Σ_m e_m v_m
            moved = {
                n: (p.double() + sum(e[m] * v[n] for m, v in enumerate(directions))).to(p.dtype)
                for n, p in policy.theta.items()
            }
            return policy.packed_scores(batch, moved)

        def along(tangent: Tensor) -> Any:
            return torch.func.jvp(at, (zero,), (tangent,))

        base, slopes = torch.func.vmap(along, out_dims=cast(Any, (None, 0)))(basis)
        return (*base, *(x for pair in zip(*slopes, strict=True) for x in pair))

    return collect(policy, rollouts, packed)


def collect(policy: Policy, rollouts: Rollouts, packed_scores) -> tuple[Scores, ...]:
    """Run a function over micro-batches and put its outputs in place.

    Args:
        policy: The policy.
        rollouts: n sequences.
        packed_scores: Maps a micro-batch to pairs (s, H) of (m,), features last if there are any.

    Returns:
        Scores, one a pair.

    Raises:
        NotFiniteError: If a score is not finite.
    """
    rollouts.require_vocabulary(policy.vocabulary)
    mask = _mask(rollouts)
    out: list[Tensor] = []
    for batch in micro_batches(rollouts, policy.max_tokens):
        packed = [x.detach() for x in packed_scores(batch.to(policy.device))]
        out = out or [torch.zeros(*mask.shape, *x.shape[1:], dtype=torch.float64) for x in packed]
        for target, values in zip(out, packed, strict=True):
            batch.place(values, target)
    features = out.pop() if len(out) % 2 else None
    scores = tuple(Scores(s, h, mask, features) for s, h in zip(out[::2], out[1::2], strict=True))
    for part in scores:
        _require_finite(part)
    return scores


def _mask(rollouts: Rollouts) -> Tensor:
    lengths = rollouts.lengths
    return torch.arange(int(lengths.max()))[None, :] < lengths[:, None]


def _require_finite(scores: Scores) -> None:
    bad = ~(scores.logprobs.isfinite() & scores.entropies.isfinite()).all(1)
    if bool(bad.any()):
        raise NotFiniteError(
            f"The scores of {int(bad.sum())} of {len(bad)} sequences are not finite, the first "
            f"is sequence {int(bad.nonzero()[0])}: the logits hold NaN or infinity. Check the "
            "checkpoint's weights (isentrope check) or use a longer precision."
        )
