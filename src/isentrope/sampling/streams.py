"""Random numbers that depend on a few integers only: equal on every process and after resuming.

The integers are a seed, a step and one that distinguishes the use.
"""

import numpy as np
import torch


def generator_of(*numbers: int) -> torch.Generator:
    """A CPU generator that these integers fix.

    Args:
        *numbers: 0 or more each.

    Returns:
        A new generator.
    """
    state = np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def seed_of_repeat(seed: int, repeat: int) -> int:
    """The seed of another draw of everything that a seed fixes.

    Args:
        seed: 0 or more.
        repeat: Which draw.

    Returns:
        The seed itself for 0; else one of 32 bits.
    """
    if repeat == 0:
        return seed
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])
