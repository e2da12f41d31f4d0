"""A tiny policy, batches for it, and the plain training step that a direction must replay."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope import Policy, Rollouts
from isentrope.nouns.vectors import axpy, norm
from tests.cases import built_once

MAX_LENGTH = 7


@built_once
def build_policy(adaptation="lora", seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = Qwen2ForCausalLM(config)
    if adaptation == "lora":
        lora = LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, lora)
    return Policy(
        model.eval(), precision="float64", eos_token_id=1, pad_token_id=0, temperature=0.8
    )


def build_batch(seed=0, n=6):
    generator = torch.Generator().manual_seed(seed)

    def ids(length):
        return torch.randint(2, 12, (length,), generator=generator)

    prompts = [ids(3), ids(5)]
    lengths = torch.randint(1, MAX_LENGTH + 1, (n,), generator=generator)
    return Rollouts(
        prompt_ids=prompts,
        response_ids=[ids(int(t)) for t in lengths],
        prompt_index=torch.arange(n) % 2,
        advantages=torch.randn(n, generator=generator, dtype=torch.float64),
    )


def plain_step(policy, optimizer, rollouts, max_grad_norm=None):
    """Dr. GRPO as a plain torch loop takes it, one sequence at a time."""
    optimizer.zero_grad()
    with policy.precision.active():
        for prompt, response, advantage in zip(
            rollouts.prompt_ids, rollouts.response_ids, rollouts.advantages, strict=True
        ):
            ids = torch.cat((prompt, response))[None]
            logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            logprobs = (logits / policy.temperature).log_softmax(-1)
            s = logprobs.gather(1, response[:, None]).sum()
            (-advantage * s / (len(rollouts) * MAX_LENGTH)).backward()
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), max_grad_norm)
    optimizer.step()


def replay(policy, optimizer, rollouts, max_grad_norm=None):
    """(θ' − θ)/η of a real step; the policy and the optimizer move."""
    before = {name: x.clone() for name, x in policy.theta.items()}
    plain_step(policy, optimizer, rollouts, max_grad_norm)
    rate = optimizer.param_groups[0]["lr"]
    return {name: (x - before[name]) / rate for name, x in policy.theta.items()}


def train(policy, optimizer, steps=2, max_grad_norm=None):
    """Several real steps on changing batches, so that every moment is there."""
    for seed in range(steps):
        plain_step(policy, optimizer, build_batch(seed + 10), max_grad_norm)
    return optimizer


def relative_error(measured, expected):
    return norm(axpy(-1.0, expected, measured)) / norm(expected)
