"""The floor sees rounding and not curvature, on full models as they are initialised."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import isentrope as ise
from isentrope.checks import check_instrument
from isentrope.policy.gradient import weighted_gradient

SETTINGS = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
FULL = (
    *("llama", "qwen2", "qwen3", "mistral", "gpt2", "phi3", "gpt_neox", "olmo2"),
    *("granite", "gemma", "gemma3_text", "starcoder2", "stablelm"),
)


def sharpened(kind):
    """A policy, an E of 64 and a direction of full training."""
    torch.manual_seed(0)
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4} if kind == "gpt2" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SETTINGS, **small))
    policy = ise.Policy(model.eval(), eos_token_id=0)
    E = ise.sample(policy, [[3, 4], [5, 6, 7], [8]], n=64, max_new_tokens=8, seed=0)
    weights = torch.randn(64, int(E.lengths.max()), generator=torch.Generator().manual_seed(1))
    return policy, E, weighted_gradient(policy, E, weights.double())


def rounded(x):
    """Through numpy's float32: no operation of torch is seen to round."""
    return torch.from_numpy(x.detach().numpy().astype("f4").astype("f8"))


def floor(policy, E, v):
    return next(f for f in check_instrument(policy, E, v) if f.name == "rounding floor")


@pytest.mark.parametrize(
    "kind", [FULL[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in FULL[1:])]
)
def test_a_sound_full_model_passes_and_one_that_rounds_does_not(kind):
    policy, E, v = sharpened(kind)
    assert floor(policy, E, v).passed
    norms = [m for m in policy.model.modules() if "Norm" in type(m).__name__]
    norms[0].register_forward_hook(lambda module, args, out: rounded(out))
    assert floor(policy, E, v).passed is False


def test_a_module_that_rounds_since_the_policy_was_made_is_named():
    policy, E, _ = sharpened("llama")
    mlp = policy.model.model.layers[0].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x.to(torch.bfloat16).to(x.dtype))
    found = {f.name: f for f in check_instrument(policy, E)}
    assert found["float64 throughout"].passed is False
    assert "bfloat16" in found["float64 throughout"].detail


def padded(policy, rows):
    """The policy with rows of zeros for tokens that no tokenizer has."""
    model = policy.model
    model.resize_token_embeddings(SETTINGS["vocab_size"] + rows, mean_resizing=False)
    for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
        embedding.weight.data[SETTINGS["vocab_size"] :] = 0
    return ise.Policy(model, eos_token_id=0)


def test_the_curvature_of_padded_rows_is_not_taken_for_rounding():
    """A token whose embedding is 0 makes a norm as steep as 1/√ε."""
    policy = padded(sharpened("qwen2")[0], 32)
    E = ise.sample(policy, [[3, 4], [5, 6, 7], [8]], n=32, max_new_tokens=8, seed=0)
    weights = torch.randn(32, int(E.lengths.max()), generator=torch.Generator().manual_seed(1))
    v = weighted_gradient(policy, E, weights.double())
    assert floor(policy, E, v).passed
    norms = [m for m in policy.model.modules() if "Norm" in type(m).__name__]
    norms[0].register_forward_hook(lambda module, args, out: rounded(out))
    found = floor(policy, E, v)
    assert found.passed is False
    assert "Measure in float64" not in found.advice


def test_a_direction_of_zeros_has_no_floor_and_stops_nothing():
    policy, E, v = sharpened("qwen2")
    found = floor(policy, E, {name: 0 * x for name, x in v.items()})
    assert found.passed is None
    assert "no trained parameter moves" in found.detail
