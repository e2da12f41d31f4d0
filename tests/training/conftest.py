"""A toy policy too small to be right, and a task on which chance is enough to be rewarded."""

import pytest
import torch
from peft import PeftModel
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope import Policy, Prompt
from isentrope.sampling.tasks.addition import character_tokenizer
from tests.adapters import save_base_model, with_lora
from tests.cases import built_once


class Short:
    """Right are responses whose first character is a digit."""

    def __init__(self):
        self.prompts = [Prompt(f"short/{i}", text=f"{i}+1=") for i in range(5)]

    def reward(self, response_text, reference):
        return float(response_text[:1].isdigit())


@built_once
def small_policy(spread=0.02):
    """Its tokens are of unlike probability where its weights are spread more widely."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 18}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    ends = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    config = Qwen2Config(**sizes, **heads, **ends, initializer_range=spread)
    torch.manual_seed(0)
    return Policy(Qwen2ForCausalLM(config).eval(), character_tokenizer(), precision="float32")


@pytest.fixture(scope="module", autouse=True)
def no_model_cards():
    """Checkpoints without peft's README.md, whose template takes longer than a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PeftModel, "create_or_update_model_card", lambda *_: None)
        yield


@pytest.fixture
def task():
    return Short()


@pytest.fixture
def policy(tmp_path):
    base = small_policy()
    save_base_model(base, tmp_path / "base_model")
    return with_lora(base, rank=2, seed=0)
