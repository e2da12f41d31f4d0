"""Wrong derivatives are refused, right ones are not, whatever the precision."""

import contextlib

import pytest
import torch
from torch import nn

import isentrope as ise
from isentrope import GradientOptions, Policy, ProbeOptions
from isentrope.attribution.fisher.second_order import (
    second_order_change,
    second_order_kernel,
    supervised_loss_change,
)
from isentrope.models.architecture import UnsupportedModelError
from isentrope.nouns import forward_mode
from isentrope.nouns.differences import derivative_gap
from isentrope.policy import derivative_guard
from isentrope.policy.derivative_guard import DerivativeError, require_derivatives
from isentrope.policy.gradient import score_jvp
from isentrope.policy.scoring import score_along
from isentrope.probe.scoring import look_ahead
from tests import cases

TWICE = ("forward over forward", "backward over backward")
MODES = ("forward", "backward", *TWICE)


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


class Still(Doubled):
    """x ↦ x², of which forward mode sees nothing, and reverse mode what it should."""

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient

    @staticmethod
    def jvp(ctx, tangent):
        return torch.zeros_like(tangent)


@torch.library.custom_op("isentrope_tests::squares", mutates_args=())
def squares(x: torch.Tensor) -> torch.Tensor:
    """A kernel without any rule."""
    return x * x


class Squares(nn.Module):
    """The activation of a user's own kernel."""

    def __init__(self, kernel=Doubled.apply):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        return self.kernel(x)


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
    with pytest.raises(DerivativeError, match="GPT2LMHeadModel"):
        score_along(policy, cases.ragged(), cases.direction(policy), 2)
    score_along(policy, cases.ragged(), cases.direction(policy), 1)


