"""What an attribution holds (T6): contributions by group, their sums, errors and the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from isentrope.estimate import Estimate
from isentrope.estimators.functional import Functional
from isentrope.kernel.gradient_groups import GradientGroups
from isentrope.policy.scoring import Scores
from isentrope.rollouts import Rollouts


@dataclass(frozen=True)
class Attribution:
    """What each piece of U does to one quantity, per unit η.

    Attributes:
        by_group: (G, n) by group of the batch that the quantity is measured on; sums over G.
        by_group_and_token: (G, n, t), or None where tokens were not asked for.
        budget: "momentum", "decay", "gradient" and "total", with errors.
        groups: The gradient that was used.
        unit: For example "nats per token per η".
    """

    by_group: Tensor
    by_group_and_token: Tensor | None
    budget: dict[str, Estimate]
    groups: GradientGroups
    unit: str

    @property
    def sequences(self) -> Tensor:
        """(n,) of each sequence."""
        return self.by_group.sum(0)

    @property
    def sequences_se(self) -> Tensor:
        """(n,) its standard error."""
        return self.groups.standard_error(self.by_group)

    @property
    def tokens(self) -> Tensor | None:
        """(n, t) of each token, 0 where there is none."""
        return None if self.by_group_and_token is None else self.by_group_and_token.sum(0)

    @property
    def tokens_se(self) -> Tensor | None:
        """(n, t) its standard error."""
        x = self.by_group_and_token
        return None if x is None else self.groups.standard_error(x)

    @property
    def closure(self) -> float:
        """Budget less total: rounding, and nothing else."""
        parts = (self.budget["momentum"].value, self.budget["decay"].value)
        return sum(parts) + float(self.sequences.sum()) - self.budget["total"].value


@dataclass(frozen=True)
class Influence:
    """Who moved the entropy, and who earned the reward.

    Attributes:
        entropy: δH of sequences and tokens.
        reward: δJ of the same, or None without a reward batch.
        U: The update batch.
        scores: s and H of U's tokens at θ, or None where tokens were not asked for.
        coefficients: (n, t) c_ik of the step.
        entropy_coefficients: (n, t) d_ik of the step, or None for 0.
        functional: "per_token" or "per_sequence".
        how: The passes that were made, in words.
        reliability: Rank correlation with the influence that an infinite E would give, about, of
            "sequences" and "tokens".
        listed_share: The share of their size that the largest "sequences" and "tokens" of a printed
            list would keep if E were infinite; the tables hold sizes as they were measured.
    """

    entropy: Attribution
    reward: Attribution | None
    U: Rollouts
    scores: Scores | None
    coefficients: Tensor
    entropy_coefficients: Tensor | None
    functional: Functional
    how: str
    reliability: dict[str, Estimate]
    listed_share: dict[str, float]

    @property
    def acting(self) -> Tensor:
        """(n, t) bool, the tokens that the step is made of."""
        d = self.entropy_coefficients
        return (self.coefficients != 0) if d is None else (self.coefficients != 0) | (d != 0)

    @property
    def groups(self) -> int:
        """Groups of E's prompts behind the errors; degrees of freedom are one less."""
        return len(self.entropy.by_group)

    @property
    def baseline(self) -> Estimate:
        """δH of momentum and decay: what was decided before this batch."""
        return self.entropy.budget["baseline"]

    @property
    def total(self) -> Estimate:
        """δH₁ of the whole step, per unit η."""
        return self.entropy.budget["total"]

    @property
    def per_sequence(self) -> Tensor:
        """(n,) δH_i per unit η."""
        return self.entropy.sequences

    @property
    def per_token(self) -> list[Tensor]:
        """δH_ik per unit η, ragged: one 1-D tensor a sequence."""
        tokens = self.entropy.tokens
        if tokens is None:
            raise ValueError("Tokens were not asked for: call influence with tokens=True.")
        return [row[:length] for row, length in zip(tokens, self.U.lengths.tolist(), strict=True)]

    def to_frame(
        self, of: Literal["sequences", "tokens"] = "sequences", tokenizer: Any = None
    ) -> Any:
        """A table with a row a sequence, or a token.

        Args:
            of: Which.
            tokenizer: Decodes each token into the column `text`; None leaves it empty.

        Returns:
            A pandas DataFrame; deltaH and deltaJ per unit η, with errors.

        Raises:
            ValueError: If asked for anything else, or for tokens that were not attributed.
        """
        from isentrope.kernel.influence_tables import sequence_table, token_table

        if of not in ("sequences", "tokens"):
            raise ValueError(f"to_frame of {of!r}; choose 'sequences' or 'tokens'.")
        return sequence_table(self) if of == "sequences" else token_table(self, tokenizer)
