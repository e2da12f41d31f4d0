"""A token control: its input, its output, checks of its options, and selection of tokens.

    loss = −J,     ∂J = Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik)

The plain objective has c_ik = w_i A_i and d = 0; a control replaces c, and may add d. Its input is
the whole batch of the step, so the result does not depend on micro-batches or processes, and
`isentrope try` and training call the same function.

Options are checked when a configuration is read, so torch is imported where a control acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar, dataclass_transform

from pydantic import dataclasses

from isentrope.system.number_types import OPTIONS
from isentrope.system.number_types import Count as Count
from isentrope.system.number_types import NotNegative as NotNegative
from isentrope.system.number_types import Part as Part
from isentrope.system.number_types import Positive as Positive
from isentrope.system.number_types import Share as Share
from isentrope.system.number_types import Signed as Signed

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from isentrope.nouns.rollouts import Rollouts


@dataclass(frozen=True)
class Tokens:
    """The update batch of a step; n sequences of at most t tokens, float64 on the CPU.

    Attributes:
        logprobs: (n, t) s of the sampler, nats; 0 where there is no token.
        entropies: (n, t) H of the sampler's distribution, nats; 0 where there is no token.
        mask: (n, t) bool, where there is a token.
        sequence_weights: (n,) w_i of the objective.
        advantages: (n,) A_i.
        rewards: (n,) R_i.
        group: (n,) index of the prompt draw that a sequence belongs to.
        step: Number of the step, from 1.
        seed: Seed of the random numbers of a control.
        kept_mass: (n, t) probability that a min-p filter keeps at each position, 0 where it does
            not keep the token itself; None where it was not computed.
        influence: (n, t) δH_ik of the plain objective's tokens, or None.
    """

    logprobs: Tensor
    entropies: Tensor
    mask: Tensor
    sequence_weights: Tensor
    advantages: Tensor
    rewards: Tensor
    group: Tensor
    step: int
    seed: int = 0
    kept_mass: Tensor | None = None
    influence: Tensor | None = None

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        sequence_weights: Tensor,
        *,
        step: int,
        seed: int = 0,
    ) -> Tokens:
        """Make the input from an update batch.

        Args:
            rollouts: The whole batch, with rewards, advantages, and the sampler's log-probabilities
                and entropies.
            sequence_weights: (n,) w_i of the objective (`update.objective.sequence_weights`).
            step: Number of the step, from 1.
            seed: Seed of the random numbers of a control.

        Returns:
            The batch.

        Raises:
            ValueError: If a column is missing.
        """
        needed = ("sampler_logprobs", "sampler_entropies", "advantages", "rewards")
        columns = {name: getattr(rollouts, name) for name in needed}
        if missing := [name for name, column in columns.items() if column is None]:
            raise ValueError(f"A control needs the {missing[0]} of the update batch.")
        return cls(
            logprobs=rollouts.padded("sampler_logprobs"),
            entropies=rollouts.padded("sampler_entropies"),
            mask=rollouts.mask,
            sequence_weights=sequence_weights,
            advantages=columns["advantages"],
            rewards=columns["rewards"],
            group=rollouts.prompt_index.unique(return_inverse=True)[1],
            step=step,
            seed=seed,
        )

    @property
    def weights(self) -> Tensor:
        """(n, t) c_ik = w_i A_i of the plain objective."""
        return (self.sequence_weights * self.advantages)[:, None] * self.mask

    @property
    def token_advantages(self) -> Tensor:
        """(n, t) A_i at every token of its sequence, 0 where there is none."""
        return self.advantages[:, None] * self.mask

    def generator(self) -> Generator:
        """Random numbers of this step, the same on every process."""
        from isentrope.sampling.streams import generator_of

        return generator_of(self.seed, self.step, 0, 11)


@dataclass(frozen=True)
class Rewritten:
    """A batch rewritten by a control.

    Attributes:
        weights: (n, t) c'_ik.
        entropy_weights: (n, t) d_ik, or None for 0.
        numbers: Numbers of the control for the log, by name.
    """

    weights: Tensor
    entropy_weights: Tensor | None = None
    numbers: dict[str, float] = field(default_factory=dict)


def touched(tokens: Tokens, rewritten: Rewritten) -> dict[str, float]:
    """Statistics of the tokens whose weights a control changed.

    Args:
        tokens: The batch.
        rewritten: The batch rewritten by the control.

    Returns:
        `touched`, the share of tokens whose weight changed; `changed`, Σ|c' − c| / Σ|c|; and among
        these tokens `touched_negative`, the share with A < 0, `touched_unlikely`, the share with s
        below the mean, and `touched_entropy`, their mean H (nats). NaN if no weight changed.
    """
    plain = tokens.weights
    change = (rewritten.weights - plain).abs()
    is_touched = (change > 0) & tokens.mask
    if rewritten.entropy_weights is not None:
        is_touched |= (rewritten.entropy_weights != 0) & tokens.mask
    mean_logprob = tokens.logprobs[tokens.mask].mean()

    def mean_of_touched(values: Tensor) -> float:
        return float(values[is_touched].double().mean())

    return {
        "touched": float(is_touched.sum() / tokens.mask.sum()),
        "changed": float(change.sum() / plain.abs().sum()),
        "touched_negative": mean_of_touched(tokens.token_advantages < 0),
        "touched_unlikely": mean_of_touched(tokens.logprobs < mean_logprob),
        "touched_entropy": mean_of_touched(tokens.entropies),
        **rewritten.numbers,
    }


_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def options(kind: type[_T]) -> type[_T]:
    """A frozen dataclass whose fields are options of a control, checked by type and range."""
    return dataclasses.dataclass(frozen=True, config=OPTIONS)(kind)  # pyright: ignore[reportReturnType]


class TokenRule:
    """A token control; subclasses are frozen dataclasses whose fields are its options.

    With strength 0 the batch keeps the weights of the plain objective exactly. The same holds for a
    negative strength where the control is not two-sided.

    Attributes:
        two_sided: Whether a negative strength is the same rule in the other direction.
        targetable: Whether its strength moves entropy one way, so that feedback can set it.
        needs: The optional column of `Tokens` that it reads, which costs a pass over the batch:
            "kept_mass", by a filter of its option `min_p`, or "influence", measured on as many
            held-out responses as its option `size` says; None for neither.
        multiples: Strengths that one step is tried at, as multiples of the default.
    """

    two_sided: ClassVar[bool] = False
    targetable: ClassVar[bool] = True
    needs: ClassVar[str | None] = None
    multiples: ClassVar[tuple[float, ...]] = (0.25, 0.5, 1.0)
    strength: float

    def refusal(self, group_size: int) -> str:
        """Why the control cannot act in a run.

        Args:
            group_size: Responses per prompt draw.

        Returns:
            A clause for an error; empty where it can.
        """
        return ""

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
    order = values[among].sort(stable=True).indices
    return _select_first(order, among, share, total=int(among.sum()))


def without_random_tokens(tokens: Tokens, among: Tensor, share: float) -> Tensor:
    """The plain weights, 0 at random tokens: a share of the batch's, at least one.

    Args:
        tokens: The batch.
        among: (n, t) bool, the candidates.
        share: Share of all tokens of the batch, in (0, 1].

    Returns:
        (n, t) c'.
    """
    from torch import randperm

    order = randperm(int(among.sum()), generator=tokens.generator())
    selection = _select_first(order, among, share, total=int(tokens.mask.sum()))
    return tokens.weights.masked_fill(selection, 0.0)


def _select_first(order: Tensor, among: Tensor, share: float, *, total: int) -> Tensor:
    """(n, t) bool, the first max(⌊share · total⌋, 1) candidates in an order of them."""
    number = max(int(share * total + 1e-9), 1)  # robust to the rounding of a decimal share
    selection = among.new_zeros(among.numel())
    selection[among.flatten().nonzero()[:, 0][order[:number]]] = True
    return selection.view_as(among)


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
