"""Random numbers that depend on a few integers only: equal on every process and after resuming.

The integers are a seed, a step and one that distinguishes the use.
"""

import numpy as np
import torch
from torch import Tensor


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


def draw_plan(
    generator: torch.Generator, prompts: int, size: int, max_new_tokens: int
) -> tuple[Tensor, Tensor]:
    """Prompts of a batch, drawn with replacement, and the uniforms of its responses.

    Args:
        generator: Its state advances.
        prompts: Number of prompts.
        size: Responses, one per prompt drawn.
        max_new_tokens: Longest response in tokens.

    Returns:
        (size,) indices of prompts, and (size, max_new_tokens) float64 uniforms.
    """
    draws = torch.randint(prompts, (size,), generator=generator)
    shape = (size, max_new_tokens)
    return draws, torch.rand(*shape, generator=generator, dtype=torch.float64)
