"""Update batches of random numbers, as the controls see them."""

import torch

from isentrope.control.base import Tokens

GROUPS, SIZE, LONGEST = 5, 4, 7


def batch(seed=0, *, step=3, columns=False):
    """Five groups of four responses of 1 to 7 tokens; no group has equal rewards."""
    generator = torch.Generator().manual_seed(seed)
    n = GROUPS * SIZE

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, LONGEST + 1, (n,), generator=generator)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    right = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]])
    rewards = right.double().flatten()
    of_group = rewards.view(GROUPS, SIZE).mean(1).repeat_interleave(SIZE)

    def column():
        return (2 * uniform(*mask.shape) - 1) * mask

    return Tokens(
        logprobs=4 * uniform(*mask.shape).log() * mask,
        entropies=2 * uniform(*mask.shape) * mask,
        mask=mask,
        sequence_weights=0.01 + uniform(n),
        advantages=rewards - of_group,
        rewards=rewards,
        group=torch.arange(GROUPS).repeat_interleave(SIZE),
        step=step,
        seed=seed,
        kept_mass=uniform(*mask.shape).clamp(min=0.3) * mask * (column() > -0.2)
        if columns
        else None,
        influence=column() if columns else None,
    )


def places(tokens):
    """(sequence, token, A, s, H, w, c) of every token, as plain numbers, in the batch's order."""
    return [
        (
            *(i, k, float(tokens.advantages[i]), float(tokens.logprobs[i, k])),
            *(float(tokens.entropies[i, k]), float(tokens.sequence_weights[i])),
            float(tokens.sequence_weights[i]) * float(tokens.advantages[i]),
        )
        for i in range(len(tokens.mask))
        for k in range(tokens.mask.shape[1])
        if tokens.mask[i, k]
    ]


def padded(tokens, values):
    """(n, t) of values by (sequence, token), 0 elsewhere."""
    out = torch.zeros(tokens.mask.shape, dtype=torch.float64)
    for place, value in values.items():
        out[place] = value
    return out
