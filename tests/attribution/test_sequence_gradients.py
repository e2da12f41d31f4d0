"""Per-sequence gradients by hooks, against one backward pass a sequence."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from isentrope import Policy, Rollouts
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.token_sum import TokenSum, score_sums
from tests import cases


def full(name, precision="float64"):
    return cases.policy(name, precision=precision)


@cases.built_once
def gpt2(precision="float64"):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=5, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    model.transformer.wpe.requires_grad_(False)
    return Policy(model, precision=precision, eos_token_id=0, pad_token_id=0)


@cases.built_once
def heads(kind, **more):
    """A norm of every head: after its axis (Qwen3), or before it (Gemma 3)."""
    torch.manual_seed(0)
    settings = cases.SMALL | {"head_dim": 8, "vocab_size": 5, "pad_token_id": None, **more}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).eval()
    return Policy(model, eos_token_id=0, pad_token_id=0)


POLICIES = {
    "qwen2": lambda: full("qwen2"),
    "llama": lambda: full("llama"),
    "qwen2 with LoRA": lambda: cases.lora_policy("qwen2"),
    "llama with LoRA": lambda: cases.lora_policy("llama"),
    "LoRA on the head": lambda: cases.lora_policy("qwen2", modules_to_save=["lm_head"]),
    "gpt2, tied embeddings": gpt2,
    "qwen3": lambda: heads("qwen3"),
    "gemma3": lambda: heads("gemma3_text"),
}


def weighted(entropies: bool = False) -> TokenSum:
    """Random weights on the tokens of random sequences."""
    ones = score_sums(cases.ragged(7))
    generator = torch.Generator().manual_seed(5)
    a, b = (
        torch.randn(ones.logprob_weights.shape, generator=generator, dtype=torch.float64)
        * ones.logprob_weights
        for _ in range(2)
    )
    return TokenSum(ones.rollouts, a, b if entropies else None)


def gradients(policy, weighted, method="hooks"):
    found = {n: torch.zeros(weighted.n_rows, *p.shape).to(p) for n, p in policy.theta.items()}
    SequenceGradients(policy, method).visit(
        weighted, lambda name, rows, g: found[name].index_add_(0, rows, g)
    )
    return found


def largest(vector):
    return max(float(x.abs().max()) for x in vector.values())


def difference(one, other):
    return largest({n: one[n].double() - other[n].double() for n in one}) / largest(other)


@pytest.mark.parametrize(
    ("name", "entropies"), [*((name, True) for name in POLICIES), ("qwen2 with LoRA", False)]
)
def test_hooks_give_the_gradients_of_one_backward_pass_a_sequence(name, entropies):
    policy = POLICIES[name]()
    naive = gradients(policy, weighted(entropies), "loop")
    assert difference(gradients(policy, weighted(entropies)), naive) < 1e-12


def test_hooks_in_float32_are_right_to_float32():
    policy = cases.lora_policy("qwen2")
    naive = gradients(policy, weighted(), "loop")
    assert difference(gradients(policy.convert("float32"), weighted()), naive) < 1e-5


@pytest.mark.parametrize("max_tokens", [1, 20, 8192])
def test_the_split_into_micro_batches_changes_nothing(max_tokens):
    policy = cases.lora_policy("llama")
    whole = gradients(policy, weighted(True))
    policy.max_tokens = max_tokens
    assert difference(gradients(policy, weighted(True)), whole) < 1e-12


def test_rows_gather_the_sequences_of_a_group():
    policy, rows = cases.lora_policy("llama"), torch.tensor([0, 2, 0, 1, 1, 2, 0])
    every = gradients(policy, weighted())
    w = weighted()
    grouped = gradients(policy, TokenSum(w.rollouts, w.logprob_weights, rows=rows))
    for name, g in every.items():
        assert torch.allclose(grouped[name], torch.zeros_like(g[:3]).index_add(0, rows, g))


def test_gradients_that_pass_an_embedding_made_for_checkpointing_are_the_same():
    policy = cases.lora_policy("qwen2")
    plain = gradients(policy, weighted())
    policy.causal_lm.enable_input_require_grads()
    assert difference(gradients(policy, weighted()), plain) < 1e-12


def test_nothing_is_left_behind_on_the_model():
    policy = cases.lora_policy("qwen2")
    gradients(policy, weighted())
    assert all(p.grad is None for p in policy.model.parameters())
    assert not any(m._forward_hooks for m in policy.model.modules())


def test_an_unknown_kind_of_layer_is_refused_by_name_and_the_slow_way_is_offered():
    with pytest.raises(ValueError, match=r"'table' is in .*TabularPolicy.*GradientOptions"):
        SequenceGradients(cases.policy("table"))
    rollouts = Rollouts([[1], [2]], [[1, 0], [3, 3]], [0, 1])
    found = gradients(cases.policy("table"), score_sums(rollouts), "loop")
    assert found["table"].abs().sum() > 0


def test_a_position_embedding_shared_by_all_sequences_is_refused():
    policy = gpt2()
    policy.model.transformer.wpe.requires_grad_(True)
    policy = Policy(policy.model, eos_token_id=0, pad_token_id=0)
    with pytest.raises(ValueError, match="cannot be separated"):
        gradients(policy, weighted())


def test_a_parameter_without_gradient_is_named():
    model = cases.model("qwen2")
    model.model.unused = torch.nn.Linear(3, 3)
    policy = Policy(model, eos_token_id=0, pad_token_id=0)
    with pytest.raises(ValueError, match=r"'model.unused.bias' .*gradient"):
        gradients(policy, weighted())


def test_a_layer_whose_output_the_model_drops_is_named():
    policy = cases.lora_policy("qwen2")
    layer = policy.causal_lm.model.layers[0]
    layer.aside = nn.Linear(policy.causal_lm.config.hidden_size, 2)

    def drop(module, args, output):
        module.aside(args[0])

    layer.register_forward_hook(drop)
    policy = Policy(policy.model, eos_token_id=0, pad_token_id=0)
    with pytest.raises(ValueError, match=r"'.*aside.bias' .*gradient"):
        gradients(policy, weighted())


def test_a_layer_that_does_more_than_its_kind_is_found_out():
    model = copy.deepcopy(cases.model("llama"))
    norm = model.model.norm
    norm.forward = lambda x: 2 * x * norm.weight**2  # elementwise, but not linear in its weight
    policy = Policy(model, precision="as_is", eos_token_id=0, pad_token_id=0)
    with torch.no_grad():
        norm.weight.mul_(1.3)
    with pytest.raises(ValueError, match=r"'model.norm.weight' .*autograd"):
        gradients(policy, weighted())


class HeadsFirst(nn.Module):
    """The same norm on an input whose first axis is the heads: two, as the sequences of a check."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)


def test_gradients_that_would_go_to_another_sequence_are_found_out():
    policy = heads("qwen3")
    attention = policy.model.model.layers[0].self_attn
    attention.q_norm = HeadsFirst(attention.q_norm)
    policy = Policy(policy.model, eos_token_id=0, pad_token_id=0)
    with pytest.raises(ValueError, match=r"q_norm.norm.weight.*loop"):
        gradients(policy, weighted())
