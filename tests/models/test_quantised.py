"""Layers of 4-bit weights are differentiated in every mode; those that round inputs are refused."""

import sys
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import isentrope as ise
from isentrope.models.architecture import UnsupportedModelError
from isentrope.models.quantised import plain_products
from isentrope.policy.derivative_guard import DerivativeError
from tests import cases


@torch.library.custom_op("isentrope_tests::dequantised_product", mutates_args=())
def own_kernel(x: torch.Tensor, w: torch.Tensor, scale: float) -> torch.Tensor:
    """Without a rule for any mode, as bitsandbytes' 4-bit product on a CPU."""
    return x @ (scale * w.to(x.dtype)).mT


class Linear4bit(nn.Module):
    """Integers −7 … 7 times a scale."""

    def __init__(self, of):
        super().__init__()
        scale = float(of.weight.detach().abs().max()) / 7
        integers = (of.weight.detach() / scale).round().to(torch.int8)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.weight.quant_state = scale
        self.bias = of.bias
        self.in_features, self.out_features = of.in_features, of.out_features

    def forward(self, x):
        y = own_kernel(x, self.weight, self.weight.quant_state)
        return y if self.bias is None else y + self.bias


class Linear8bitLt(Linear4bit):
    pass


def dequantised(w, scale):
    if (y := scale * w.float()).dtype != torch.float32:
        raise ValueError("only supports 16/32-bit floats")  # as the kernel on a GPU
    return y


def stand_in(monkeypatch):
    library = SimpleNamespace(
        nn=SimpleNamespace(Linear4bit=Linear4bit, Linear8bitLt=Linear8bitLt),
        functional=SimpleNamespace(dequantize_4bit=dequantised),
    )
    monkeypatch.setitem(sys.modules, "bitsandbytes", library)


def quantised(kind):
    """LoRA on some layers of a base whose MLPs are all quantised."""
    lm = cases.model("qwen2")
    for layer in lm.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, name, kind(getattr(layer.mlp, name)))
    config = LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    return get_peft_model(lm, config).eval()


def plain():
    """The same, its weights dequantised once."""
    model = quantised(Linear4bit)
    for layer in model.base_model.model.model.layers:
        for name, x in list(layer.mlp.named_children()):
            if isinstance(x, Linear4bit):
                linear = nn.Linear(x.in_features, x.out_features, bias=False)
                linear.weight.data = (x.weight.quant_state * x.weight.float()).detach()
                setattr(layer.mlp, name, linear.requires_grad_(False))
    return model


def numbers(policy):
    E = ise.sample(policy, [[1, 2], [3, 1, 1]], n=12, max_new_tokens=4, seed=0)
    ise.entropy_change(policy, E, cases.direction(policy), [], order=1)  # compared in its own way
    change = ise.entropy_change(policy, E, cases.direction(policy), [0.01])
    gradient = ise.entropy_gradient(policy, E)
    found = [change.first_order, change.second_order, change.points[0].change]
    return torch.tensor([*(x.value for x in found), *(float(g.sum()) for g in gradient.values())])


def test_4_bit_weights_give_the_numbers_of_the_same_weights_in_full(monkeypatch):
    models = plain(), quantised(Linear4bit)
    stand_in(monkeypatch)
    truth, found = (numbers(ise.Policy(m, precision="float32", eos_token_id=0)) for m in models)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)


def test_a_kernel_of_an_unknown_library_is_refused_by_the_name_of_its_layer():
    policy = ise.Policy(quantised(Linear4bit), precision="float32", eos_token_id=0)
    with pytest.raises(DerivativeError, match="derivatives of"):
        numbers(policy)


def test_layers_that_round_their_inputs_are_refused_by_name(monkeypatch):
    model = quantised(Linear8bitLt)
    stand_in(monkeypatch)
    with pytest.raises(UnsupportedModelError, match=r"'model.layers.0.mlp.\w+' in 8 bits"):
        ise.Policy(model, precision="float32")


def test_a_model_in_training_has_its_own_kernels_back(monkeypatch):
    lm = quantised(Linear4bit)
    stand_in(monkeypatch)
    layer = lm.base_model.model.model.layers[0].mlp.up_proj
    with plain_products(lm):
        assert "forward" in vars(layer)
    assert "forward" not in vars(layer)


def test_bitsandbytes_itself():
    library = pytest.importorskip("bitsandbytes")

    def kind(of):
        layer = library.nn.Linear4bit(of.in_features, of.out_features, bias=False)
        layer.load_state_dict(of.state_dict())
        return layer.to("cpu")

    policy = ise.Policy(quantised(kind), precision="float32", eos_token_id=0)
    E = ise.sample(policy, [[1, 2], [3, 1, 1]], n=12, max_new_tokens=4, seed=0)
    change = ise.entropy_change(policy, E, cases.direction(policy), [0.001])
    ahead, residual = change.points[0].change.value, change.points[0].residual
    assert residual is not None
    assert abs(residual.value) < 0.01 * abs(ahead)
