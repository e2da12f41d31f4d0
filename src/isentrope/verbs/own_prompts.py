"""Prompts of the library's own, for checks that need responses and no data set."""

from collections.abc import Sequence

import torch

from isentrope.policy.language_model import Policy
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import PromptLike, as_prompts

PLAIN_QUESTIONS = [
    f"{question} {subject}?"
    for question in ("What is", "Who made", "How would you explain", "Why do people need")
    for subject in (
        "a bridge",
        "the moon",
        "a number",
        "rain",
        "a map",
        "music",
        "a clock",
        "glass",
    )
]

RANDOM_TOKENS = 8
"""Tokens of a random prompt, where the model has so many positions."""


def own_prompts(policy: Policy, max_new_tokens: int) -> tuple[list[Prompt], int]:
    """Questions that the tokenizer can encode, as conversations where it has a chat template.

    Questions that take more than half of the model's positions become random token ids, as they do
    where the tokenizer loses letters of them or there is none.

    Args:
        policy: Gives tokenizer, vocabulary and positions.
        max_new_tokens: Longest response, tokens.

    Returns:
        Encoded prompts, and the longest response for which the model has positions beside them.
    """
    context = policy.context
    prompts = as_prompts(policy, _list_questions(policy) or _draw_ids(policy, RANDOM_TOKENS))
    if context is None:
        return prompts, max_new_tokens
    if max(_count_tokens(prompts)) > context // 2:
        length = min(RANDOM_TOKENS, max(1, context // 2))
        prompts = as_prompts(policy, _draw_ids(policy, length))
    return prompts, min(max_new_tokens, context - max(_count_tokens(prompts)))


def _count_tokens(prompts: Sequence[Prompt]) -> list[int]:
    return [len(prompt.token_ids or ()) for prompt in prompts]


def _list_questions(policy: Policy) -> Sequence[PromptLike]:
    """The questions; none where the tokenizer does not give them back, or is not there."""
    tokenizer = policy.tokenizer
    if tokenizer is None:
        return []
    (ids,) = encode_texts(policy, PLAIN_QUESTIONS[:1], ["The first question"])
    if tokenizer.decode(ids) != PLAIN_QUESTIONS[0]:
        return []
    if not getattr(tokenizer, "chat_template", None):
        return PLAIN_QUESTIONS
    return [[{"role": "user", "content": question}] for question in PLAIN_QUESTIONS]


def _draw_ids(policy: Policy, length: int) -> Sequence[PromptLike]:
    """As many prompts of random tokens, none of them special."""
    listed = getattr(policy.tokenizer, "all_special_ids", ())
    special = {policy.eos_token_id, policy.pad_token_id, *listed}
    plain = torch.tensor([i for i in range(policy.vocabulary) if i not in special])
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(plain), (len(PLAIN_QUESTIONS), length), generator=generator)
    return plain[places].tolist()
