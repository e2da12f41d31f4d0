"""Scores of responses of any length: long sequences are read in segments, with a key-value cache.

Attention over a whole sequence of l tokens holds l² numbers per head, 8 GiB at 32 thousand tokens
in float64. A segment of c tokens after a cache of the tokens before it holds c · l. The numbers are
those of `policy.scoring.score` up to rounding; there are no derivatives, which evaluation does not
need.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.models.architecture import decoder_of
from isentrope.models.batching import MicroBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect
from isentrope.policy.token_statistics import Scores, token_statistics

AT_ONCE = 4096
"""Longest sequence, prompt and response, that is read at once."""

SEGMENT = 256
"""Tokens of a segment."""


def score_any_length(policy: Policy, rollouts: Rollouts) -> Scores:
    """Score every response under the policy."""

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        if batch.input_ids.shape[1] <= AT_ONCE:
            return policy.packed_scores(batch)
        return _in_segments(policy, batch)

    with torch.no_grad():
        return collect(policy, rollouts, packed)[0]


def _in_segments(policy: Policy, batch: MicroBatch) -> tuple[Tensor, ...]:
    policy.require_no_dropout()
    decoder, cache, parts = decoder_of(policy.causal_lm), None, []
    with policy.precision.active():
        for ids in batch.input_ids.split(SEGMENT, dim=1):
            out = decoder(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out[0])
        return token_statistics(
            torch.cat(parts, 1)[batch.rows, batch.columns],
            policy.head,
            batch.targets,
            temperature=policy.temperature,
            vocab_chunk=policy.vocab_chunk,
            dtype=policy.precision.entropy,
        )
