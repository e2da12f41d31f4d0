"""Rollouts: prompts and the responses of a policy, ragged, with optional columns.

Lists of 1-D tensors, never padded: the code that runs a model pads. A finished response
ends in EOS, and that EOS is a token like any other: it has a log-probability and an entropy.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.nouns.rollout_columns import (
    OF_TOKENS,
    TYPES,
    of_tokens,
    prompt_of_each,
    read_rollout_columns,
    token_ids,
)
from isentrope.nouns.shown_rollouts import ShownRollouts
from isentrope.nouns.vectors import tensor_bytes
from isentrope.system.file_contents import read_schema
from isentrope.system.files import sha256, write_file
from isentrope.system.reading import reading

_OPTIONAL = tuple(TYPES)[3:]
_LENGTH = b"max_new_tokens"
_CURE = "Restore the file, or draw the batch again."


@dataclass(repr=False)
class Rollouts(ShownRollouts):
    """n sequences, on the CPU. All lists are parallel, of length n; plain lists become tensors.

    Attributes:
        prompt_ids: Token ids of each sequence's prompt, 1-D int64. A list of one entry per prompt
            (shorter or longer than n) is expanded by `prompt_index`.
        response_ids: Token ids of each response, 1-D int64, EOS included where it was sampled.
        prompt_index: (n,) int64, which draw of a prompt the sequence belongs to: the group of a
            U-batch, and the independent unit of every standard error. Two draws of the same
            prompt are two units.
        sampler_logprobs: Per-token log-probabilities that the sampler used, nats.
        sampler_entropies: Entropy of the distribution that each token was drawn from, nats.
        rewards: (n,) float64; nan where no reward function applies to the response.
        advantages: (n,) float64.
        prompt_keys: Stable identifiers of the prompts ("gsm8k/train/17"), the same in every run.
        references: Reference answers a task needs for its reward.
        prompt_groups: What results are broken down by: an environment, a turn, a difficulty.
        response_texts: Decoded responses without their EOS; other special tokens stay.
        token_weights: What training multiplied each token's ∂s by in the gradient of its
            objective, −∂loss/∂s, recorded while it ran.
        entropy_weights: The same of each token's ∂H, −∂loss/∂H: of losses with an entropy term.
        response_mask: Per token of a response, True where the policy drew it and False where it
            was inserted (a tool's output, a user's turn). Such tokens are context: they have no
            log-probability, entropy or weight, and do not count in T. None: it drew all of them.
        max_new_tokens: L_max, where the sampler cut responses; one number for all.
    """

    prompt_ids: list[Tensor]
    response_ids: list[Tensor]
    prompt_index: Tensor
    sampler_logprobs: list[Tensor] | None = None
    sampler_entropies: list[Tensor] | None = None
    rewards: Tensor | None = None
    advantages: Tensor | None = None
    prompt_keys: list[str] | None = None
    references: list[str | None] | None = None
    prompt_groups: list[str] | None = None
    response_texts: list[str] | None = None
    token_weights: list[Tensor] | None = None
    entropy_weights: list[Tensor] | None = None
    response_mask: list[Tensor] | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        n = len(self.response_ids)
        if n == 0:
            raise ValueError("Rollouts need at least one response; the list is empty.")
        self.response_ids = [token_ids(r, f"response {i}") for i, r in enumerate(self.response_ids)]
        longest = int(self.lengths.max())
        limit = self.max_new_tokens
        if limit is not None and longest > limit:
            raise ValueError(f"A response has {longest} tokens, more than max_new_tokens={limit}.")
        self.prompt_index = torch.as_tensor(self.prompt_index, dtype=torch.int64, device="cpu")
        if self.prompt_index.shape != (n,):
            raise ValueError(
                f"prompt_index has shape {tuple(self.prompt_index.shape)} for {n} responses."
            )
        self.prompt_ids = prompt_of_each(self.prompt_ids, self.prompt_index)
        for name in _OPTIONAL:
            if (column := getattr(self, name)) is not None and len(column) != n:
                raise ValueError(f"{name} has {len(column)} entries for {n} responses.")
        for name in OF_TOKENS:
            if (column := getattr(self, name)) is not None:
                tensors = of_tokens(name, column, self.response_ids)
                if self.response_mask is not None and name != "response_mask":
                    pairs = zip(tensors, self.response_mask, strict=True)
                    tensors = [x.masked_fill(~drawn, 0) for x, drawn in pairs]
                setattr(self, name, tensors)
        for name in ("rewards", "advantages"):
            if (column := getattr(self, name)) is not None:
                numbers = torch.as_tensor(column, dtype=torch.float64, device="cpu")
                allowed = numbers.isfinite() | (numbers.isnan() & (name == "rewards"))
                if numbers.shape != (n,) or not bool(allowed.all()):
                    raise ValueError(f"{name} must be {n} finite numbers, got {numbers}.")
                setattr(self, name, numbers)

    def __len__(self) -> int:
        return len(self.response_ids)

    @property
    def lengths(self) -> Tensor:
        """(n,) response lengths in tokens, those that the policy did not draw included."""
        return torch.tensor([len(r) for r in self.response_ids])

    @property
    def mask(self) -> Tensor:
        """(n, t) bool, where a response has a token that the policy drew."""
        mask = torch.arange(int(self.lengths.max())) < self.lengths[:, None]
        if self.response_mask is not None:
            mask[mask.clone()] = torch.cat(self.response_mask)
        return mask

    @property
    def token_counts(self) -> Tensor:
        """(n,) T: tokens of each response that the policy drew."""
        return self.mask.sum(1)

    def padded(self, name: str) -> Tensor:
        """A per-token column as one array.

        Args:
            name: The column, which must be there.

        Returns:
            (n, t) float64, 0 where the policy drew no token.
        """
        return pad_sequence(getattr(self, name), batch_first=True)

    def ragged(self, values: Tensor) -> list[Tensor]:
        """The rows of an array (n, t), each as long as its response."""
        return [row[:n] for row, n in zip(values, self.lengths.tolist(), strict=True)]

    @property
    def n_prompts(self) -> int:
        """Number of independent prompt draws."""
        return len(set(self.prompt_index.tolist()))

    def require_fit(self, vocabulary: int, positions: int | None = None) -> None:
        """Refuse sequences that are not of a model.

        Args:
            vocabulary: Entries of its vocabulary.
            positions: Its positions; None if it has no limit.

        Raises:
            ValueError: Naming the first such sequence.
        """
        for i, pair in enumerate(zip(self.prompt_ids, self.response_ids, strict=True)):
            length = sum(map(len, pair))
            top = max(int(ids.max()) for ids in pair)
            if top >= vocabulary:
                raise ValueError(
                    f"Sequence {i} has the token id {top}, and the model's vocabulary has "
                    f"{vocabulary} entries: it was encoded with another tokenizer."
                )
            if positions is not None and length > positions:
                raise ValueError(
                    f"Sequence {i} has {length} tokens, more than the model's {positions} "
                    "positions: it was drawn from another model, or must be left out."
                )

    @property
    def fingerprint(self) -> str:
        """Digest of prompts and responses, token by token: equal for equal sequences in order."""
        pairs = zip(self.prompt_ids, self.response_ids, strict=True)
        tokens = (f"{len(ids)}:".encode() + tensor_bytes(ids) for pair in pairs for ids in pair)
        return sha256(chain(tokens, map(tensor_bytes, self.response_mask or ())))

    def select(self, indices: Sequence[int] | Tensor) -> Rollouts:
        """The sequences at `indices`, in that order.

        Args:
            indices: Positions in 0..n-1.

        Returns:
            New rollouts with the same subset of every column.

        Raises:
            ValueError: If given a mask.
        """
        if (index := torch.as_tensor(indices)).dtype == torch.bool:
            raise ValueError("select takes positions, not a mask: give mask.nonzero()[:, 0].")
        rows = index.tolist()
        picked: dict[str, Any] = {
            name: x[rows] if isinstance(x, Tensor) else [x[i] for i in rows]
            for name, x in self._columns.items()
        }
        return Rollouts(**picked, max_new_tokens=self.max_new_tokens)

    def with_columns(self, **columns: Any) -> Rollouts:
        """A copy in which the named columns are replaced."""
        return replace(self, **columns)

    def save(self, path: str | Path) -> Path:
        """Write one parquet file atomically.

        Args:
            path: Target file.

        Returns:
            The path written.
        """
        written = pa.table(
            {
                name: [x.tolist() if isinstance(x, Tensor) else x for x in column]
                for name, column in self._columns.items()
            }
        )
        if self.max_new_tokens is not None:
            written = written.replace_schema_metadata({_LENGTH: str(self.max_new_tokens)})
        return write_file(Path(path), lambda partial: pq.write_table(written, partial))

    @classmethod
    def load(cls, path: str | Path) -> Rollouts:
        """Read what `save` wrote.

        Args:
            path: A parquet file.

        Returns:
            The rollouts.

        Raises:
            FileError: If a column is missing, unknown, or holds something else than it should.
        """
        columns = read_rollout_columns(path, _CURE)
        with reading(path, _CURE):
            return cls(**columns, max_new_tokens=saved_length(path))

    @property
    def _columns(self) -> dict[str, Any]:
        """The columns that there are."""
        return {name: x for name in TYPES if (x := getattr(self, name)) is not None}


def saved_length(path: str | Path) -> int | None:
    """Where the sampler cut the responses of a parquet file; None where it does not say."""
    with reading(path, _CURE):
        metadata = read_schema(path).metadata or {}
        return int(metadata[_LENGTH]) if _LENGTH in metadata else None


def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
    """Join rollouts; prompt draws of different parts remain different draws.

    A column is kept only if every part has it. Missing entropy weights of a part with token weights
    are 0.

    Args:
        parts: At least one.

    Returns:
        All sequences, with `prompt_index` renumbered.
    """
    joined: dict[str, Any] = {}
    for name in TYPES:
        columns: list[Any] = [getattr(part, name) for part in parts]
        if any(column is not None for column in columns):
            pairs = zip(parts, columns, strict=True)
            columns = [_fill_missing(part, name) if x is None else x for part, x in pairs]
        if not any(column is None for column in columns):
            joined[name] = list(chain.from_iterable(columns))
    draws = [part.prompt_index.unique(return_inverse=True)[1] for part in parts]
    offsets = accumulate((part.n_prompts for part in parts[:-1]), initial=0)
    joined["prompt_index"] = torch.cat([x + k for x, k in zip(draws, offsets, strict=True)])
    limits = {part.max_new_tokens for part in parts}
    return Rollouts(**joined, max_new_tokens=limits.pop() if len(limits) == 1 else None)


def _fill_missing(part: Rollouts, name: str) -> list[Tensor] | None:
    """What a column is where other parts alone have it."""
    if name == "response_mask":
        return [torch.ones_like(x, dtype=torch.bool) for x in part.response_ids]
    if name == "entropy_weights" and part.token_weights is not None:
        return [torch.zeros_like(x) for x in part.token_weights]
    return None
