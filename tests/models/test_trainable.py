import pytest
import torch
from peft import LoraConfig, get_peft_model

from isentrope import Policy
from isentrope.update.optimizer_state import load_optimizer_state
from tests import cases


@pytest.fixture
def partly(tmp_path):
    """A full model whose embeddings and head were frozen, with its optimizer's state."""
    model = cases.model("qwen2")
    model.save_pretrained(tmp_path)
    kept = [p for n, p in model.named_parameters() if "layers" in n or "norm" in n]
    optimizer = torch.optim.AdamW(kept, lr=1e-3)
    for parameter in kept:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    return tmp_path


def load(folder, *patterns):
    return Policy.from_checkpoint(
        folder, eos_token_id=0, precision="float32", trainable_patterns=patterns or None
    )


def test_a_partly_frozen_model_is_matched_once_its_patterns_are_given(partly):
    with pytest.raises(ValueError, match=r"checkpoint\.trainable \(patterns of parameter names\)"):
        load_optimizer_state(load(partly), partly)
    policy = load(partly, "model.layers.*", "*norm*")
    assert not any("embed" in n or "lm_head" in n for n in policy.names)
    assert load_optimizer_state(policy, partly).matched_by == "order"


@pytest.mark.parametrize("pattern", ["model.layer.*", "embed_tokens", "*Norm*"])
def test_a_pattern_that_fits_nothing_is_refused(partly, pattern):
    with pytest.raises(ValueError, match=r"parameter.*'model.embed_tokens.weight'"):
        load(partly, "model.layers.*", pattern)


@pytest.mark.filterwarnings("ignore:Could not find a config file")
def test_patterns_choose_within_an_adapter_and_never_under_it(tmp_path):
    base = cases.model("qwen2")
    base.save_pretrained(tmp_path / "base")
    policy = cases.lora_policy("qwen2")
    policy.model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    policy.model.save_pretrained(tmp_path / "adapter")
    half = load(tmp_path / "adapter", "*lora_B*")
    assert half.names == tuple(n for n in policy.names if "lora_B" in n)
    with pytest.raises(ValueError, match="under an adapter"):
        load(tmp_path / "adapter", "*embed_tokens*")


def test_an_adapter_of_parameters_is_named_before_anything_is_scored():
    experts = ["mlp.experts.gate_up_proj"]
    lora = LoraConfig(r=2, target_modules=[], target_parameters=experts)
    model = get_peft_model(cases.model("mixtral"), lora).eval()
    with pytest.raises(ValueError, match=r"target_parameters=\['mlp\.experts\.gate_up_proj'\]"):
        Policy(model, eos_token_id=0)
