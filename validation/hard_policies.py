"""Policies on which few responses carry an entropy change: a rare long mode, unequal prompts.

Softmax tables over 4 tokens with responses of up to 6 tokens, so that all 1,093 responses to each
prompt can be enumerated. `rare`: 4.5 % of the responses begin with token 3 and are then long, with
a high entropy; the others are short and nearly certain. `unequal`: the logits of one prompt are
eight times those of another, from 0.05 to 1.2 nats per token.
"""

from __future__ import annotations

from functools import cache

import torch

from isentrope.oracle import ExactPolicy, TabularPolicy, enumerate_policy
from isentrope.policy.language_model import Policy

VOCABULARY, LONGEST, EOS, ENTRY = 4, 6, 0, 3
PROMPTS = [[k] for k in range(VOCABULARY)]
RARE = 0.045
"""Probability of the long mode."""


def rare() -> TabularPolicy:
    """A long mode that is entered with probability `RARE` at the first token."""
    table = TabularPolicy(VOCABULARY, LONGEST, scale=0.7, seed=3)
    prefixes = _prefixes(table)
    entered = torch.tensor([len(p) > 1 and p[1] == ENTRY for p in prefixes])
    with torch.no_grad():
        logits = table.table[1 : len(prefixes) + 1]
        logits[:, EOS] += torch.where(entered, -2.0, 4.0)
        logits[:, 1] += torch.where(entered, 0.0, 2.0)
        for row in logits[:VOCABULARY]:  # of the prompts alone
            rest = torch.cat((row[:ENTRY], row[ENTRY + 1 :])).logsumexp(0)
            row[ENTRY] = rest + torch.tensor(RARE / (1 - RARE)).log()
    return table


def unequal() -> TabularPolicy:
    """Prompts whose logits are multiplied by 1, 2, 4 and 8."""
    table = TabularPolicy(VOCABULARY, LONGEST, scale=0.7, seed=4)
    prompt = torch.tensor([p[0] for p in _prefixes(table)])
    with torch.no_grad():
        table.table[1:] *= 2.0 ** prompt[:, None]
    return table


def _prefixes(table: TabularPolicy) -> list[tuple[int, ...]]:
    """Prompt and tokens of every row of the table but the first: its digits in base v + 1."""
    found, base = [], VOCABULARY + 1
    for number in range(1, len(table.table)):
        digits = []
        while number:
            digits.append(number % base - 1)
            number //= base
        found.append(tuple(reversed(digits)))
    return found


HARD = {"rare": rare, "unequal": unequal}


def policy(name: str) -> Policy:
    """A hard policy, in float64."""
    return Policy(HARD[name](), eos_token_id=EOS, pad_token_id=EOS)


@cache
def exact(name: str) -> ExactPolicy:
    """A hard policy with all its responses."""
    return enumerate_policy(policy(name), PROMPTS, LONGEST)
