"""LoRA merged for a draw: the same responses, and the very tensors of before."""

import copy
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear

import isentrope as ise
from isentrope.models import merged
from isentrope.sampling import draw
from tests import cases

PROMPTS = [[2, 3], [4], [1, 2, 3]]


def adapted(**options):
    """A small model under LoRA whose products are not zero."""
    torch.manual_seed(0)
    settings = {"r": 2, "target_modules": "all-linear", "init_lora_weights": False} | options
    return get_peft_model(cases.model("qwen2"), LoraConfig(**settings)).eval()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_responses_are_those_of_the_adapter_unmerged(monkeypatch, precision):
    policy = cases.lora_policy("qwen2", precision)
    drawn = ise.sample(policy, PROMPTS, 12, 2, max_new_tokens=6, seed=0)
    monkeypatch.setattr(draw, "adapters_merged", lambda _: nullcontext())
    plain = ise.sample(policy, PROMPTS, 12, 2, max_new_tokens=6, seed=0)
    for a, b in zip(drawn.response_ids, plain.response_ids, strict=True):
        assert torch.equal(a, b)
    tolerance = {"atol": 1e-12 if precision == "float64" else 1e-5, "rtol": 0.0}
    assert torch.allclose(
        drawn.padded("sampler_logprobs"), plain.padded("sampler_logprobs"), **tolerance
    )
    assert torch.allclose(
        drawn.padded("sampler_logprobs"), ise.score(policy, drawn).logprobs, **tolerance
    )


@pytest.mark.parametrize("failure", [None, ValueError, KeyboardInterrupt])
def test_the_tensors_are_the_same_ones_afterwards(failure):
    model = adapted()
    before = dict(model.named_parameters())
    values = copy.deepcopy(model.state_dict())
    layers = merged.mergeable_layers(model)
    assert layers
    try:
        with merged.adapters_merged(model):
            assert all(layer.merged for layer in layers)
            if failure:
                raise failure
    except (ValueError, KeyboardInterrupt):
        pass
    assert not any(layer.merged for layer in layers)
    after = dict(model.named_parameters())
    assert [*after] == [*before]
    assert all(after[name] is before[name] for name in before)
    assert all(torch.equal(x, values[name]) for name, x in model.state_dict().items())


def failing_at_third(monkeypatch, failure):
    """A merge that fails on its third layer."""
    compute = LoraLinear.get_delta_weight
    calls = []

    def fail(layer, name):
        calls.append(layer)
        if len(calls) == 3:
            raise failure
        return compute(layer, name)

    monkeypatch.setattr(LoraLinear, "get_delta_weight", fail)


def test_a_merge_that_does_not_fit_leaves_nothing_merged(monkeypatch):
    model = adapted()
    before = dict(model.named_parameters())
    failing_at_third(monkeypatch, MemoryError())
    with merged.adapters_merged(model):
        assert all(p is before[name] for name, p in model.named_parameters())
        assert not any(layer.merged for layer in merged.mergeable_layers(model))


def test_a_merge_that_is_interrupted_leaves_nothing_merged(monkeypatch):
    model = adapted()
    before = dict(model.named_parameters())
    failing_at_third(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), merged.adapters_merged(model):
        raise AssertionError
    assert all(p is before[name] for name, p in model.named_parameters())
    assert len(merged.mergeable_layers(model)) > 3


def lora_of(model):
    return next(m for m in model.modules() if hasattr(m, "lora_A") and len(m.lora_A))


def test_what_would_round_or_is_no_sum_of_weights_is_named():
    assert merged.merge_refusal(lora_of(adapted())) is None
    assert "round in torch.bfloat16" in merged.merge_refusal(lora_of(adapted().to(torch.bfloat16)))
    mixed = adapted()
    for layer in merged.mergeable_layers(mixed):
        layer.base_layer.to(torch.bfloat16)  # as training keeps a 16-bit base
    assert "bfloat16 and torch.float32" in merged.merge_refusal(lora_of(mixed))
    assert "variant" in merged.merge_refusal(lora_of(adapted(use_dora=True)))
    disabled = adapted()
    with disabled.disable_adapter():
        assert "disabled" in merged.merge_refusal(lora_of(disabled))
        with merged.adapters_merged(disabled):
            assert not any(m.merged for m in disabled.modules() if hasattr(m, "lora_A"))


def test_nothing_is_merged_where_the_sums_would_take_the_free_memory(monkeypatch):
    model = adapted()
    monkeypatch.setattr(merged, "free_memory", lambda device: 10_000)
    with merged.adapters_merged(model):
        assert not any(layer.merged for layer in merged.mergeable_layers(model))
