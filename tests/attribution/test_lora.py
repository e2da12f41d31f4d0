"""LoRA layers taken as one operation: which are, and that the others still come out right."""

import pytest
import torch

from isentrope.attribution.gradients.layers import find_layers
from isentrope.attribution.gradients.lora import recorded_lora
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.token_sum import score_sums
from tests import cases


def gradient_sum(policy, backend):
    total = {n: torch.zeros_like(p) for n, p in policy.theta.items()}
    SequenceGradients(policy, backend).visit(
        score_sums(cases.ragged(5)), lambda name, _, g: total[name].add_(g.sum(0))
    )
    return total


def taken(policy):
    """Layers taken as one operation, of how many."""
    layers = find_layers(policy)
    with recorded_lora(policy.model, layers, print) as (others, _):
        return (len(layers) - len(others)) // 2, len(layers) // 2


def require_right(policy):
    hooks, naive = (gradient_sum(policy, backend) for backend in ("hooks", "loop"))
    assert all(torch.allclose(hooks[n], naive[n], rtol=1e-10, atol=1e-13) for n in naive)


def test_every_plain_layer_is_taken_and_given_back():
    policy = cases.lora_policy("qwen2")
    found, layers = taken(policy)
    assert found == layers > 0
    require_right(policy)
    assert not any("forward" in vars(module) for module in policy.model.modules())


@pytest.mark.filterwarnings("ignore:`lora_bias=True`")
def test_factors_with_a_bias_are_left_to_the_hooks():
    policy = cases.lora_policy("qwen2", lora_bias=True)
    assert taken(policy)[0] == 0
    require_right(policy)


def test_autocast_leaves_all_to_the_hooks():
    policy = cases.lora_policy("qwen2", precision="float32")
    with torch.autocast("cpu", torch.bfloat16):
        assert taken(policy)[0] == 0


def test_a_layer_whose_forward_someone_replaced_is_left_alone():
    policy = cases.lora_policy("qwen2")
    module = next(m for m in policy.model.modules() if hasattr(m, "lora_A"))
    module.forward = module.forward
    found, layers = taken(policy)
    assert found == layers - 1
    require_right(policy)
    assert "forward" in vars(module)
