"""The toy policy: a Qwen2 of 0.79 million parameters over a character vocabulary.

It can be fine-tuned and trained by reinforcement on one CPU thread in two minutes. It is an
ordinary transformers model: it is saved, loaded, adapted and scored like any other.
"""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import (
    EOS_ID,
    PAD_ID,
    character_tokenizer,
    longest_response,
)

MAX_NEW_TOKENS = longest_response(2)
"""Longest response of the toy task, and the constant length L of its Dr. GRPO loss."""


def build_toy_policy(seed: int) -> Policy:
    """Create the toy policy with random weights.

    Args:
        seed: Seed of the weights; the global random state does not change.

    Returns:
        A float32 policy, all parameters trainable, at temperature 1.
    """
    tokenizer = character_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        initializer_range=0.06,  # with 0.02 learning starts after about 100 steps
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float().eval()
    return Policy(model, tokenizer, precision="float32")
