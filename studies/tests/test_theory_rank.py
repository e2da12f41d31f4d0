"""The kernel of a fresh adapter over its random A, against every A of a small design."""

import itertools

import pytest
import torch
from peft import LoraConfig, get_peft_model

from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.oracle import enumerate_policy
from isentrope.policy.language_model import Policy
from studies import theory_rank
from studies.theory_policies import gradient_matrix
from tests import cases
from tests.exact_kernel import exact_kernel

WIDTH, SOME = 4, torch.tensor([0, 5, 11])
LAYER = "model.layers.0.mlp.down_proj.weight"


def small():
    return cases.model("llama", 3, hidden_size=4, intermediate_size=WIDTH, num_hidden_layers=1)


def kernel_of(A):
    """K of a rank-1 adapter on one layer, B = 0 and s = 2, by differences of every response."""
    config = LoraConfig(r=1, lora_alpha=2, target_modules=["down_proj"])
    adapted = get_peft_model(small(), config).eval().double()
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_A" in name:
                p.copy_(torch.tensor([A]))
    return exact_kernel(enumerate_policy(Policy(adapted, eos_token_id=0), [[1, 2]], 3), rows=SOME)


def gradients():
    """(3, o, i) score vectors of the layer's weight."""
    model = small()
    for name, p in model.named_parameters():
        p.requires_grad_(name == LAYER)
    policy = Policy(model, eos_token_id=0)
    responses = enumerate_policy(policy, [[1, 2]], 3).rollouts.select(SOME)
    return gradient_matrix(policy, score_sums(responses)).view(3, *policy.theta[LAYER].shape)


def test_mean_and_variance_over_all_signs_of_A_are_those_of_the_formula():
    signs = list(itertools.product((-1.0, 1.0), repeat=WIDTH))
    # A and −A give one kernel
    kernels = torch.stack([kernel_of(A) for A in signs[: len(signs) // 2]])
    mean, variance = theory_rank.adapter_moments(gradients(), 1, 1.0, kurtosis=1.0, scale=2.0)
    size = float(mean.abs().max())
    torch.testing.assert_close(kernels.mean(0), mean, rtol=0, atol=1e-9 * size)
    torch.testing.assert_close(kernels.var(0, correction=0), variance, rtol=0, atol=1e-9 * size**2)


def test_the_spread_falls_as_one_over_the_root_of_the_rank():
    one, four = (theory_rank.adapter_moments(gradients(), r, 1.0) for r in (1, 4))
    torch.testing.assert_close(four[0], 4 * one[0])
    torch.testing.assert_close(four[1], 4 * one[1])


def test_the_measured_spread_is_that_of_planted_kernels():
    rng = torch.Generator().manual_seed(0)
    base = torch.eye(30, dtype=torch.float64)
    noise = 0.1 * torch.randn(400, 30, 30, generator=rng, dtype=torch.float64)
    truth = 0.1 * 30 / 30**0.5
    assert theory_rank.measured_spread(list(base + noise)) == pytest.approx(truth, rel=0.02)
