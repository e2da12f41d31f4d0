"""The responses of an evaluation: prompts, samples, and the table that metrics are computed from.

Sampled responses are drawn at the policy's temperature; greedy ones are the limit T → 0 of the same
sampler. Every (prompt, response, position) has its own uniform number, in the order of the prompts
and fixed by the seed alone. So a response does not depend on its batch, and two checkpoints with
the same settings are coupled (common random numbers).
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from isentrope.evaluation.options import require_subset
from isentrope.nouns.choices import Decoding
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.at_temperature import at_temperature
from isentrope.policy.language_model import Policy
from isentrope.policy.token_statistics import Scores
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.generate import respond
from isentrope.sampling.prompt import Prompt, name_prompts
from isentrope.sampling.prompts import PromptLike, as_prompts
from isentrope.sampling.tasks.task import FormattedTask, ReadsAnswers, Task

TOKENS = ("response_ids", "logprobs", "entropies")
"""Columns that hold a list per response, one entry per token."""


def make_records(
    policy: Policy,
    rollouts: Rollouts,
    task: Task,
    scores: Scores | None = None,
    *,
    right_above: float = 0.5,
) -> pd.DataFrame:
    """Reward responses and collect them, with their scores, in a table.

    Args:
        policy: Its tokens end responses; its tokenizer, if any, makes the texts of prompts.
        rollouts: n responses with texts.
        task: Rewards them; also judges their format, if it is a `FormattedTask`.
        scores: Scores of the same responses; None where no metric needs them.
        right_above: A response is correct if its reward is above this.

    Returns:
        Columns: prompt (number of the prompt draw), sample, key, reference, group (where prompts
        have one), prompt_text, text, length (tokens, EOS counted), truncated (no EOS), reward,
        right, format (None where the task has none), unread (of a task that reads answers: whether
        none could be read), entropy and surprisal (Σ H_k and −Σ s_k, nats), and `TOKENS`.
    """
    rollouts = with_rewards(rollouts, task, policy)
    assert rollouts.rewards is not None
    n = len(rollouts)
    texts = rollouts.response_texts or []
    prompt = pd.Series(rollouts.prompt_index.tolist())
    decode = None if policy.tokenizer is None else policy.tokenizer.decode
    reward_format = task.format_reward if isinstance(task, FormattedTask) else None
    columns: dict[str, Any] = {
        "prompt": prompt,
        "sample": prompt.groupby(prompt).cumcount(),
        "key": rollouts.prompt_keys or [None] * n,
        "reference": rollouts.references or [None] * n,
        "prompt_text": [decode(p.tolist()) if decode else None for p in rollouts.prompt_ids],
        "text": texts,
        "length": rollouts.lengths.tolist(),
        "truncated": [int(r[-1]) not in policy.eos_token_ids for r in rollouts.response_ids],
        "reward": rollouts.rewards.tolist(),
        "right": (rollouts.rewards > right_above).tolist(),
        "format": pd.array(
            [reward_format(text) if reward_format else None for text in texts], dtype="Float64"
        ),
        "response_ids": [r.numpy() for r in rollouts.response_ids],
    }
    if isinstance(task, ReadsAnswers):
        columns["unread"] = [not task.readable(text) for text in texts]
    if rollouts.prompt_groups:
        columns["group"] = rollouts.prompt_groups
    if scores is not None:
        logprobs, entropies = (
            [row[:length].numpy() for row, length in zip(padded, columns["length"], strict=True)]
            for padded in (scores.logprobs, scores.entropies)
        )
        # summed over its own tokens: a sum that padding cannot change
        columns["entropy"] = [float(h.sum()) for h in entropies]
        columns["surprisal"] = [-float(s.sum()) for s in logprobs]
        columns |= {"logprobs": logprobs, "entropies": entropies}
    return pd.DataFrame(columns)


GREEDY_TEMPERATURE = 1e-30
"""A temperature at which all but the likeliest token have probability zero."""


def choose_prompts(
    prompts: Sequence[PromptLike], n: int | None, seed: int, *, policy: Policy
) -> list[Prompt]:
    """Choose and encode the prompts of an evaluation.

    Args:
        prompts: The data set.
        n: Size of a random subset, without replacement; None for all, in their order.
        seed: Fixes the subset.
        policy: Encodes them.

    Returns:
        The prompts, a subset in the order of the data set.

    Raises:
        ValueError: If n is below 1 or above the number of prompts.
    """
    named_prompts = name_prompts(prompts)
    require_subset(n, len(named_prompts))
    if n is not None:
        generator = torch.Generator().manual_seed(seed)
        subset = torch.randperm(len(named_prompts), generator=generator)[:n].sort().values
        named_prompts = [named_prompts[i] for i in subset.tolist()]
    return as_prompts(policy, named_prompts)


def random_numbers(seed: int) -> torch.Generator:
    """The stream, on the CPU, of uniform numbers that all responses are read from, in order."""
    return torch.Generator().manual_seed(seed + 1)  # the seed itself chooses the prompts


def skip_random_numbers(generator: torch.Generator, responses: int, max_new_tokens: int) -> None:
    """Advance the stream past responses that are drawn elsewhere."""
    for _ in range(responses):
        torch.rand(max_new_tokens, generator=generator, dtype=torch.float64)


def draw_responses(
    policy: Policy,
    prompts: Sequence[Prompt],
    samples_per_prompt: int,
    generator: torch.Generator,
    *,
    decoding: Decoding = "sampled",
    max_new_tokens: int,
    batch_size: int = 64,
) -> Rollouts:
    """Answer each of these prompts, in order.

    Args:
        policy: The policy.
        prompts: Encoded prompts.
        samples_per_prompt: Responses to each.
        generator: The stream, at the first of these prompts; its state advances.
        decoding: "sampled" or "greedy"; where two tokens are exactly as likely, the stream decides
            between them for greedy responses too.
        max_new_tokens: Longest response in tokens.
        batch_size: Sequences at a time; changes nothing but speed and memory.

    Returns:
        The responses; greedy ones without the sampler's log-probabilities.
    """
    sampled = decoding == "sampled"
    with at_temperature(policy, policy.temperature if sampled else GREEDY_TEMPERATURE):
        rollouts = respond(
            policy,
            prompts,
            samples_per_prompt,
            generator,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
        )
    return rollouts if sampled else rollouts.with_columns(sampler_logprobs=None)
