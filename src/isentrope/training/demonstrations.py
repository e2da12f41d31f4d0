"""Demonstrations, prompts with a target response, as token ids.

    input_ids = prompt + response + EOS,     labels = −100 on the prompt, the token elsewhere

Prompts and responses are tokenised as in sampling, without a template between them.
"""

from collections.abc import Sequence

import torch

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import as_prompts

IGNORED = -100
"""Label of a token without loss."""


def demonstration_rollouts(policy: Policy, demonstrations: list[tuple[Prompt, str]]) -> Rollouts:
    """Encode demonstrations as rollouts, EOS appended.

    Args:
        policy: Provides the tokenizer and EOS.
        demonstrations: (prompt, response text) pairs.

    Returns:
        One sequence per demonstration.
    """
    prompts = as_prompts(policy, [prompt for prompt, _ in demonstrations])
    responses = encode_texts(
        policy,
        [text for _, text in demonstrations],
        [f"The response of prompt {prompt.key!r}" for prompt in prompts],
    )
    return Rollouts(
        prompt_ids=[torch.tensor(prompt.token_ids) for prompt in prompts],
        response_ids=[torch.tensor([*ids, policy.eos_token_id]) for ids in responses],
        prompt_index=torch.arange(len(prompts)),
    )


def encode_demonstrations(
    policy: Policy, demonstrations: Sequence[tuple[Prompt, str]], max_length: int | None = None
) -> dict[str, list[list[int]]]:
    """Demonstrations as token ids, with labels on the response and its EOS only.

    Args:
        policy: Provides tokenizer, EOS and context length.
        demonstrations: (prompt, response text) pairs, at least one.
        max_length: Longest prompt and response together, in tokens; None for the model's context.

    Returns:
        Columns `input_ids` and `labels`, one row per demonstration, in the same order.

    Raises:
        ValueError: If there is no demonstration, one is too long, or the policy has no EOS.
    """
    if not demonstrations:
        raise ValueError("There are no demonstrations to learn from.")
    if policy.eos_token_id is None:
        raise ValueError(
            "The model has no token that ends a response, so it could not learn to stop: set "
            "eos_token in its tokenizer_config.json."
        )
    limits = (max_length, "fine_tuning.max_length"), (policy.context, "positions of the model")
    rollouts = demonstration_rollouts(policy, list(demonstrations))
    rows: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for (prompt, _), prompt_ids, response_ids in zip(
        demonstrations, rollouts.prompt_ids, rollouts.response_ids, strict=True
    ):
        rows["input_ids"].append(prompt_ids.tolist() + response_ids.tolist())
        rows["labels"].append([IGNORED] * len(prompt_ids) + response_ids.tolist())
        length = len(prompt_ids) + len(response_ids)
        for limit, name in limits:
            if limit is not None and length > limit:
                raise ValueError(
                    f"The demonstration of prompt {prompt.key!r} has {length} tokens, including "
                    f"EOS, which is more than the {limit} {name}: nothing is truncated, so remove "
                    f"it from the data set, or raise fine_tuning.max_length if that is the limit."
                )
    return rows
