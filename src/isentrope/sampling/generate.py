"""Rollouts of a policy: responses to prompts that are drawn or given, and their texts.

How one response is drawn is in `draw`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.draw import sample_responses
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import PromptLike, as_prompts, require_room
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.progress import ProgressCallback


@refuse_other_types
def sample(
    policy: Policy,
    prompts: Sequence[PromptLike],
    n: int,
    group_size: int = 1,
    *,
    max_new_tokens: int = 150,
    seed: int = 0,
    batch_size: int = 64,
    progress: ProgressCallback | None = None,
) -> Rollouts:
    """Draw n prompts uniformly with replacement, and `group_size` responses to each draw.

    Args:
        policy: The policy.
        prompts: The data set: prompts, texts or token ids.
        n: Number of prompt draws; two draws of one prompt are two groups.
        group_size: Responses per draw.
        max_new_tokens: Longest response in tokens, EOS counted.
        seed: Fixes the prompt draws and every token.
        batch_size: Sequences at a time; changes nothing but speed and memory.
        progress: Called after each batch.

    Returns:
        n * group_size sequences, `prompt_index` 0 .. n-1, with the sampler's log-probabilities,
        and texts where the policy has a tokenizer.

    Raises:
        ValueError: If n, `group_size` or `batch_size` is < 1, the seed is out of range, the data
            set is empty, or a prompt is refused.
    """
    if n < 1:
        raise ValueError(f"A batch needs at least one prompt draw, got n={n} (B_E or B_U).")
    if len(prompts) == 0:
        raise ValueError("The dataset is empty: there is no prompt to draw from.")
    if not 0 <= seed < 2**63:
        raise ValueError(f"A seed is a whole number from 0 to 2**63 - 1, got {seed}.")
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(prompts), (n,), generator=generator)
    chosen = as_prompts(policy, [prompts[int(i)] for i in draws])
    return respond(
        policy,
        chosen,
        group_size,
        generator,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        progress=progress,
    )


def respond(
    policy: Policy,
    prompts: Sequence[Prompt],
    group_size: int,
    generator: torch.Generator,
    *,
    max_new_tokens: int,
    batch_size: int = 64,
    progress: ProgressCallback | None = None,
) -> Rollouts:
    """Draw `group_size` responses to each of these prompts, in order.

    Args:
        policy: The policy.
        prompts: Encoded prompts; each entry is one group.
        group_size: Responses per prompt.
        generator: CPU generator of the uniforms; its state advances.
        max_new_tokens: Longest response in tokens.
        batch_size: Sequences at a time.
        progress: Called after each batch.

    Returns:
        len(prompts) * group_size sequences; `prompt_index` counts the entries of `prompts`.

    Raises:
        ValueError: If `group_size` is < 1 or a prompt does not fit the context.
    """
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}.")
    require_room(policy, prompts, max_new_tokens)
    index = torch.arange(len(prompts)).repeat_interleave(group_size)
    repeated = [prompt for prompt in prompts for _ in range(group_size)]
    ids = [torch.tensor(prompt.token_ids) for prompt in repeated]
    uniforms = torch.rand(len(ids), max_new_tokens, generator=generator, dtype=torch.float64)
    drawn = sample_responses(policy, ids, uniforms, max_new_tokens, batch_size, progress)
    return rollouts_of(policy, repeated, index, **drawn._asdict(), max_new_tokens=max_new_tokens)


def rollouts_of(
    policy: Policy,
    prompts: Sequence[Prompt],
    prompt_index: Tensor,
    response_ids: Sequence[Tensor],
    **columns: Any,
) -> Rollouts:
    """Rollouts with what prompts say of themselves, and with texts.

    Args:
        policy: Gives the tokenizer.
        prompts: The prompt of each response, encoded.
        prompt_index: (n,) draw that each is of.
        response_ids: Token ids of the responses.
        **columns: The other columns of `Rollouts`; texts are decoded where they are not given.

    Returns:
        n sequences.
    """
    references = [prompt.reference for prompt in prompts]
    groups = [prompt.group for prompt in prompts if prompt.group is not None]
    rollouts = Rollouts(
        prompt_ids=[torch.tensor(prompt.token_ids) for prompt in prompts],
        response_ids=list(response_ids),
        prompt_index=prompt_index,
        prompt_keys=[prompt.key for prompt in prompts],
        references=None if all(r is None for r in references) else references,
        prompt_groups=groups or None,
        **columns,
    )
    if "response_texts" in columns:
        return rollouts
    return rollouts.with_columns(response_texts=texts_of(policy, response_ids))


def texts_of(policy: Policy, responses: Sequence[Tensor]) -> list[str] | None:
    """Text of each response without its EOS; other special tokens stay, rewards may need them.

    Args:
        policy: Gives the tokenizer.
        responses: Response token ids, each 1-D.

    Returns:
        n texts, or None if the policy has no tokenizer.
    """
    if policy.tokenizer is None:
        return None
    bodies = [r[:-1] if int(r[-1]) in policy.eos_token_ids else r for r in responses]
    return [policy.tokenizer.decode([int(i) for i in body]) for body in bodies]


def plain_texts(rollouts: Rollouts, policy: Policy | None) -> list[str]:
    """Texts of responses without special tokens, as reward functions of TRL get them.

    Args:
        rollouts: n sequences.
        policy: Gives the tokenizer; without one the rollouts' own texts are taken.

    Returns:
        n texts.
    """
    if policy is None or policy.tokenizer is None:
        return list(rollouts.response_texts or ())
    return policy.tokenizer.batch_decode(rollouts.response_ids, skip_special_tokens=True)
