import pytest
import torch
from peft import LoraConfig, get_peft_model

from isentrope.policy.adapter import adapter_mismatch
from isentrope.policy.checkpoint import load_tokenizer
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.tasks.addition import character_tokenizer
from tests import cases


@pytest.fixture
def adapter(tmp_path):
    """A base model and a LoRA checkpoint on disk, and the policy they came from."""
    base = cases.model("qwen2")
    base.save_pretrained(tmp_path / "base")
    base.config.name_or_path = base.name_or_path = str(tmp_path / "base")
    model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear")).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    model.save_pretrained(tmp_path / "step_1")
    return tmp_path / "step_1", Policy(model, eos_token_id=0)


def test_an_adapter_comes_back_as_it_was(adapter):
    folder, policy = adapter
    again = Policy.from_checkpoint(folder, eos_token_id=0)
    assert again.names == policy.names
    batch = cases.ragged()
    torch.testing.assert_close(score(again, batch).logprobs, score(policy, batch).logprobs)


def test_a_full_model_comes_back_trainable(tmp_path):
    model = cases.model("llama")
    model.save_pretrained(tmp_path)
    policy = Policy.from_checkpoint(tmp_path, eos_token_id=0, precision="float32")
    assert len(policy.names) == len(list(model.named_parameters()))
    assert not policy.model.training


def test_an_adapter_that_is_not_the_one_on_disk_is_named(adapter):
    folder, policy = adapter
    assert adapter_mismatch(policy.model, folder) is None
    with torch.no_grad():
        next(p for n, p in policy.model.named_parameters() if "lora_B" in n).zero_()
    assert "differs from the one on disk" in (adapter_mismatch(policy.model, folder) or "")


def test_missing_pickled_or_empty_checkpoints_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint folder"):
        Policy.from_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="neither"):
        Policy.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        Policy.from_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="pickled weights"):
        Policy.from_checkpoint(tmp_path)


def test_a_base_that_was_moved_is_asked_for(adapter):
    folder, policy = adapter
    moved = (folder.parent / "base").rename(folder.parent / "elsewhere")
    with pytest.raises(FileNotFoundError, match="say where it is with base_model"):
        Policy.from_checkpoint(folder)
    assert Policy.from_checkpoint(folder, base_model=moved).names == policy.names


def test_only_a_frozen_base_can_be_quantised(tmp_path):
    cases.model("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="frozen base"):
        Policy.from_checkpoint(tmp_path, quantization="4bit")


def test_a_tokenizer_is_loaded_as_it_was_saved_whatever_the_architecture(tmp_path):
    cases.model("qwen2").save_pretrained(tmp_path)
    saved = character_tokenizer()
    saved.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path, padding_side="left")
    assert loaded("1 + 2 =")["input_ids"] == saved("1 + 2 =")["input_ids"]
    assert loaded.padding_side == "left"
