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

from isentrope.models.architecture import ScaledHead
from isentrope.system.memory import capacity
from isentrope.system.one_line import one_line, plural

LOGITS_HELD = 2**21
"""Logits held at once on a CPU, for any number of tokens and any vocabulary: 16 MiB in float64,
which glibc keeps when they are freed. Blocks of twice as many are mapped anew, page by page."""

LOGITS_OF_A_CARD = 2**26
"""Logits held at once on a card, at most: more of them take no fewer kernels."""

BYTES_PER_LOGIT_HELD = 1024
"""Bytes of a card's memory for each: what is computed of a logit takes a tenth of them."""


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


def logits_held(memory: int) -> int:
    """Logits held at once on a card, which waits for its host where they are few.

    Args:
        memory: Bytes of the card's memory, used ones included, so that its load does not change
            how sums are rounded.

    Returns:
        A power of two.
    """
    fitting = 2 ** max(0, (memory // BYTES_PER_LOGIT_HELD).bit_length() - 1)
    return min(LOGITS_OF_A_CARD, max(LOGITS_HELD, fitting))


def rows_held(columns: int, device: torch.device, *, in_graph: bool = False) -> int:
    """Tokens whose logits are held at once, one at least.

    Args:
        columns: Vocabulary entries of each.
        device: Where.
        in_graph: Whether a graph keeps all chunks of the vocabulary until it is gone.

    Returns:
        On a card as many as its memory allows, without a graph.
    """
    if in_graph or device.type == "cpu":
        return max(1, LOGITS_HELD // columns)
    return max(1, logits_held(capacity(device)) // columns)


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
            (V); or None where not requested.
    """

    logprobs: Tensor
    entropies: Tensor
    mask: Tensor
    features: Tensor | None = None
    variances: Tensor | None = None

    def __repr__(self) -> str:
        rows, columns = self.mask.shape
        tokens = plural(int(self.mask.sum()), "token")
        size = f"{plural(rows, 'response')}, {tokens}, padded to {columns}"
        optional = [name for name in ("features", "variances") if getattr(self, name) is not None]
        return one_line(self, size, *([f"with {', '.join(optional)}"] if optional else []))


def require_finite(scores: Scores) -> None:
    """Refuse scores that are not finite.

    Args:
        scores: Scores.

    Raises:
        NotFiniteError: Naming the first such sequence.
    """
    not_finite = ~(scores.logprobs.isfinite() & scores.entropies.isfinite()).all(1)
    if bool(not_finite.any()):
        raise NotFiniteError(
            f"The scores of {int(not_finite.sum())} of {len(not_finite)} sequences are not finite, "
            f"the first is sequence {int(not_finite.nonzero()[0])}: the logits hold NaN or "
            "infinity. Check the checkpoint's weights (isentrope check) or use a longer precision."
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
        gap = (getattr(first, name) - getattr(second, name)).abs().amax(1)
        if float(gap.max()) > 0:
            return (
                f"Two evaluations at the same parameters differ in {name} by up to "
                f"{float(gap.max()):.2g} nats (sequence {int(gap.argmax())})."
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
        variances: Whether to return V and F as well.

    Returns:
        s and H, each (m,), in nats; then V in nats² and F in nats² per unit η², if requested. F is
        0 outside forward mode.
    """
    # vocabulary entries whose logits are held at once
    columns = softmax.chunk
    if isinstance(head, ScaledHead):  # applied whole
        columns = head.vocabulary
    elif type(head) is nn.Linear:
        columns = min(columns, head.weight.shape[0])
    rows = rows_held(columns, hidden.device, in_graph=hidden.requires_grad)
    parts: list[tuple[Tensor, ...]] = []
    for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        args = (h, head, t, softmax, variances)
        if hidden.requires_grad and len(targets) > rows:
            parts.append(checkpoint(_sum_over_vocabulary, *args, use_reentrant=False))
        else:
            parts.append(_sum_over_vocabulary(*args))
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


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


def _sum_over_vocabulary(
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
    moments: list[Tensor] = []  # Σ e^{l−top} of x, x², ∂_v l, (∂_v l)², where x = l − first
    first = top
    for start, logits in logit_chunks(hidden, head, chunk):
        logits = logits.to(dtype) / temperature  # (m, chunk)
        # detached: the value of `top` cancels, so it needs no derivative
        new_top = torch.maximum(top, logits.detach().amax(1))
        shifted = logits - new_top[:, None]
        weights = shifted.exp()  # (m, chunk), at most 1
        drop = top - new_top
        if variances:
            values, slope = unpack_dual(logits)
            first = first if start else new_top
            x = values - first[:, None]
            w = unpack_dual(weights).primal
            slope = torch.zeros_like(x) if slope is None else slope
            sums = [(w * y).sum(1) for y in (x, x.square(), slope, slope.square())]
            earlier = [drop.exp() * y for y in moments] if start else [0.0] * len(sums)
            moments = [a + b for a, b in zip(earlier, sums, strict=True)]
        if start:  # refer the sums so far to the new top: l_a − top changes by `drop`
            weighted = drop.exp() * (weighted + total * drop)
            total = drop.exp() * total
        total = total + weights.sum(1)
        weighted = weighted + (weights * shifted).sum(1)
        place = targets - start
        picked = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        # only the chunk that holds the target has its logit; the others leave it
        chosen = torch.where((place >= 0) & (place < logits.shape[1]), picked, chosen)
        top = new_top
    log_total = total.log()
    scores = ((chosen - top) - log_total, log_total - weighted / total)
    if not variances:
        return scores
    x, square, slope, slope_square = (y / unpack_dual(total).primal for y in moments)
    spread = (square - x.square(), slope_square - slope.square())
    return (*scores, *(y.clamp_min(0) for y in spread))
