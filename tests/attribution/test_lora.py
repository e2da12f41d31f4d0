"""LoRA layers taken as one operation: which are, and that the others still come out right."""

import pytest
import torch

from isentrope.attribution.gradients.layers import find_layers
from isentrope.attribution.gradients.lora import find_lora, scaled_by_rank
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.policy.scoring import score
from tests import cases


def gradient_sum(policy, backend):
    total = {n: torch.zeros_like(p) for n, p in policy.theta.items()}
    SequenceGradients(policy, backend).visit(
        score_sums(cases.ragged(5)), lambda name, _, g: total[name].add_(g.sum(0))
    )
    return total


def taken(policy):
    return len(find_lora(policy.model, find_layers(policy)))


def test_every_plain_layer_is_taken_and_given_back():
    policy = cases.lora_policy("qwen2")
    assert taken(policy) == sum("lora_A" in name for name in policy.names)
    gradient_sum(policy, "hooks")
    assert not any("forward" in vars(module) for module in policy.model.modules())


@pytest.mark.filterwarnings("ignore:`lora_bias=True`")
def test_factors_with_a_bias_are_left_to_the_hooks():
    policy = cases.lora_policy("qwen2", lora_bias=True)
    assert taken(policy) == 0
    hooks, naive = (gradient_sum(policy, backend) for backend in ("hooks", "loop"))
    assert all(torch.allclose(hooks[n], naive[n], rtol=1e-10, atol=1e-13) for n in naive)


def test_autocast_leaves_all_to_the_hooks():
    policy = cases.lora_policy("qwen2", precision="float32")
    with torch.autocast("cpu", torch.bfloat16):
        assert taken(policy) == 0


def test_a_layer_whose_forward_someone_replaced_is_left_alone():
    policy = cases.lora_policy("qwen2")
    module = next(m for m in policy.model.modules() if hasattr(m, "lora_A"))
    module.forward = module.forward
    assert taken(policy) == sum("lora_A" in name for name in policy.names) - 1
    hooks, naive = (gradient_sum(policy, backend) for backend in ("hooks", "loop"))
    assert all(torch.allclose(hooks[n], naive[n], rtol=1e-10, atol=1e-13) for n in naive)


@pytest.mark.parametrize("alpha", [4, 24])
def test_scaling_by_rank_changes_nothing_but_rounding_and_is_taken_back(alpha):
    policy, batch = cases.lora_policy("qwen2", lora_alpha=alpha), cases.ragged(3)
    plain, layers = score(policy, batch), taken(policy)
    with scaled_by_rank(policy.model):
        assert sum("forward" in vars(m) for m in policy.model.modules()) == layers > 0
        inside = score(policy, batch)
    assert torch.allclose(plain.logprobs, inside.logprobs, rtol=1e-12, atol=1e-13)
    assert not any("forward" in vars(module) for module in policy.model.modules())
