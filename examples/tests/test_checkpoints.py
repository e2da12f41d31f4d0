import pytest
import torch

from examples.checkpoints import require_new_run, save_base_model, save_checkpoint, with_lora
from tests.training.conftest import small_policy


def test_an_adapter_points_to_its_saved_base(policy, tmp_path):
    config = policy.model.peft_config["default"]
    assert config.base_model_name_or_path == str(tmp_path / "base_model")
    assert (tmp_path / "base_model" / "model.safetensors").is_file()
    assert (tmp_path / "base_model" / "tokenizer.json").is_file()


def test_a_checkpoint_is_written_whole_or_not_at_all(policy, tmp_path):
    optimizer = torch.optim.AdamW(policy.model.parameters())
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(policy, optimizer, tmp_path / "step_1", {"bad": object()})
    assert [p.name for p in tmp_path.iterdir()] == ["base_model"]
    save_checkpoint(policy, optimizer, tmp_path / "step_1", {})
    with pytest.raises(FileExistsError, match="step_1 exists already"):
        save_checkpoint(policy, optimizer, tmp_path / "step_1", {})


def test_only_an_adapter_over_a_saved_base_is_trained(policy, tmp_path):
    with pytest.raises(ValueError, match="has an adapter already"):
        save_base_model(policy, tmp_path / "again")
    with pytest.raises(ValueError, match="with_lora"):
        require_new_run(small_policy(), tmp_path)
    with pytest.raises(ValueError, match="base model"):
        require_new_run(with_lora(small_policy(), rank=2, seed=0), tmp_path)
