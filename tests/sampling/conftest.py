"""A tiny policy with sharp, uneven distributions, and prompts of unequal length."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope import Policy
from tests.cases import built_once

PROMPTS = [[3, 4], [5], [2, 3, 4, 5, 6, 7, 8], [9, 9, 9]]


@built_once
def tiny_policy(precision="float64", eos_token_id=1, pad_token_id=0, tokenizer=None, **config):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 12}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    model = Qwen2ForCausalLM(Qwen2Config(**(sizes | heads | config))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)
    return Policy(
        model,
        tokenizer,
        precision=precision,
        temperature=0.8,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()
