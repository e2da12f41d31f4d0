"""Influence as tables: a row a token, and a row a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from isentrope.kernel.attribution import Attribution, Influence


def sequence_table(found: Influence) -> pd.DataFrame:
    """One row a sequence of U.

    Args:
        found: The influences.

    Returns:
        Columns: sequence, prompt, key, length, reward, advantage, S and H (nats, sums over the
        response, where tokens were scored), deltaH and deltaJ with _se (per unit η), text.
    """
    U = found.U
    columns: dict[str, Any] = {
        "sequence": range(len(U)),
        "prompt": U.prompt_index.tolist(),
        "key": U.prompt_keys or [None] * len(U),
        "length": U.token_counts.tolist(),
        "reward": _numbers(U.rewards, len(U)),
        "advantage": _numbers(U.advantages, len(U)),
    }
    if found.scores is not None:
        columns["S"] = found.scores.logprobs.sum(1).tolist()
        columns["H"] = found.scores.entropies.sum(1).tolist()
    for name, part in _parts(found):
        columns[name] = part.sequences.tolist()
        columns[f"{name}_se"] = part.sequences_se.tolist()
    columns["text"] = U.response_texts or [None] * len(U)
    return pd.DataFrame(columns)


def token_table(found: Influence, tokenizer: Any = None) -> pd.DataFrame:
    """One row a token of U.

    Args:
        found: The influences, of tokens.
        tokenizer: Decodes each token, if given.

    Returns:
        Columns: sequence, prompt, position (from 0), length, token_id, s and H (nats), coefficient
        (c_ik), entropy_coefficient (d_ik, where the step has an entropy term), reward, advantage,
        deltaH and deltaJ with _se (per unit η), text.

    Raises:
        ValueError: If tokens were not asked for.
    """
    U, scores = found.U, found.scores
    if scores is None:
        raise ValueError("Tokens were not asked for: call influence with tokens=True.")
    sequence, position = scores.mask.nonzero(as_tuple=True)
    ids = pad_sequence(U.response_ids, batch_first=True)[scores.mask]

    def of_sequence(column: torch.Tensor | None) -> Any:
        return None if column is None else column[sequence].numpy()

    columns: dict[str, Any] = {
        "sequence": sequence.numpy(),
        "prompt": of_sequence(U.prompt_index),
        "position": position.numpy(),
        "length": of_sequence(U.token_counts),
        "token_id": ids.numpy(),
        "s": scores.logprobs[scores.mask].numpy(),
        "H": scores.entropies[scores.mask].numpy(),
        "coefficient": found.coefficients[scores.mask].numpy(),
        **_entropy_coefficient(found, scores.mask),
        "reward": of_sequence(U.rewards),
        "advantage": of_sequence(U.advantages),
    }
    for name, part in _parts(found):
        assert part.tokens is not None
        assert part.tokens_se is not None
        columns[name] = part.tokens[scores.mask].numpy()
        columns[f"{name}_se"] = part.tokens_se[scores.mask].numpy()
    text = None
    if tokenizer is not None:
        known = {int(i): tokenizer.decode([int(i)]) for i in ids.unique()}
        text = [known[int(i)] for i in ids]
    columns["text"] = text
    return pd.DataFrame(columns)


def _entropy_coefficient(found: Influence, mask: torch.Tensor) -> dict[str, Any]:
    d = found.entropy_coefficients
    return {} if d is None else {"entropy_coefficient": d[mask].numpy()}


def _parts(found: Influence) -> list[tuple[str, Attribution]]:
    rewarded = [] if found.reward is None else [("deltaJ", found.reward)]
    return [("deltaH", found.entropy), *rewarded]


def _numbers(column: torch.Tensor | None, n: int) -> list[float | None]:
    return [None] * n if column is None else column.tolist()
