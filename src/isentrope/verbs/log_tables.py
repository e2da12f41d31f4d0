"""Tables of sequences and tokens, and raw tensors, for the log of a measurement."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import NotFiniteError, Scores
from isentrope.verbs.measurement import Measurement

BatchScores = tuple[Rollouts, tuple[Scores, ...]]
"""Rollouts with their scores at θ, and the derivatives along v that are known."""


def log_weights(policy: Policy, measurement: Measurement) -> Tensor:
    """Log-weight of each sequence of E at the rate of interest, by one more evaluation.

    Args:
        policy: The policy at θ.
        measurement: What was found.

    Returns:
        (n,) S(θ + ηv) − S(sampler), nats; NaN where the moved policy cannot be scored.
    """
    rate, E = measurement.rate, measurement.batches.E
    try:
        moved = score(policy, E, policy.parameters_along(measurement.step.direction, rate))
    except NotFiniteError:
        return torch.full((len(E),), torch.nan, dtype=torch.float64)
    return (moved.logprobs - measurement.change.sample.sampler_logprobs).sum(1)


def sequence_table(
    policy: Policy,
    batches: dict[str, BatchScores],
    weights: dict[str, Tensor],
) -> pd.DataFrame:
    """One row per sequence.

    Args:
        policy: Decodes prompts.
        batches: Rollouts, and their scores with the derivatives along v that are known.
        weights: For E the log-weight at the rate of interest, for U its first token's in ∂J.

    Returns:
        Columns batch, sequence, prompt_index, prompt_key, prompt, response, length, logprob,
        entropy (summed, nats), logprob_slope (∂_v S), reward, advantage, log_weight,
        objective_weight.
    """
    parts = []
    for name, (rollouts, series) in batches.items():
        n = len(rollouts)
        column = {"E": "log_weight", "U": "objective_weight"}[name]
        parts.append(
            pd.DataFrame(
                {
                    "batch": [name] * n,
                    "sequence": range(n),
                    "prompt_index": rollouts.prompt_index.tolist(),
                    "prompt_key": rollouts.prompt_keys or [None] * n,
                    "prompt": _prompt_texts(policy, rollouts),
                    "response": rollouts.response_texts or [None] * n,
                    "length": rollouts.lengths.tolist(),
                    "logprob": series[0].logprobs.sum(1).tolist(),
                    "entropy": series[0].entropies.sum(1).tolist(),
                    "logprob_slope": _slopes(series),
                    "reward": listed(rollouts.rewards),
                    "advantage": listed(rollouts.advantages),
                    column: weights[name].tolist(),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _slopes(series: tuple[Scores, ...]) -> list[float] | None:
    return series[1].logprobs.sum(1).tolist() if len(series) > 1 else None


def _prompt_texts(policy: Policy, rollouts: Rollouts) -> list[str] | None:
    if policy.tokenizer is None:
        return None
    return [policy.tokenizer.decode(ids.tolist()) for ids in rollouts.prompt_ids]


def token_table(policy: Policy, batches: dict[str, BatchScores]) -> pd.DataFrame:
    """One row per token.

    Args:
        policy: Decodes tokens.
        batches: Rollouts, and their scores with the derivatives along v that are known.

    Returns:
        Columns batch, sequence, position, token_id, token, logprob, entropy, sampler_logprob,
        logprob_slope and entropy_slope (∂_v, of E).
    """
    parts = []
    for name, (rollouts, series) in batches.items():
        mask = series[0].mask
        sequence, position = mask.nonzero(as_tuple=True)
        ids = pad_sequence(rollouts.response_ids, batch_first=True)[mask].tolist()
        kept = rollouts.sampler_logprobs and rollouts.padded("sampler_logprobs")[mask].tolist()
        scores = series[0]
        slopes = series[1] if len(series) > 1 else None
        parts.append(
            pd.DataFrame(
                {
                    "batch": [name] * len(ids),
                    "sequence": sequence.tolist(),
                    "position": position.tolist(),
                    "token_id": ids,
                    "token": [policy.tokenizer.decode([i]) for i in ids]
                    if policy.tokenizer
                    else None,
                    "logprob": scores.logprobs[mask].tolist(),
                    "entropy": scores.entropies[mask].tolist(),
                    "sampler_logprob": kept,
                    "logprob_slope": slopes.logprobs[mask].tolist() if slopes else None,
                    "entropy_slope": slopes.entropies[mask].tolist() if slopes else None,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def raw_tensors(measurement: Measurement) -> dict[str, Tensor]:
    """The step and the scores of E as named tensors.

    Args:
        measurement: What was found.

    Returns:
        "direction.<parameter>", "preconditioner.…", "momentum.…", "decay.…", "gradient.…", and
        "E.logprobs", "E.entropies" and their derivatives along v as "E.d1_…", "E.d2_…".
    """
    vectors = {
        "direction": measurement.step.direction,
        "preconditioner": measurement.step.preconditioner,
        **measurement.step.components,
    }
    tensors = {
        f"{kind}.{name}": tensor.detach().cpu().contiguous().clone()
        for kind, vector in vectors.items()
        for name, tensor in vector.items()
    }
    for order, scores in enumerate(measurement.change.sample.series):
        prefix = f"E.d{order}_" if order else "E."
        tensors[f"{prefix}logprobs"] = scores.logprobs.clone()
        tensors[f"{prefix}entropies"] = scores.entropies.clone()
    return tensors


def listed(values: Tensor | None) -> list[float] | None:
    """The values; None without any."""
    return None if values is None else values.tolist()
