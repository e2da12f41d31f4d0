"""The contents of an attribution (T6): contributions by group, sums, errors, budget and tables."""

from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.estimators.options import EstimatorOptions
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.shown_rollouts import RESPONSES_SHOWN, cell_text
from isentrope.policy.token_statistics import Scores
from isentrope.system.figures import figure_of
from isentrope.system.formatting import TERMINAL
from isentrope.system.html_table import html_table
from isentrope.system.one_line import changed_fields, one_line, plural


@dataclass(frozen=True)
class InfluenceOptions(EstimatorOptions):
    """Of which entropy an influence is, and with what errors.

    Attributes:
        groups: Groups of prompts for errors and reliability; 1 for values alone; None for
            `default_groups`.
        overlap: How to treat a sequence of U that is also in E: an error ("refuse"), chance
            ("independent": E was drawn afresh), or the same batch ("u_statistic").
        gradients: How the gradients of sequences are computed and held.
    """

    groups: int | None = None
    overlap: Literal["refuse", "independent", "u_statistic"] = "refuse"
    gradients: GradientOptions = GradientOptions()

    def __repr__(self) -> str:
        return one_line(self, *changed_fields(self))


@dataclass(frozen=True)
class Attribution:
    """The effect of each sequence and token of U on one quantity, per unit η.

    Attributes:
        by_group: (G, n) by group of the batch that the quantity is measured on; sums over G.
        by_group_and_token: (G, n, t), or None where tokens were not requested.
        budget: "momentum", "decay", "gradient" and "total", with errors.
        groups: The gradient that was used.
        rounding: The largest `closure` that rounding explains.
    """

    by_group: Tensor
    by_group_and_token: Tensor | None
    budget: dict[str, Estimate]
    groups: GradientGroups
    rounding: float

    def __repr__(self) -> str:
        responses = plural(self.by_group.shape[1], "response")
        return one_line(self, f"of {responses}", f"total {self.budget['total']}")

    @property
    def unit(self) -> str:
        """For example "nats per token per η"."""
        return self.groups.unit

    @property
    def sequences(self) -> Tensor:
        """(n,) of each sequence."""
        return self.by_group.sum(0)

    @property
    def tokens(self) -> Tensor | None:
        """(n, t) of each token, 0 where there is none."""
        return None if self.by_group_and_token is None else self.by_group_and_token.sum(0)

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
        acting: (n, t) bool, the tokens with a weight in the step.
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
    acting: Tensor
    how: str
    reliability: dict[str, Estimate]
    listed_share: dict[str, float]

    def __repr__(self) -> str:
        size = plural(len(self.U), "response")
        kinds = "sequences" if self.scores is None else "sequences and tokens"
        reward = [] if self.reward is None else [f"δJ₁ {self.reward.budget['total']}"]
        return one_line(self, f"of {size}, by {kinds}", f"δH₁ {self.total}", *reward)

    def _repr_html_(self) -> str:
        """The change and the responses that move it most, for a notebook; texts are escaped."""
        table = self.to_frame()
        top = table.loc[table["delta_h"].abs().nlargest(RESPONSES_SHOWN).index]
        numbers = [
            TERMINAL.with_error(*pair)
            for pair in zip(top["delta_h"], top["delta_h_se"], strict=True)
        ]
        texts = [cell_text(text) for text in top["text"]]
        columns = [map(str, top["sequence"]), map(str, top["prompt"]), numbers, texts]
        titles = ["response", "prompt", f"δH ± se ({self.entropy.unit})", "text"]
        sentence = f"First order δH₁ {self.total}; the responses that move it most:"
        return html_table([sentence], titles, [*zip(*columns, strict=True)])

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

    def plot(self) -> Any:
        """The report's figure of the classes of tokens, or of sequences without tokens.

        Returns:
            A matplotlib figure.

        Raises:
            ValueError: If nothing acts in the step.
        """
        return figure_of(self)

    def to_frame(
        self, of: Literal["sequences", "tokens"] = "sequences", tokenizer: Any = None
    ) -> pd.DataFrame:
        """A table with one row per sequence, or per token.

        Args:
            of: "sequences" or "tokens".
            tokenizer: Decodes each token into the column `text`, which None leaves empty, and of
                sequences the prompt into `prompt_text`, which None leaves out.

        Returns:
            Columns: sequence, prompt, length, reward, advantage; of sequences key, group (where
            prompts have one), S and H (nats, sums over the response, where tokens were scored); of
            tokens position (from 0), token_id, s and H (nats), coefficient (c_ik),
            entropy_coefficient (d_ik, where the step has an entropy term); then delta_h and delta_j
            with _se (per unit η), and text.

        Raises:
            ValueError: If `of` is anything else, or tokens were not attributed.
        """
        if of not in ("sequences", "tokens"):
            raise ValueError(f"to_frame of {of!r}; choose 'sequences' or 'tokens'.")
        columns = self._of_tokens(tokenizer) if of == "tokens" else self._of_sequences(tokenizer)
        text = columns.pop("text")
        mask = self.U.mask
        for name, part in {"delta_h": self.entropy, "delta_j": self.reward}.items():
            if part is not None:
                table = part.by_group if of == "sequences" else part.by_group_and_token
                assert table is not None
                parts = table if of == "sequences" else table[:, mask]
                columns[name] = parts.sum(0).numpy()
                columns[f"{name}_se"] = part.groups.standard_error(parts).numpy()
        return pd.DataFrame(columns | {"text": text})

    def _of_sequences(self, tokenizer: Any) -> dict[str, Any]:
        U = self.U
        scores = self.scores
        columns: dict[str, Any] = {"sequence": range(len(U)), **columns_of_responses(U)}
        if scores is not None:
            columns["S"] = scores.logprobs.sum(1).numpy()
            columns["H"] = scores.entropies.sum(1).numpy()
        if tokenizer is not None:
            prompts = dict(zip(U.prompt_index.tolist(), U.prompt_ids, strict=True))
            texts = {draw: tokenizer.decode(ids) for draw, ids in prompts.items()}
            columns["prompt_text"] = [texts[draw] for draw in columns["prompt"]]
        return columns | {"text": U.response_texts}

    def _of_tokens(self, tokenizer: Any) -> dict[str, Any]:
        U = self.U
        scores = self.scores
        if scores is None:
            raise ValueError("Tokens were not attributed: call influence with tokens=True.")
        token = columns_of_tokens(U, tokenizer)
        mask = scores.mask
        sequence = torch.tensor(token["sequence"])
        d = self.entropy_coefficients

        def of_sequence(column: Tensor | None) -> Any:
            return None if column is None else column[sequence].numpy()

        return {
            "sequence": token["sequence"],
            "prompt": of_sequence(U.prompt_index),
            "position": token["position"],
            "length": of_sequence(U.token_counts),
            "token_id": token["token_id"],
            "s": scores.logprobs[mask].numpy(),
            "H": scores.entropies[mask].numpy(),
            "coefficient": self.coefficients[mask].numpy(),
            **({} if d is None else {"entropy_coefficient": d[mask].numpy()}),
            "reward": of_sequence(U.rewards),
            "advantage": of_sequence(U.advantages),
            "text": token["text"],
        }


def columns_of_responses(U: Rollouts) -> dict[str, Any]:
    """What is known of each response: prompt, key, group, length, reward and advantage."""
    unknown = [None] * len(U)
    rewards = U.rewards
    advantages = U.advantages
    return {
        "prompt": U.prompt_index.tolist(),
        "key": U.prompt_keys or unknown,
        **({"group": U.prompt_groups} if U.prompt_groups else {}),
        "length": U.token_counts.tolist(),
        "reward": unknown if rewards is None else rewards.tolist(),
        "advantage": unknown if advantages is None else advantages.tolist(),
    }


def columns_of_tokens(U: Rollouts, tokenizer: Any = None) -> dict[str, Any]:
    """What is known of each drawn token: sequence, position (from 0), token_id and text."""
    sequence, position = U.mask.nonzero(as_tuple=True)
    ids = pad_sequence(U.response_ids, batch_first=True)[U.mask].tolist()
    texts = {} if tokenizer is None else {i: tokenizer.decode([i]) for i in {*ids}}
    return {
        "sequence": sequence.tolist(),
        "position": position.tolist(),
        "token_id": ids,
        "text": [texts[i] for i in ids] if texts else None,
    }
