"""The policy that is scored is the model that is trained; each way to differ is refused by name."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

import isentrope as ise
from isentrope.models.architecture import UnsupportedModelError
from tests import cases
from tests.adapters import save_base_model
from tests.probe.test_trl_defaults import trained
from tests.training.conftest import small_policy

ALORA = LoraConfig(
    r=2,
    target_modules=["q_proj", "v_proj"],
    alora_invocation_tokens=[3],
    init_lora_weights=False,
    task_type="CAUSAL_LM",
)


def changed(lm, change):
    """A model whose layers give something else."""
    lm.model.layers[0].register_forward_hook(lambda _module, _args, out: change(out))
    return lm


def test_an_adapter_that_acts_in_the_wrapper_alone_is_refused_wherever_it_comes_from(
    tmp_path, caplog
):
    base = small_policy()
    save_base_model(base, tmp_path / "base")
    model = get_peft_model(base.model, copy.deepcopy(ALORA)).eval()
    model.save_pretrained(tmp_path / "adapter")
    text = r"adapter \(aLoRA, .*\) changes no score .* \(0 nats\)"
    with pytest.raises(UnsupportedModelError, match=text):
        ise.Policy(model)
    with pytest.raises(UnsupportedModelError, match=text):
        ise.Policy.from_checkpoint(tmp_path / "adapter", base_model=tmp_path / "base")
    probe = ise.EntropyProbe(["1+2="], every=1, size=2)
    trained(tmp_path / "run", None, copy.deepcopy(ALORA), 1, probe)
    assert probe.off
    assert "changes no score" in caplog.text


def test_what_a_wrapper_adds_to_logits_is_refused_and_the_wrapper_named():
    model = cases.lora_policy("qwen2").model

    def louder(_module, _args, out):
        out.logits = 1.1 * out.logits
        return out

    model.register_forward_hook(louder)
    with pytest.raises(
        UnsupportedModelError, match=r"PeftModel, .* wrapper's .* differ by .* nats"
    ):
        ise.Policy(model)


def test_a_fresh_adapter_whose_product_is_zero_acts():
    fresh = get_peft_model(cases.model("qwen2"), LoraConfig(r=2, target_modules="all-linear"))
    assert ise.Policy(fresh.eval()).names


def test_a_merged_adapter_is_refused():
    model = cases.lora_policy("qwen2").model
    model.merge_adapter()
    with pytest.raises(UnsupportedModelError, match=r"adapter \(LORA\) changes no score"):
        ise.Policy(model)


def test_a_model_that_looks_ahead_is_refused_by_the_prefix():
    lm = changed(cases.model("qwen2"), lambda out: out + out.mean(1, keepdim=True))
    with pytest.raises(UnsupportedModelError, match=r"prefix alone .* differ by [\d.]+ nats"):
        ise.Policy(lm)


def test_a_model_whose_rows_touch_is_refused_by_the_batch():
    lm = changed(cases.model("qwen2"), lambda out: out + out.mean(0, keepdim=True))
    with pytest.raises(UnsupportedModelError, match=r"row of a batch .* differ by [\d.]+ nats"):
        ise.Policy(lm)


def test_a_type_of_encoders_is_refused_as_that():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = AutoConfig.for_model("bert", vocab_size=9, num_attention_heads=2, **sizes)
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedModelError, match=r"bert is a type of encoder models"):
        ise.Policy(lm)


def test_xlnet_is_refused_for_what_it_is():
    config = AutoConfig.for_model("xlnet", vocab_size=9, d_model=16, n_layer=1, n_head=2, d_inner=8)
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModelError, match=r"XLNetLMHeadModel .*prefix alone"):
        ise.Policy(AutoModelForCausalLM.from_config(config).eval())


def test_a_forward_under_autocast_is_compared_in_the_rounding_of_its_own():
    lm = cases.model("qwen2")
    lm.forward = torch.autocast("cpu", torch.bfloat16)(lm.forward)
    assert ise.Policy(lm, precision="float32").names


@pytest.mark.parametrize("adapted", [False, True])
def test_a_policy_is_compared_in_six_passes_at_most(adapted):
    model = cases.lora_policy("qwen2").model if adapted else cases.model("qwen2").double()
    lm = model.get_base_model() if adapted else model
    passes = []
    lm.model.register_forward_hook(lambda *_: passes.append(1))
    ise.Policy(model, precision="as_is")
    assert len(passes) == 5 + adapted
