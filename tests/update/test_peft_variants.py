"""v of every variant of PEFT against a real step, from the checkpoint that PEFT writes."""

import json
from pathlib import Path

import pytest
import torch
from peft import (
    IA3Config,
    LoraConfig,
    OFTConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    TrainableTokensConfig,
    VeraConfig,
    get_peft_model,
)
from torch.optim import AdamW

from isentrope import Policy
from isentrope.checks import check_adapter
from isentrope.update.step import compute_step
from tests import cases
from tests.update.plain import MAX_LENGTH, build_batch, relative_error, replay, train

DOCS = Path(__file__).parents[2] / "docs" / "results" / "optimizers.md"
BOUND = 1e-6
SOME = ["q_proj", "v_proj"]

VARIANTS = {
    "LoRA": lambda: LoraConfig(r=2, target_modules=SOME),
    "LoRA on all linear layers": lambda: LoraConfig(r=2, target_modules="all-linear"),
    "rsLoRA": lambda: LoraConfig(r=2, target_modules=SOME, use_rslora=True),
    "DoRA": lambda: LoraConfig(r=2, target_modules=SOME, use_dora=True),
    "LoRA with `bias: lora_only`": lambda: LoraConfig(r=2, target_modules=SOME, bias="lora_only"),
    "LoRA with `bias: all`": lambda: LoraConfig(r=2, target_modules=SOME, bias="all"),
    "LoRA on lm_head": lambda: LoraConfig(r=2, target_modules=[*SOME, "lm_head"]),
    "LoRA on embed_tokens": lambda: LoraConfig(r=2, target_modules=[*SOME, "embed_tokens"]),
    "`modules_to_save: [lm_head]`": lambda: LoraConfig(
        r=2, target_modules=SOME, modules_to_save=["lm_head"]
    ),
    "`modules_to_save: [embed_tokens]`": lambda: LoraConfig(
        r=2, target_modules=SOME, modules_to_save=["embed_tokens"]
    ),
    "`modules_to_save: [embed_tokens, lm_head]`": lambda: LoraConfig(
        r=2, target_modules=SOME, modules_to_save=["embed_tokens", "lm_head"]
    ),
    "`modules_to_save: [embed_tokens]`, `ensure_weight_tying` (tied)": lambda: LoraConfig(
        r=2, target_modules=SOME, modules_to_save=["embed_tokens"], ensure_weight_tying=True
    ),
    "`trainable_token_indices`": lambda: LoraConfig(
        r=2, target_modules=SOME, trainable_token_indices=[1, 3]
    ),
    "trainable tokens": lambda: TrainableTokensConfig(token_indices=[1, 3]),
    "IA3": lambda: IA3Config(target_modules=SOME, feedforward_modules=[]),
    "VeRA": lambda: VeraConfig(r=4, target_modules=["q_proj", "o_proj"]),
    "OFT": lambda: OFTConfig(r=0, oft_block_size=4, target_modules=SOME),
}
EMBEDDINGS = ("lm_head", "embed_tokens", "token")
CASES = [(name, False) for name in VARIANTS if "tied" not in name]
CASES += [(name, True) for name in VARIANTS if any(part in name for part in EMBEDDINGS)]
FEW = {
    *(("LoRA", False), ("DoRA", False), ("LoRA with `bias: all`", False), ("IA3", False)),
    *(("LoRA on lm_head", True), ("LoRA on embed_tokens", True), ("trainable tokens", True)),
    *(("`modules_to_save: [embed_tokens, lm_head]`", False), ("VeRA", False), ("OFT", False)),
}
"""One of each kind of parameter; all others are slow."""
REFUSED = {
    "prompt tuning": lambda: PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    "prefix tuning": lambda: PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
}


def saved(config, folder, tied=False):
    """A base and an adapter of this kind on disk, with random values in what is trained."""
    from transformers import AutoModelForCausalLM

    cases.model("qwen2", 12, tie_word_embeddings=tied).save_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    config.base_model_name_or_path = str(folder / "base")
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    model.save_pretrained(folder / "adapter")
    return folder / "adapter"


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("variant", "tied"),
    [pytest.param(*x, marks=() if x in FEW else pytest.mark.slow) for x in CASES],
)
def test_v_of_the_variant_is_a_real_step(tmp_path, variant, tied):
    folder = saved(VARIANTS[variant](), tmp_path, tied)
    policy = Policy.from_checkpoint(folder, eos_token_id=1, pad_token_id=0, temperature=0.8)
    assert check_adapter(policy, folder).passed, check_adapter(policy, folder)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = train(policy, AdamW(parameters, lr=1e-3, weight_decay=0.1), steps=1)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    step = compute_step(policy, build_batch(), folder, max_response_length=MAX_LENGTH)
    assert relative_error(step.direction, replay(policy, optimizer, build_batch())) < BOUND


@pytest.mark.parametrize("variant", REFUSED)
def test_adapters_of_virtual_tokens_are_refused_by_name(tmp_path, variant):
    folder = saved(REFUSED[variant](), tmp_path)
    kind = json.loads((folder / "adapter_config.json").read_text())["peft_type"]
    with pytest.raises(ValueError, match=rf"{kind}.*virtual tokens"):
        Policy.from_checkpoint(folder, eos_token_id=1)


def test_the_documentation_lists_these_variants():
    text = DOCS.read_text(encoding="utf-8")
    for name in VARIANTS:
        assert f"| {name} | {BOUND:.0e} |" in text
    for name in REFUSED:
        assert f"| {name} | refused |" in text
