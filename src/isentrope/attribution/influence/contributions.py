"""The contents of an attribution (T6): contributions by group, sums, errors, budget and tables."""

from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.estimators.functional import Functional
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.token_statistics import Scores


@dataclass(frozen=True)
class Attribution:
    """The effect of each sequence and token of U on one quantity, per unit η.

    Attributes:
        by_group: (G, n) by group of the batch that the quantity is measured on; sums over G.
        by_group_and_token: (G, n, t), or None where tokens were not requested.
        budget: "momentum", "decay", "gradient" and "total", with errors.
        groups: The gradient that was used.
    """

    by_group: Tensor
    by_group_and_token: Tensor | None
    budget: dict[str, Estimate]
    groups: GradientGroups

    @property
    def unit(self) -> str:
        """For example "nats per token per η"."""
        return self.groups.unit

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
        """Budget minus total, which is rounding only."""
        parts = (self.budget["momentum"].value, self.budget["decay"].value)
        return sum(parts) + float(self.sequences.sum()) - self.budget["total"].value


@dataclass(frozen=True)
class Influence:
    """Contributions to the changes of entropy and of expected reward.

    Attributes:
        entropy: δH of sequences and tokens.
        reward: δJ of the same, or None without a reward batch.
        U: The update batch.
        scores: s and H of U's tokens at θ, or None where tokens were not requested.
        coefficients: (n, t) c_ik of the step.
        entropy_coefficients: (n, t) d_ik of the step, or None for 0.
        functional: "per_token" or "per_sequence".
        how: The passes that were run, in words.
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
        """(n, t) bool, the tokens with a weight in the step."""
        d = self.entropy_coefficients
        return (self.coefficients != 0) if d is None else (self.coefficients != 0) | (d != 0)

    @property
    def groups(self) -> int:
        """Groups of E's prompts behind the errors; degrees of freedom are one less."""
        return len(self.entropy.by_group)

    @property
    def baseline(self) -> Estimate:
        """δH of momentum and decay, which do not depend on this batch."""
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
        """δH_ik per unit η, ragged: one 1-D tensor per sequence."""
        tokens = self.entropy.tokens
        if tokens is None:
            raise ValueError("Tokens were not attributed: call influence with tokens=True.")
        return self.U.ragged(tokens)

    def to_frame(
        self, of: Literal["sequences", "tokens"] = "sequences", tokenizer: Any = None
    ) -> pd.DataFrame:
        """A table with one row per sequence, or per token.

        Args:
            of: "sequences" or "tokens".
            tokenizer: Decodes each token into the column `text`; None leaves it empty.

        Returns:
            Its rows; delta_h and delta_j per unit η, with errors.

        Raises:
            ValueError: If `of` is anything else, or tokens were not attributed.
        """
        if of not in ("sequences", "tokens"):
            raise ValueError(f"to_frame of {of!r}; choose 'sequences' or 'tokens'.")
        return sequence_table(self) if of == "sequences" else token_table(self, tokenizer)


def sequence_table(influence: Influence) -> pd.DataFrame:
    """One row per sequence of U.

    Args:
        influence: The influences.

    Returns:
        Columns: sequence, prompt, key, group (where prompts have one), length, reward, advantage, S
        and H (nats, sums over the response, where tokens were scored), delta_h and delta_j with _se
        (per unit η), text.
    """
    U = influence.U
    columns: dict[str, Any] = {"sequence": range(len(U)), **columns_of_responses(U)}
    if influence.scores is not None:
        columns["S"] = influence.scores.logprobs.sum(1).tolist()
        columns["H"] = influence.scores.entropies.sum(1).tolist()
    for name, part in _parts(influence):
        columns[name] = part.sequences.tolist()
        columns[f"{name}_se"] = part.sequences_se.tolist()
    return pd.DataFrame(columns | {"text": U.response_texts})


def columns_of_responses(U: Rollouts) -> dict[str, Any]:
    """What is known of each response: prompt, key, group, length, reward and advantage."""
    groups = {"group": U.prompt_groups} if U.prompt_groups else {}
    return {
        "prompt": U.prompt_index.tolist(),
        "key": U.prompt_keys or [None] * len(U),
        **groups,
        "length": U.token_counts.tolist(),
        "reward": _numbers(U.rewards, len(U)),
        "advantage": _numbers(U.advantages, len(U)),
    }


def token_table(influence: Influence, tokenizer: Any = None) -> pd.DataFrame:
    """One row per token of U.

    Args:
        influence: The influences, of tokens.
        tokenizer: Decodes each token, if given.

    Returns:
        Columns: sequence, prompt, position (from 0), length, token_id, s and H (nats), coefficient
        (c_ik), entropy_coefficient (d_ik, where the step has an entropy term), reward, advantage,
        delta_h and delta_j with _se (per unit η), text.

    Raises:
        ValueError: If tokens were not attributed.
    """
    U, scores = influence.U, influence.scores
    if scores is None:
        raise ValueError("Tokens were not attributed: call influence with tokens=True.")
    d = influence.entropy_coefficients
    token = columns_of_tokens(U, tokenizer)
    sequence = torch.tensor(token["sequence"])

    def of_sequence(column: torch.Tensor | None) -> Any:
        return None if column is None else column[sequence].numpy()

    columns: dict[str, Any] = {
        "sequence": token["sequence"],
        "prompt": of_sequence(U.prompt_index),
        "position": token["position"],
        "length": of_sequence(U.token_counts),
        "token_id": token["token_id"],
        "s": scores.logprobs[scores.mask].numpy(),
        "H": scores.entropies[scores.mask].numpy(),
        "coefficient": influence.coefficients[scores.mask].numpy(),
        **({} if d is None else {"entropy_coefficient": d[scores.mask].numpy()}),
        "reward": of_sequence(U.rewards),
        "advantage": of_sequence(U.advantages),
    }
    for name, part in _parts(influence):
        assert part.tokens is not None
        assert part.tokens_se is not None
        columns[name] = part.tokens[scores.mask].numpy()
        columns[f"{name}_se"] = part.tokens_se[scores.mask].numpy()
    return pd.DataFrame(columns | {"text": token["text"]})


def columns_of_tokens(U: Rollouts, tokenizer: Any = None) -> dict[str, Any]:
    """What is known of each drawn token: sequence, position (from 0), token_id and text."""
    sequence, position = U.mask.nonzero(as_tuple=True)
    ids = pad_sequence(U.response_ids, batch_first=True)[U.mask].tolist()
    known = {} if tokenizer is None else {i: tokenizer.decode([i]) for i in {*ids}}
    return {
        "sequence": sequence.tolist(),
        "position": position.tolist(),
        "token_id": ids,
        "text": [known[i] for i in ids] if known else None,
    }


def _parts(influence: Influence) -> list[tuple[str, Attribution]]:
    rewarded = [] if influence.reward is None else [("delta_j", influence.reward)]
    return [("delta_h", influence.entropy), *rewarded]


def _numbers(column: torch.Tensor | None, n: int) -> list[float | None]:
    return [None] * n if column is None else column.tolist()
