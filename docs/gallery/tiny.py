"""A tiny transformer, its batches and the style of figures, for several scripts of the gallery."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
PROMPTS = [[a, b] for a in range(1, 5) for b in range(1, 5)]
HELD_OUT = [[a, b, c] for a, b in PROMPTS for c in range(1, 5)]
plt.rcParams |= {"figure.dpi": 120, "axes.spines.top": False, "axes.spines.right": False}


def tiny_policy(seed: int = 0) -> ise.Policy:
    """A Qwen2 of two layers over five tokens; token 0 ends a response."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=5,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.25,
    )
    return ise.Policy(Qwen2ForCausalLM(config).eval(), eos_token_id=0, pad_token_id=0)


def repeats(batch: ise.Rollouts) -> torch.Tensor:
    """A reward: the share of the first four tokens that repeat the prompt's last one."""
    pairs = zip(batch.response_ids, batch.prompt_index, strict=True)
    return torch.tensor([float((r[:4] == batch.prompt_ids[p][-1]).sum()) / 4 for r, p in pairs])


def update_batch(policy: ise.Policy, n: int, seed: int) -> ise.Rollouts:
    """U: n prompts with eight responses each, rewarded and with advantages."""
    drawn = ise.sample(policy, PROMPTS, n, 8, max_new_tokens=8, seed=seed)
    return ise.with_advantages(ise.with_rewards(drawn, repeats), "dr_grpo")


def evaluation_batch(policy: ise.Policy, n: int, seed: int) -> ise.Rollouts:
    """E: n responses, one to each held-out prompt drawn."""
    return ise.sample(policy, HELD_OUT, n, max_new_tokens=8, seed=seed)


def sgd(policy: ise.Policy, rate: float = 1.0) -> torch.optim.Optimizer:
    """Plain gradient ascent."""
    return torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], lr=rate)
