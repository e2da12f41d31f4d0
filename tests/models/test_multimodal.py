"""Multimodal wrappers on text: scored by their own logits, or refused by name."""

import pytest
import torch
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import isentrope as ise
from isentrope.models.architecture import UnsupportedModelError

TEXT = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    **{"max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
}
VISION = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 16, "patch_size": 8},
}
PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11]]


def kept(config, settings):
    """Those settings that a configuration has."""
    return {name: value for name, value in settings.items() if hasattr(config, name)}


def wrapper(kind):
    """A tiny wrapper with random weights."""
    torch.manual_seed(0)
    usual = CONFIG_MAPPING[kind]()
    parts = {"text_config": TEXT, "vision_config": VISION}
    settings = {
        name: kept(getattr(usual, name), sizes) | {"model_type": getattr(usual, name).model_type}
        for name, sizes in parts.items()
    }
    tokens = kept(usual, {"image_token_id": 60, "image_token_index": 60})
    config = CONFIG_MAPPING[kind](**settings, **tokens)
    return AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()


def policy_of(lm):
    return ise.Policy(lm, precision="float64", eos_token_id=1, pad_token_id=0)


@pytest.mark.parametrize("kind", ["llava", "idefics3", "mistral3", "paligemma"])
def test_the_scores_of_a_wrapper_are_those_of_its_outermost_module(kind):
    lm = wrapper(kind).double()
    policy = policy_of(lm)
    drawn = ise.sample(policy, PROMPTS, 4, max_new_tokens=5)
    scores = ise.score(policy, drawn).logprobs
    assert torch.allclose(scores, drawn.padded("sampler_logprobs"), atol=1e-9)
    for row, (prompt, response) in enumerate(
        zip(drawn.prompt_ids, drawn.response_ids, strict=True)
    ):
        with torch.no_grad():
            logits = lm(input_ids=torch.cat([prompt, response])[None]).logits[0]
        expected = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, response[:, None])[:, 0]
        # the model's own norms round to float32
        assert torch.allclose(scores[row, : len(response)], expected, atol=1e-4)


def test_a_model_that_reads_images_alone_is_refused_by_what_it_lacks():
    with pytest.raises(UnsupportedModelError) as refusal:
        policy_of(wrapper("blip-2"))
    assert "images" in str(refusal.value)


def test_a_model_whose_generate_draws_by_itself_is_refused_by_name(monkeypatch):
    lm = wrapper("llava")
    policy = policy_of(lm)
    monkeypatch.setattr(type(lm), "generate", lambda self, ids, **_: ids)
    with pytest.raises(RuntimeError) as refusal:
        ise.sample(policy, PROMPTS, 4, max_new_tokens=5)
    assert "LlavaForConditionalGeneration" in str(refusal.value)
