"""What a model's own code cannot do is refused by a sentence that names it."""

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, MixtralConfig, MixtralForCausalLM

import isentrope as ise
from isentrope.models.architecture import UnsupportedModelError
from isentrope.models.quantised import plain_products
from isentrope.policy.scoring import score_along
from tests import cases

EXPERTS = cases.SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 5}


def mixture():
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**EXPERTS)).eval()


def test_an_operation_without_a_forward_derivative_is_refused_by_name():
    torch.manual_seed(0)
    lm = BloomForCausalLM(BloomConfig(vocab_size=5, hidden_size=16, n_layer=1, n_head=2)).eval()
    policy = ise.Policy(lm)
    names = r"BloomForCausalLM \(model type bloom\).*BloomGelu.forward in modeling_bloom.py"
    with pytest.raises(UnsupportedModelError, match=names):
        ise.entropy_change(policy, cases.ragged(2), cases.direction(policy), [])


def test_a_forward_pass_that_fails_is_refused_by_name():
    lm = cases.model("qwen2")
    lm.model.layers[0].mlp.forward = lambda x: x @ x
    with pytest.raises(UnsupportedModelError, match=r"Qwen2ForCausalLM .* RuntimeError"):
        ise.Policy(lm)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_experts_run_in_every_precision_and_are_differentiated(precision):
    policy = ise.Policy(mixture(), precision=precision)
    _, slope = score_along(policy, cases.ragged(2), cases.direction(policy), 1)
    assert bool(slope.logprobs.any())


def test_a_model_in_training_has_its_own_experts_back_after_a_look():
    lm = mixture()
    before = lm.get_experts_implementation()
    with plain_products(lm):
        assert set(lm.get_experts_implementation().values()) == {"eager"}
    assert lm.get_experts_implementation() == before != {"": "eager"}


@pytest.mark.parametrize(("option", "value"), [("scale_grad_by_freq", True), ("max_norm", 1.0)])
def test_embeddings_whose_gradient_is_no_derivative_are_refused(option, value):
    lm = cases.model("qwen2")
    setattr(lm.get_input_embeddings(), option, value)
    with pytest.raises(ValueError, match=f"'model.embed_tokens'.* {option}"):
        ise.Policy(lm)
