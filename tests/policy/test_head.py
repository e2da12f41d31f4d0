"""The head differentiated by hand, against autograd through the scorer."""

import pytest
import torch

from isentrope import score
from isentrope.models.batching import micro_batches
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.scoring import score_along
from tests import cases

BATCH = cases.ragged(7)


POLICIES = {
    "adapter, frozen head": lambda: cases.lora_policy("qwen2"),
    "all trainable": lambda: cases.policy("llama"),
    "another temperature": lambda: hot(cases.lora_policy("llama")),
}


def hot(policy):
    policy.temperature = 0.7
    return policy


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("entropies", [False, True])
def test_gradients_are_those_of_autograd_through_the_scores(name, entropies):
    policy = POLICIES[name]()
    mask = score(policy, BATCH).mask
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(mask.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    found = weighted_gradient(policy, BATCH, a, b if entropies else None)
    theta = {n: p.clone().requires_grad_() for n, p in policy.theta.items()}
    objective = torch.zeros((), dtype=torch.float64)
    for batch in micro_batches(BATCH, policy.max_tokens):
        s, entropy = policy.packed_scores(batch, theta)
        objective = objective + (batch.pack(a) * s).sum()
        objective = objective + entropies * (batch.pack(b) * entropy).sum()
    for n, g in zip(theta, torch.autograd.grad(objective, list(theta.values())), strict=True):
        assert torch.allclose(found[n], g, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", POLICIES)
def test_slopes_are_those_of_forward_mode(name):
    policy = POLICIES[name]()
    directions = [cases.direction(policy, seed) for seed in (1, 2, 3)]
    scores, *slopes = score_jvp(policy, BATCH, directions)
    base = score(policy, BATCH)
    assert torch.allclose(scores.logprobs, base.logprobs, atol=1e-12)
    assert torch.allclose(scores.entropies, base.entropies, atol=1e-12)
    for direction, slope in zip(directions, slopes, strict=True):
        _, truth = score_along(policy, BATCH, direction, 1)
        for name in ("logprobs", "entropies"):
            found, expected = getattr(slope, name), getattr(truth, name)
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)
