"""The base class of token controls: checks of their options, and selection of tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar, dataclass_transform

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from isentrope.control.tokens import Rewritten, Tokens

OPTIONS = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Options are numbers and strings of the stated type; unknown options are refused."""

Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
"""A share that is not 0."""
Signed = Annotated[float, Field(ge=-1, le=1)]
# The largest numbers are those of `config.values`.
Positive = Annotated[float, Field(gt=0, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def options(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are options of a control, checked by type and range."""
    return dataclass(frozen=True, config=OPTIONS)(kind)  # pyright: ignore[reportReturnType]


class TokenRule:
    """A token control; subclasses are frozen dataclasses whose fields are its options.

    With strength 0 the batch keeps the weights of the plain objective exactly. The same holds for a
    negative strength where the control is not two-sided.

    Attributes:
        two_sided: Whether a negative strength is the same rule in the other direction.
        targetable: Whether its strength moves entropy one way, so that feedback can set it.
        needs: The optional column of `Tokens` that it reads, which costs a pass over the batch.
    """

    two_sided: ClassVar[bool] = False
    targetable: ClassVar[bool] = True
    needs: ClassVar[str | None] = None
    strength: float

    def rewrite(self, tokens: Tokens, strength: float) -> Rewritten:
        """Rewrite the weights of a batch.

        Args:
            tokens: The batch.
            strength: Strength at this step; `self.strength` without feedback.

        Returns:
            c' and d.

        Raises:
            ValueError: If a column that the control reads is missing.
        """
        if self.needs is not None and getattr(tokens, self.needs) is None:
            raise ValueError(f"{type(self).__name__} needs the {self.needs} of the batch.")
        effective = strength if self.two_sided else max(0.0, strength)
        if effective == 0:
            return Rewritten(tokens.weights)
        return self.apply(tokens, effective)

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Rewrite the weights of a batch at a strength other than 0.

        Args:
            tokens: The batch, with the columns that the control needs.
            strength: Positive, or of either sign where the control is two-sided.

        Returns:
            c' and d.

        Raises:
            NotImplementedError: Always; each control implements it.
        """
        raise NotImplementedError


def lowest_share(values: Tensor, among: Tensor, share: float) -> Tensor:
    """The tokens with the lowest values: a share of the candidates, at least one token.

    Args:
        values: (n, t).
        among: (n, t) bool, the candidates.
        share: Share of the candidates to select, in (0, 1].

    Returns:
        (n, t) bool, max(⌊share · m⌋, 1) of the m tokens of `among`; among equal values the first.
    """
    return _first(share, int(among.sum()), among, values[among].sort(stable=True).indices)


def without_random_tokens(tokens: Tokens, among: Tensor, share: float) -> Tensor:
    """The plain weights, 0 at random tokens: a share of the batch's, at least one.

    Args:
        tokens: The batch.
        among: (n, t) bool, the candidates.
        share: Share of all tokens of the batch, in (0, 1].

    Returns:
        (n, t) c'.
    """
    order = torch.randperm(int(among.sum()), generator=tokens.generator())
    return tokens.weights.masked_fill(_first(share, int(tokens.mask.sum()), among, order), 0.0)


def _first(share: float, of: int, among: Tensor, order: Tensor) -> Tensor:
    """(n, t) bool, the first max(⌊share · of⌋, 1) candidates in an order of them."""
    number = max(int(share * of + 1e-9), 1)  # robust to the rounding of a decimal share
    selection = torch.zeros(among.numel(), dtype=torch.bool)
    selection[among.flatten().nonzero()[:, 0][order[:number]]] = True
    return selection.view_as(among)


def two_values(where: Tensor, yes: float, no: float) -> Tensor:
    """`yes` where a condition holds and `no` elsewhere, float64."""
    return torch.where(where, *(torch.tensor(x, dtype=torch.float64) for x in (yes, no)))


def mixed(tokens: Tokens, advantages: Tensor, strength: float) -> Rewritten:
    """The batch with advantages interpolated between its own and others.

    Args:
        tokens: The batch.
        advantages: (n,) A', the advantages at strength 1.
        strength: x of (1 − x) A + x A'.

    Returns:
        c' = w_i ((1 − x) A_i + x A'_i).
    """
    mixture = (1 - strength) * tokens.advantages + strength * advantages
    return Rewritten((tokens.sequence_weights * mixture)[:, None] * tokens.mask)