def test_without_room_for_a_copy_float32_is_compared_as_it_is(torchs_layer_norm, monkeypatch):
    monkeypatch.setattr(derivative_guard, "free_memory", lambda device: 0)
    with pytest.raises(DerivativeError):
        require_derivatives(cases.policy("gpt2", precision="float32"), cases.ragged(), TWICE[0])
    require_derivatives(cases.policy("qwen2", precision="float32"), cases.ragged(), TWICE[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_derivative_wrong_by_three_per_cent_is_refused(mode):
    with pytest.raises(DerivativeError):
        require_derivatives(own_activation(Squares()), cases.ragged(), mode)


def test_a_scripted_normalisation_which_cannot_be_written_out_is_refused():
    model = cases.model("gpt2")
    norm = model.transformer.ln_f
    scripted = torch.jit.script(nn.functional.layer_norm)
    norm.forward = lambda x: scripted(x, [16], norm.weight, norm.bias, norm.eps)
    with pytest.raises(DerivativeError, match="GPT2LMHeadModel"):
        require_derivatives(Policy(model, eos_token_id=0), cases.ragged(), TWICE[0])


@pytest.mark.parametrize(
    ("mode", "precision"),
    [
        *((mode, "float64") for mode in MODES),
        *((mode, "bfloat16") for mode in MODES),
        ("backward", "float32"),
        ("forward over forward", "float32"),
    ],
)
def test_kinks_and_rounding_raise_no_alarm(mode, precision):
    require_derivatives(own_activation(Rectified(), precision), cases.ragged(), mode)


@pytest.mark.parametrize("name", cases.ARCHITECTURES)
def test_no_architecture_raises_an_alarm_and_the_model_is_left_alone(name):
    policy = cases.policy(name, precision="float32")
    before = {n: x.clone() for n, x in policy.model.state_dict().items()}
    for mode in MODES:
        require_derivatives(policy, cases.ragged(), mode)
    after = policy.model.state_dict()
    assert all(torch.equal(x, after[n]) and x.dtype == after[n].dtype for n, x in before.items())


def drawn(policy):
    return ise.sample(policy, [[1, 2], [3]], 4, max_new_tokens=3, seed=0)


def first_orders(policy, E, v):
    """Everything that takes a first derivative in forward mode."""

    def draw():
        U = ise.sample(policy, [[k + 1, 1] for k in range(4)], 4, 2, max_new_tokens=3, seed=0)
        return U.with_columns(advantages=torch.linspace(-1, 1, len(U)).double())

    def influence(tokens):
        U = draw()
        step = ise.optimizer_step(policy, U, torch.optim.SGD(policy.model.parameters(), lr=1.0))
        return ise.influence(policy, E, U, step, ise.InfluenceOptions(groups=2), tokens=tokens)

    return {
        "entropy_change": lambda: ise.entropy_change(policy, E, v, [], order=1),
        "influence": lambda: influence(False),
        "influence of tokens": lambda: influence(True),
        "kernel": lambda: ise.fisher_kernel(policy, draw()),
        "noise": lambda: ise.noise_scale(policy, draw()),
        "slopes": lambda: score_jvp(policy, E, [v]),
    }


def refused(policy, E):
    v = cases.direction(policy)
    return {
        "score_along": lambda: score_along(policy, E, v, 2),
        "gradient of entropy": lambda: ise.entropy_gradient(policy, E),
        **first_orders(policy, E, v),
        "kernel, one direction": lambda: second_order_change(policy, E, v),
        "kernel, pairs": lambda: second_order_kernel(policy, E, E),
        "supervised": lambda: supervised_loss_change(
            policy, E, E, gradients=GradientOptions("loop")
        ),
    }


@pytest.mark.parametrize("name", refused(cases.policy("table"), cases.ragged()))
def test_every_derivative_of_the_library_is_guarded(name):
    policy = own_activation(Squares())
    with pytest.raises(DerivativeError):
        refused(policy, cases.ragged(3))[name]()


@pytest.mark.parametrize("name", first_orders(cases.policy("table"), cases.ragged(), {}))
def test_a_kernel_without_a_forward_rule_is_refused_in_every_verb(name):
    policy, E = own_activation(Squares(Still.apply), "float32"), cases.ragged(4)
    with pytest.raises(DerivativeError, match="GPT2LMHeadModel"):
        first_orders(policy, E, cases.direction(policy))[name]()


def test_the_probe_says_where_the_first_order_alone_is_right(torchs_layer_norm):
    policy = cases.policy("gpt2")
    ahead = policy, drawn(policy), {"gradient": cases.direction(policy)}, 1e-6
    assert "set second_order=False" in look_ahead(*ahead, ProbeOptions(second_order=True)).withheld
    assert not look_ahead(*ahead, ProbeOptions()).withheld


@pytest.mark.parametrize("kernel", [Doubled.apply, Still.apply, squares])
@pytest.mark.parametrize("second_order", [False, True])
def test_the_probe_scores_such_a_policy_and_takes_no_derivative_of_it(kernel, second_order):
    policy = own_activation(Squares(kernel))
    E, options = drawn(policy), ProbeOptions(second_order=second_order)
    before = look_ahead(policy, E, {"gradient": cases.direction(policy)}, 1e-6, options)
    assert "GPT2LMHeadModel" in before.withheld
    assert "second_order" not in before.withheld
    assert not before.slopes
    (scores,) = before.sample.series
    torch.testing.assert_close(scores.logprobs, ise.score(policy, E).logprobs)


def test_a_kernel_without_any_rule_is_refused_in_both_modes():
    policy, E = own_activation(Squares(squares)), cases.ragged(4)
    verbs = first_orders(policy, E, cases.direction(policy))
    with pytest.raises(DerivativeError, match="GPT2LMHeadModel"):
        verbs["entropy_change"]()
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel .*isentrope_tests"):
        verbs["noise"]()


def test_a_norm_without_a_forward_rule_is_refused():
    model = cases.model("qwen2")
    norm = model.model.layers[1].post_attention_layernorm
    norm.forward = lambda x: norm.weight * x * (Still.apply(x).mean(-1, keepdim=True) + 1) ** -0.5
    with pytest.raises(DerivativeError, match="Qwen2ForCausalLM"):
        require_derivatives(Policy(model, eos_token_id=0), cases.ragged())


def test_a_policy_is_compared_once(monkeypatch):
    policy, E = cases.policy("table"), cases.ragged(3)
    require_derivatives(policy, E)
    require_derivatives(policy, E, "forward over forward")
    monkeypatch.setattr(derivative_guard, "derivative_gap", None)
    require_derivatives(policy, E)
    with pytest.raises(TypeError):
        require_derivatives(policy, E, "backward over backward")


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
