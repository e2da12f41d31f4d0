"""Token log-probabilities s_k and exact conditional entropies H_k at the sampling temperature.

    s_k = l_{t_k} − log Σ_a e^{l_a},     H_k = log Σ_a e^{l_a} − Σ_a π_a l_a,     l = logits / T

The vocabulary is visited in chunks with a running maximum, so no (tokens × vocabulary) array is
ever held, and the same code serves values, forward mode and reverse mode.

Given the prefix, a token's log-probability and its derivative have the variances

    V_k = Σ_a π(a) (log π(a) + H_k)²          F_k = Σ_a π(a) (∂_v log π(a))²

V_k is the variance of s_k, and F_k that of ∂_v s_k, over the tokens that the policy may draw. Both
come from the sums over the vocabulary that give s and H: log π and ∂_v log π are the logits l and
∂_v l up to a constant. ∂_v l is the tangent that forward mode carries along with the logits.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.utils.checkpoint import checkpoint

from isentrope.models.batching import at_once
from isentrope.models.embeddings import ScaledHead


class Spread:
    """Running second moments of one chunk of the vocabulary after another.

    With w_a = e^{l_a − top} and x_a = l_a − top, as in `scoring`:

    Attributes:
        square: (m,) Σ_a w_a x_a².
        slope: (m,) Σ_a w_a ∂_v l_a.
        slope_square: (m,) Σ_a w_a (∂_v l_a)².
    """

    def __init__(self, like: Tensor) -> None:
        """Start at zero.

        Args:
            like: (m,) any tensor of the arithmetic's dtype and device.
        """
        self.square = self.slope = self.slope_square = torch.zeros_like(like)

    def rescale(self, drop: Tensor, weighted: Tensor, total: Tensor) -> None:
        """Refer the sums to a new `top`.

        Args:
            drop: (m,) old top − new top.
            weighted: (m,) Σ_a w_a x_a before the change.
            total: (m,) Σ_a w_a before the change.
        """
        drop, weighted, total = (unpack_dual(x).primal for x in (drop, weighted, total))
        scale = drop.exp()
        self.square = scale * (self.square + 2 * drop * weighted + drop.square() * total)
        self.slope, self.slope_square = scale * self.slope, scale * self.slope_square

    def add(self, logits: Tensor, weights: Tensor, shifted: Tensor) -> None:
        """Add a chunk.

        Args:
            logits: (m, c) l, with their tangent where forward mode is at work.
            weights: (m, c) w.
            shifted: (m, c) x.
        """
        weights, shifted = unpack_dual(weights).primal, unpack_dual(shifted).primal
        self.square = self.square + (weights * shifted.square()).sum(1)
        slope = unpack_dual(logits).tangent
        if slope is not None:
            self.slope = self.slope + (weights * slope).sum(1)
            self.slope_square = self.slope_square + (weights * slope.square()).sum(1)

    def variances(self, weighted: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """V and F.

        Args:
            weighted: (m,) Σ_a w_a x_a over the whole vocabulary.
            total: (m,) Σ_a w_a.

        Returns:
            V in nats² and F in nats² per unit η², each (m,); F is 0 outside forward mode.
        """
        weighted, total = unpack_dual(weighted).primal, unpack_dual(total).primal
        value = self.square / total - (weighted / total).square()
        slope = self.slope_square / total - (self.slope / total).square()
        return value.clamp_min(0), slope.clamp_min(0)


LOGITS_HELD = 2**23
"""Largest number of logits held at once, for any number of tokens and any vocabulary."""


class Softmax(NamedTuple):
    """How logits become probabilities.

    Attributes:
        temperature: Sampling temperature T.
        chunk: Vocabulary entries at a time.
        dtype: Type of the arithmetic.
    """

    temperature: float
    chunk: int
    dtype: torch.dtype


def rows_held(columns: int) -> int:
    """Tokens whose logits are held at once, of so many vocabulary entries; one at least."""
    return max(1, at_once(LOGITS_HELD) // columns)


class NotFiniteError(ValueError):
    """A log-probability or an entropy is NaN or infinite."""


@dataclass(frozen=True)
class Scores:
    """Scores of n responses under a policy, padded to t tokens, on the CPU.

    Attributes:
        logprobs: (n, t) float64, s_k in nats; 0 where there is no token.
        entropies: (n, t) float64, H_k in nats; 0 where there is no token.
        mask: (n, t) bool, where there is a token.
        features: (n, t, k) float64, hidden state before each token, projected; or None.
        variances: (n, t) float64, variance of `logprobs` over the token drawn, given the prefix
            (`Spread`); or None where not requested.
    """

    logprobs: Tensor
    entropies: Tensor
    mask: Tensor
    features: Tensor | None = None
    variances: Tensor | None = None


def require_finite(scores: Scores) -> None:
    """Refuse scores that are not finite.

    Args:
        scores: Scores.

    Raises:
        NotFiniteError: Naming the first such sequence.
    """
    bad = ~(scores.logprobs.isfinite() & scores.entropies.isfinite()).all(1)
    if bool(bad.any()):
        raise NotFiniteError(
            f"The scores of {int(bad.sum())} of {len(bad)} sequences are not finite, the first "
            f"is sequence {int(bad.nonzero()[0])}: the logits hold NaN or infinity. Check the "
            "checkpoint's weights (isentrope check) or use a longer precision."
        )


def nondeterminism(first: Scores, second: Scores) -> str | None:
    """Compare two evaluations of the same rollouts.

    Args:
        first: One.
        second: The other.

    Returns:
        None if both are bit-identical, else a sentence that says what differed.
    """
    for name in ("logprobs", "entropies"):
        gap = (getattr(first, name) - getattr(second, name)).abs()
        if float(gap.max()) > 0:
            where = int(gap.amax(1).argmax())
            return (
                f"Two evaluations at the same parameters differ in {name} by up to "
                f"{float(gap.max()):.2g} nats (sequence {where})."
            )
    return None


def token_statistics(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    softmax: Softmax,
    variances: bool = False,
) -> tuple[Tensor, ...]:
    """Log-probability of each target and entropy of its distribution.

    Args:
        hidden: (m, d) hidden states that predict the targets.
        head: Output embedding. A plain linear layer is applied in vocabulary chunks; any other
            module is applied whole.
        targets: (m,) int64.
        softmax: Of the logits.
        variances: Whether to return V and F of `Spread` as well.

    Returns:
        s and H, each (m,), in nats; then V and F if requested.
    """
    rows = rows_held(_columns(head, softmax.chunk))
    parts: list[tuple[Tensor, ...]] = []
    for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        args = (h, head, t, softmax, variances)
        if hidden.requires_grad and len(targets) > rows:
            parts.append(checkpoint(_statistics, *args, use_reentrant=False))
        else:
            parts.append(_statistics(*args))
    return tuple(torch.cat(of) for of in zip(*parts, strict=True))


def _columns(head: nn.Module, chunk: int) -> int:
    """Vocabulary entries whose logits are held at once."""
    if isinstance(head, ScaledHead):  # applied whole
        return head.vocabulary
    return min(chunk, head.weight.shape[0]) if type(head) is nn.Linear else chunk


def logit_chunks(hidden: Tensor, head: nn.Module, chunk: int) -> Iterator[tuple[int, Tensor]]:
    """Logits of a few vocabulary entries at a time; those of a head that is not linear at once.

    Args:
        hidden: (m, d) hidden states.
        head: Output embedding.
        chunk: Vocabulary entries at a time.

    Yields:
        The first entry, and the (m, chunk) logits from there on.
    """
    if type(head) is not nn.Linear:
        yield 0, head(hidden)
        return
    for start in range(0, head.weight.shape[0], chunk):
        none = head.bias is None  # pyright: ignore[reportUnnecessaryComparison] (bias=False)
        bias = None if none else head.bias[start : start + chunk]
        yield start, nn.functional.linear(hidden, head.weight[start : start + chunk], bias)


def _statistics(
    hidden: Tensor,
    head: nn.Module,
    targets: Tensor,
    softmax: Softmax,
    variances: bool,
) -> tuple[Tensor, ...]:
    temperature, chunk, dtype = softmax
    # top = max l, total = Σ e^{l−top}, weighted = Σ e^{l−top}(l−top), chosen = l_target: each (m,)
    top = torch.full(targets.shape, -torch.inf, dtype=dtype, device=hidden.device)
    total = weighted = chosen = torch.zeros_like(top)
    spread = Spread(top) if variances else None
    for start, logits in logit_chunks(hidden, head, chunk):
        logits = logits.to(dtype) / temperature  # (m, chunk)
        # detached: the value of `top` cancels, so it needs no derivative
        new_top = torch.maximum(top, logits.detach().amax(1))
        shifted = logits - new_top[:, None]
        weights = shifted.exp()  # (m, chunk), at most 1
        if start:  # refer the sums so far to the new top: x_a changes by `drop`
            drop = top - new_top
            if spread:
                spread.rescale(drop, weighted, total)
            weighted = drop.exp() * (weighted + total * drop)
            total = drop.exp() * total
        total = total + weights.sum(1)
        weighted = weighted + (weights * shifted).sum(1)
        if spread:
            spread.add(logits, weights, shifted)
        place = targets - start
        picked = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        # only the chunk that holds the target has its logit; the others leave it
        chosen = torch.where((place >= 0) & (place < logits.shape[1]), picked, chosen)
        top = new_top
    log_total = total.log()
    scores = (chosen - top) - log_total, log_total - weighted / total
    return (*scores, *spread.variances(weighted, total)) if spread else scores
