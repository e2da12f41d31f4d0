"""Policies on which few responses carry an entropy change: a rare long mode, unequal prompts.

Softmax tables over 4 tokens with responses of up to 6 tokens, so that all 1,093 responses to each
prompt can be enumerated. `rare`: 4.5 % of the responses begin with token 3 and are then long, with
a high entropy; the others are short and nearly certain. `unequal`: the logits of one prompt are
eight times those of another, from 0.05 to 1.2 nats per token.
"""

from __future__ import annotations

import torch

from isentrope.oracle import TabularPolicy
from isentrope.policy.language_model import Policy

VOCABULARY, LONGEST, EOS, ENTRY = 4, 6, 0, 3
PROMPTS = [[k] for k in range(VOCABULARY)]
RARE = 0.045
"""Probability of the long mode."""


def rare() -> TabularPolicy:
    """A long mode that is entered with probability `RARE` at the first token."""
    table = TabularPolicy(VOCABULARY, LONGEST, scale=0.7, seed=3)
    base = VOCABULARY + 1
    numbers = torch.arange(1, len(table.table))
    first, tokens = numbers.clone(), torch.zeros_like(numbers)
    for _ in range(LONGEST):  # the second digit from the left is the first token of the response
        more = first >= base * base
        first = torch.where(more, first // base, first)
        tokens += (first >= base).long() * 0
    entered = (first >= base) & (first % base == ENTRY + 1)
    with torch.no_grad():
        logits = table.table
        logits[1:, EOS] += torch.where(entered, -2.0, 4.0)
        logits[1:, 1] += torch.where(entered, 0.0, 2.0)
        for prompt in range(VOCABULARY):
            row = logits[prompt + 1]
            rest = torch.cat((row[:ENTRY], row[ENTRY + 1 :])).logsumexp(0)
            row[ENTRY] = rest + torch.tensor(RARE / (1 - RARE)).log()
    return table


def unequal() -> TabularPolicy:
    """Prompts whose logits are multiplied by 1, 2, 4 and 8."""
    table = TabularPolicy(VOCABULARY, LONGEST, scale=0.7, seed=4)
    base = VOCABULARY + 1
    prompt = torch.arange(1, len(table.table))
    for _ in range(LONGEST):
        prompt = torch.where(prompt >= base, prompt // base, prompt)
    with torch.no_grad():
        table.table[1:] *= 2.0 ** (prompt - 1)[:, None]
    return table


HARD = {"rare": rare, "unequal": unequal}


def policy(name: str) -> Policy:
    """A hard policy, in float64."""
    return Policy(HARD[name](), eos_token_id=EOS, pad_token_id=EOS)
