"""Whether second moments are in the order of their parameters, by the fit of every exchange.

A second moment v is a running mean of squared gradients g², so log v and log g² share a pattern
over the entries of a tensor. For two parameters i and j of one shape

    Δ_ij = mean (log v_i − log v_j)(log g_i² − log g_j²)

is half of what an exchange of their states adds to the squared distances of log v from log g²: it
is positive in the given order and negative in the exchanged one. Its standard error is the larger
one of those over blocks of rows and of columns: the entries of a few rows depend on each other, so
a matrix with few rows or columns decides nothing. Differences of scale between whole tensors are
taken out: those of one batch are noise.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import stdtr
from torch import Tensor

from isentrope.nouns.vectors import Vector
from isentrope.parallel.sharded import whole

ENTRIES_PER_AXIS = 128
"""Rows and columns of a tensor that are compared, at most; at even distances."""
BLOCKS_PER_AXIS = 32
"""Blocks of rows, and of columns, at most."""
FEWEST = 16
"""With fewer blocks there is no standard error."""
MARGIN = 0.05
"""Share by which another order must fit better before the stored one is called wrong."""
BETTER = 1e-3
"""Largest probability by chance of a pair that fits better as it is."""
EXCHANGED = 1e-4
"""The same of any pair that fits better exchanged, over all pairs."""


@dataclass(frozen=True)
class StateOrder:
    """How stored second moments fit the parameters that they were matched to.

    Attributes:
        wrong: Parameter name → the name that its state fits clearly better, by the tests of pairs.
        better: The same by the best order of all, where it is nearer by a margin; without a test.
        open: A pair of which the exchange is not clearly worse; None where there is none.
    """

    wrong: dict[str, str]
    better: dict[str, str]
    open: tuple[str, str] | None


def state_order(gradient: Vector, moments: Vector) -> StateOrder:
    """Compare the stored order with other orders of equally shaped parameters.

    Args:
        gradient: Gradient by parameter name.
        moments: Second moments by the parameter name they were matched to.

    Returns:
        What fits better, and what is not decided.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, moment in moments.items():
        groups.setdefault(moment.shape, []).append(name)
    several = [names for names in groups.values() if len(names) > 1]
    pairs = sum(len(names) * (len(names) - 1) // 2 for names in several)
    wrong: dict[str, str] = {}
    better: dict[str, str] = {}
    undecided: tuple[str, str] | None = None
    stored = best = 0.0
    for names in several:
        v = _thin_to_logs([moments[n] for n in names])
        g = _thin_to_logs([gradient[n].square() for n in names])
        costs = torch.stack([(x - g).square().mean((1, 2)) for x in v]).numpy()
        rows, columns = linear_sum_assignment(costs)
        stored += float(costs.trace())
        best += float(costs[rows, columns].sum())
        better |= {names[r]: names[c] for r, c in zip(rows, columns, strict=True) if r != c}
        chance = _compute_chance(v, g)
        for i, j in torch.triu_indices(len(names), len(names), 1).T.tolist():
            if float(chance[i, j]) > 1 - EXCHANGED / pairs:
                wrong |= {names[i]: names[j], names[j]: names[i]}
            elif float(chance[i, j]) > BETTER:
                undecided = undecided or (names[i], names[j])
    return StateOrder(wrong, better if best < (1 - MARGIN) * stored else wrong, undecided)


def describe_misplaced(misplaced: Mapping[str, str]) -> str:
    """The first of the states that fit other parameters better, in words."""
    first, better = next(iter(misplaced.items()))
    return (
        f"{len(misplaced)} states fit other parameters better, the first is that of {first}, which "
        f"fits {better}"
    )


def _thin_to_logs(tensors: list[Tensor]) -> Tensor:
    """(n, rows, columns) logarithms of entries at even distances; zeros count as the smallest."""
    thinned: list[Tensor] = []
    for x in map(whole, tensors):
        x = x.flatten(1) if x.ndim > 1 else x.reshape(-1, 1)
        rows, columns = (-(-size // ENTRIES_PER_AXIS) for size in x.shape)
        thinned.append(x[::rows, ::columns])
    logs: list[Tensor] = []
    for x in torch.stack(thinned).cpu().double():  # one transfer for all
        positive = x[x > 0]
        logs.append(x.clamp_min(float(positive.min()) if len(positive) else 1e-300).log())
    return torch.stack(logs)


def _compute_chance(v: Tensor, g: Tensor) -> Tensor:
    """(n, n) probability that Δ_ij is as large by chance, of (n, rows, columns) logarithms."""
    half = torch.full((len(v), len(v)), 0.5, dtype=torch.float64)
    axes = [axis for axis in (1, 2) if v.shape[axis] > 1]
    if not axes or min(v.shape[axis] for axis in axes) < FEWEST:
        return half
    v, g = (x - x.mean((1, 2), keepdim=True) for x in (v, g))
    chances: list[Tensor] = []
    for axis in axes:
        parts: list[Tensor] = []
        blocks = min(BLOCKS_PER_AXIS, v.shape[axis])
        for pair in zip(*(x.tensor_split(blocks, axis) for x in (v, g)), strict=True):
            of_v, of_g = (x.flatten(1) for x in pair)
            product = of_v @ of_g.T / of_v.shape[1]
            matched = product.diagonal()
            parts.append(matched[:, None] + matched[None, :] - product - product.T)
        delta = torch.stack(parts)
        error = delta.std(0) / len(parts) ** 0.5
        ratio = (delta.mean(0) / error).where(error > 0, 0.0)
        chances.append(torch.from_numpy(stdtr(len(parts) - 1, -ratio.numpy())))
    low, high = torch.stack(chances).aminmax(dim=0)
    return half.clamp(low, high)  # both axes must agree: the one nearer to 1/2 counts
