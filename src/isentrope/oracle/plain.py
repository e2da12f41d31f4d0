"""Responses and their derivatives from plain calls of the model: no scorer, and no autograd.

Each prefix that occurs in a list of responses is given to the model once, unpadded, with others of
its length: `model(input_ids).logits`, over the temperature, through `log_softmax`.

Derivatives of these values are extrapolated central differences:

    D_1(h) = [f(h) − f(−h)] / 2h,     D_2(h) = [f(h) − 2 f(0) + f(−h)] / h²

are even in h: from h, h/2, h/4, … the terms h², h⁴, … are removed one after the other (Richardson's
table), and the entry that agrees best with its two parents is taken (Ridders, Adv. Eng. Softw. 4,
1982). By coordinates, two steps of fixed length do.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from itertools import chain, pairwise

import torch
from torch import Tensor
from torch.func import functional_call

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy

STEP_HALVINGS = 8
COORDINATE_STEP = 1e-4
"""h of derivatives by single parameters, which are of order 1 or below."""
COORDINATES = 256
"""Parameters moved at a time."""


def derivatives(f: Callable[[float], float], step: float) -> tuple[float, float]:
    """f'(0) and f''(0).

    On entropies in float64 they are accurate to about 1e-12 and 1e-10 of their size, where `step`
    moves log-probabilities by a nat or so.

    Args:
        f: A smooth function of one number.
        step: Largest h.

    Returns:
        The two derivatives.
    """
    at_zero = f(0.0)
    steps = [step / 2**j for j in range(STEP_HALVINGS)]
    ahead = [f(h) for h in steps]
    behind = [f(-h) for h in steps]
    first = [(a - b) / (2 * h) for a, b, h in zip(ahead, behind, steps, strict=True)]
    second = [(a - 2 * at_zero + b) / h**2 for a, b, h in zip(ahead, behind, steps, strict=True)]
    return _extrapolate(first), _extrapolate(second)


def _extrapolate(differences: list[float]) -> float:
    """The limit h → 0 of numbers at h, h/2, h/4, … with an error even in h."""
    best = differences[-1]
    least_error = float("inf")
    column = differences
    power = 1
    while len(column) > 1:
        power *= 4
        better: list[float] = [b + (b - a) / (power - 1) for a, b in pairwise(column)]
        for (a, b), value in zip(pairwise(column), better, strict=True):
            error = max(abs(value - a), abs(value - b))
            if error < least_error:
                best = value
                least_error = error
        column = better
    return best


def gradients(f: Callable[[Vector], Tensor], theta: Vector) -> Tensor:
    """∂f by every parameter: f(±h) and f(±2h) along each, of error h⁴.

    Args:
        f: Maps parameters to (m,) values. It is called under `vmap`, which a mixture of experts
            written as a loop is not fit for.
        theta: d parameters.

    Returns:
        (m, d) float64, parameters one after the other.
    """
    flat = torch.cat([p.flatten() for p in theta.values()])

    def at(point: Tensor) -> Tensor:
        return f(unflattened(point, theta))

    columns: list[Tensor] = []
    for start in range(0, len(flat), COORDINATES):
        count = min(COORDINATES, len(flat) - start)
        shift = flat.new_zeros(count, len(flat))
        shift[torch.arange(count), start + torch.arange(count)] = COORDINATE_STEP
        near, far = (
            torch.func.vmap(at)(flat + k * shift) - torch.func.vmap(at)(flat - k * shift)
            for k in (1, 2)
        )
        columns.append((8 * near - far) / (12 * COORDINATE_STEP))
    return torch.cat(columns).T


def unflattened(flat: Tensor, like: Vector) -> Vector:
    """A vector by parameter name, from its parameters one after the other."""
    parts = torch.split(flat, [p.numel() for p in like.values()])
    return {n: x.view_as(p) for (n, p), x in zip(like.items(), parts, strict=True)}


class Tree:
    """The prefixes of responses, as a function of the parameters.

    Attributes:
        lengths: (n,) float64 number of tokens T of each response.
    """

    def __init__(self, policy: Policy, rollouts: Rollouts) -> None:
        """Find the prefixes.

        Args:
            policy: Gives the model, its temperature and float64 arithmetic.
            rollouts: n responses.
        """
        self._policy = policy
        self.lengths = torch.tensor([len(r) for r in rollouts.response_ids], dtype=torch.float64)
        shape = (len(rollouts), int(self.lengths.max()))
        self._node = torch.zeros(shape, dtype=torch.int64)  # of the prefix before each token
        self._token = torch.zeros(shape, dtype=torch.int64)
        self._is_token = torch.zeros(shape, dtype=torch.float64)
        nodes: dict[tuple[int, ...], int] = {}
        pairs = zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
        for i, (prompt, response) in enumerate(pairs):
            ids = (*prompt.tolist(), *response.tolist())
            for k, token in enumerate(response.tolist()):
                self._node[i, k] = nodes.setdefault(ids[: len(prompt) + k], len(nodes))
                self._token[i, k] = token
                self._is_token[i, k] = 1.0
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for prefix in nodes:
            by_length.setdefault(len(prefix), []).append(prefix)
        self._inputs = [torch.tensor(prefixes) for prefixes in by_length.values()]
        rank = {prefix: i for i, prefix in enumerate(chain.from_iterable(by_length.values()))}
        self._node = torch.tensor([rank[prefix] for prefix in nodes])[self._node]

    def __call__(self, params: Vector) -> tuple[Tensor, Tensor]:
        """Score the responses.

        Args:
            params: Trainable parameters, by name.

        Returns:
            S = log π and the sum Σ_k H_k of conditional entropies, each (n,) float64, nats.
        """
        policy = self._policy
        with torch.no_grad(), policy.precision.active():
            logits = [
                functional_call(policy.model, params, (), {"input_ids": ids.to(policy.device)})
                .logits[:, -1]
                .cpu()
                for ids in self._inputs
            ]
        log_p = (torch.cat(logits) / policy.temperature).log_softmax(-1)  # (prefixes, v)
        entropy = -(log_p.exp() * log_p).sum(-1)
        chosen = log_p[self._node, self._token]
        return (chosen * self._is_token).sum(-1), (entropy[self._node] * self._is_token).sum(-1)
