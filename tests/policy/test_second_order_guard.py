"""Wrong derivatives are refused, right ones are not, whatever the precision."""

import contextlib

import pytest
import torch
from torch import nn

from isentrope import forward_mode
from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.fisher.supervised import supervised_loss_change
from isentrope.attribution.gradients.options import GradientOptions
from isentrope.differences import derivative_gap
from isentrope.policy import second_order_guard
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score_along
from isentrope.policy.second_order_guard import SecondDerivativeError, require_second_derivatives
from isentrope.probe.scoring import look_ahead
from tests import cases

MODES = ("forward over forward", "backward over backward")


class Doubled(torch.autograd.Function):
    """x ↦ x², with every derivative that is asked for 3 % too large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return 2.06 * ctx.saved_tensors[0] * gradient

    @staticmethod
    def jvp(ctx, tangent):
        return 2.06 * ctx.saved_tensors[0] * tangent


class Squares(nn.Module):
    """The activation of a user's own kernel."""

    def forward(self, x):
        return Doubled.apply(x)


class Rectified(nn.Module):
    """An activation with a kink, and a jump of its second derivative."""

    def forward(self, x):
        return nn.functional.relu(x) + nn.functional.relu(x).square()


def own_activation(activation, precision="float64"):
    model = cases.model("gpt2")
    for layer in model.transformer.h:
        layer.mlp.act = activation
    return Policy(model, precision=precision, eos_token_id=0)


@pytest.fixture
def torchs_layer_norm(monkeypatch):
    monkeypatch.setattr(forward_mode, "NormsWrittenOut", contextlib.nullcontext)


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_layer_norm_as_torch_differentiates_it_is_refused(torchs_layer_norm, precision):
    policy = cases.policy("gpt2", precision=precision)
    with pytest.raises(SecondDerivativeError, match=r"LayerNorm \(transformer.h.0.ln_1\)"):
        score_along(policy, cases.ragged(), cases.direction(policy), 2)
    score_along(policy, cases.ragged(), cases.direction(policy), 1)


def test_without_room_for_a_copy_float32_is_compared_as_it_is(torchs_layer_norm, monkeypatch):
    monkeypatch.setattr(second_order_guard, "get_max_memory", lambda: {"cpu": 0})
    with pytest.raises(SecondDerivativeError, match="LayerNorm"):
        require_second_derivatives(cases.policy("gpt2", precision="float32"), cases.ragged())
    require_second_derivatives(cases.policy("qwen2", precision="float32"), cases.ragged())


@pytest.mark.parametrize("mode", MODES)
def test_a_derivative_wrong_by_three_per_cent_is_refused_with_its_class(mode):
    with pytest.raises(SecondDerivativeError, match=r"Squares \(transformer.h.0.mlp.act\)"):
        require_second_derivatives(own_activation(Squares()), cases.ragged(), mode)


def test_a_scripted_normalisation_which_cannot_be_written_out_is_refused():
    model = cases.model("gpt2")
    norm = model.transformer.ln_f
    scripted = torch.jit.script(nn.functional.layer_norm)
    norm.forward = lambda x: scripted(x, [16], norm.weight, norm.bias, norm.eps)
    with pytest.raises(SecondDerivativeError, match=r"LayerNorm \(transformer.ln_f\)"):
        require_second_derivatives(Policy(model, eos_token_id=0), cases.ragged())


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_kinks_and_rounding_raise_no_alarm(mode, precision):
    require_second_derivatives(own_activation(Rectified(), precision), cases.ragged(), mode)


@pytest.mark.parametrize("name", cases.ARCHITECTURES)
def test_no_architecture_raises_an_alarm_and_the_model_is_left_alone(name):
    policy = cases.policy(name, precision="float32")
    before = {n: x.clone() for n, x in policy.model.state_dict().items()}
    for mode in MODES:
        require_second_derivatives(policy, cases.ragged(), mode)
    after = policy.model.state_dict()
    assert all(torch.equal(x, after[n]) and x.dtype == after[n].dtype for n, x in before.items())


def refused(policy, E):
    v = cases.direction(policy)
    return {
        "score_along": lambda: score_along(policy, E, v, 2),
        "kernel, one direction": lambda: second_order_change(policy, E, v),
        "kernel, pairs": lambda: second_order_kernel(policy, E, E),
        "supervised": lambda: supervised_loss_change(
            policy, E, E, gradients=GradientOptions("loop")
        ),
        "probe": lambda: look_ahead(policy, E, {"gradient": v}, True),
    }


@pytest.mark.parametrize("name", refused(cases.policy("table"), cases.ragged()))
def test_every_second_order_of_the_library_is_guarded(name):
    policy = own_activation(Squares())
    with pytest.raises(SecondDerivativeError):
        refused(policy, cases.ragged(3))[name]()


def test_a_policy_is_compared_once(monkeypatch):
    policy, E = cases.policy("table"), cases.ragged(3)
    require_second_derivatives(policy, E)
    monkeypatch.setattr(second_order_guard, "derivative_gap", None)
    require_second_derivatives(policy, E)
    with pytest.raises(TypeError):
        require_second_derivatives(policy, E, "backward over backward")


@pytest.mark.parametrize("mode", MODES)
def test_gaps_are_small_for_a_smooth_function_and_a_near_kink_is_in_the_bound(mode):
    def smooth(e):
        return torch.stack((e.exp(), (2 * e).sin() + 3))

    assert derivative_gap(smooth, mode=mode).error < 1e-8

    def kinked(e):  # the kink lies between 0 and every h but the shortest
        return smooth(e) + torch.relu(e - 3e-7)

    gap = derivative_gap(kinked, mode=mode)
    assert gap.error < 1e-6
    assert not gap.wrong
