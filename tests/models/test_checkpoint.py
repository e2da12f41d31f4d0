import json
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from isentrope import Policy, score
from isentrope.checkpoint.convert.write import convert
from isentrope.models.adapter import adapter_mismatch, mapped_type
from isentrope.models.checkpoint import load_tokenizer
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.system.errors import FileError
from isentrope.update.optimizer_state import load_optimizer_state
from tests import cases
from tests.tiny_checkpoint import make_full_checkpoint


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


def test_a_mapped_base_keeps_the_type_of_its_files_and_converts_to_the_same_policy(adapter):
    folder, _ = adapter
    file = folder.parent / "base" / "model.safetensors"
    save_file({k: x.bfloat16() for k, x in load_file(file).items()}, file, {"format": "pt"})
    options = {"eos_token_id": 0}
    whole = Policy.from_checkpoint(folder, precision="float32", **options)
    mapped = Policy.from_checkpoint(folder, precision="as_is", mapped=True, **options)
    kinds = {n: p.dtype for n, p in mapped.model.named_parameters()}
    assert {kinds.pop(name) for name in mapped.names} == {torch.float32}
    assert set(kinds.values()) == {torch.bfloat16}
    both = zip(whole.model.parameters(), mapped.convert("float32").model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


def test_a_base_of_several_types_is_converted(adapter):
    folder, base = adapter[0], adapter[0].parent / "base"
    file = base / "model.safetensors"
    first, *rest = load_file(file).items()
    assert mapped_type(folder, base) == torch.float32
    short = {k: x.bfloat16() for k, x in rest}
    save_file(short | dict([first]), file, {"format": "pt"})
    assert mapped_type(folder, base) == torch.float32
    save_file(short | {first[0]: first[1].bfloat16()}, file, {"format": "pt"})
    assert mapped_type(folder, base) == torch.bfloat16


@pytest.mark.parametrize("change", ["float16", "pissa"])
def test_what_mapping_would_change_is_converted(adapter, change):
    folder, _ = adapter
    kind = torch.float16 if change == "float16" else torch.bfloat16
    file = folder.parent / "base" / "model.safetensors"
    save_file({k: x.to(kind) for k, x in load_file(file).items()}, file, {"format": "pt"})
    if change == "pissa":
        settings = folder / "adapter_config.json"
        content = json.loads(settings.read_text()) | {"init_lora_weights": "pissa"}
        settings.write_text(json.dumps(content))
    mapped = Policy.from_checkpoint(folder, precision="as_is", mapped=True, eos_token_id=0)
    assert {p.dtype for p in mapped.model.parameters()} == {torch.float32}


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
    with pytest.raises(FileNotFoundError, match="needs adapter_config"):
        Policy.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        Policy.from_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="pickled weights"):
        Policy.from_checkpoint(tmp_path)


def test_a_single_file_of_a_plain_loop_is_sent_to_save_pretrained(tmp_path):
    torch.save({"model": {}, "optimizer": {}}, tmp_path / "ckpt.pt")
    for path in (tmp_path / "ckpt.pt", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"save_pretrained\(FOLDER\).*optimizer.pt"):
            Policy.from_checkpoint(path)


def test_a_base_that_was_moved_is_asked_for(adapter):
    folder, policy = adapter
    moved = (folder.parent / "base").rename(folder.parent / "elsewhere")
    with pytest.raises(FileNotFoundError, match="base_model"):
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


def test_an_adapter_with_new_tokens_gives_its_base_their_rows(tmp_path):
    base = cases.model("qwen2")
    base.save_pretrained(tmp_path / "base")
    base.config.name_or_path = base.name_or_path = str(tmp_path / "base")
    base.resize_token_embeddings(8)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).eval()
    with torch.no_grad():
        base.get_input_embeddings().weight[5:].normal_()
        base.get_output_embeddings().weight[5:].normal_()
    trained = Policy(model, eos_token_id=0)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    again = Policy.from_checkpoint(tmp_path / "adapter", eos_token_id=0)
    assert adapter_mismatch(again.model, tmp_path / "adapter") is None
    batch = cases.ragged(vocabulary=8)
    torch.testing.assert_close(score(again, batch).logprobs, score(trained, batch).logprobs)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({k: x for k, x in load_file(weights).items() if "lm_head" not in k}, weights)
    with pytest.raises(ValueError, match=r"8 embeddings .* 5"):
        Policy.from_checkpoint(tmp_path / "adapter", eos_token_id=0)


def test_a_damaged_tokenizer_is_not_read_where_another_is_given(adapter):
    folder, _ = adapter
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="step_1 cannot be read"):
        Policy.from_checkpoint(folder, eos_token_id=0)
    chosen = character_tokenizer()
    policy = Policy.from_checkpoint(folder, tokenizer=chosen, eos_token_id=0)
    assert policy.tokenizer is chosen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.repeat(2, 1), r"says rank 2, and .*lora_A.* of rank 4"),
        (lambda x: x[:0], r"lora_A.*empty tensor.*ZeRO-3.*not gathered"),
    ],
)
def test_an_adapters_file_of_another_rank_or_of_nothing_is_named(adapter, change, words):
    folder, _ = adapter
    file = folder / "adapter_model.safetensors"
    changed = {k: change(x) if "lora_A" in k else x for k, x in load_file(file).items()}
    save_file({k: x.contiguous() for k, x in changed.items()}, file)
    with pytest.raises(FileError, match=words):
        Policy.from_checkpoint(folder)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("vocab_size", r"shape \[9, \d+\], and its weights have \[5, .*set vocab_size to 5"),
        ("intermediate_size", r"describes .*mlp.*restore the one that is not of this model"),
    ],
)
def test_a_configuration_of_another_shape_is_named_with_both(tmp_path, key, words):
    cases.model("qwen2").save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: 9}))
    with pytest.raises(FileError, match=words) as error:
        Policy.from_checkpoint(tmp_path)
    assert "ignore_mismatched_sizes" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model.safetensors", "save_state.*config.save_pretrained"),
        ("model.gguf", "GGUF"),
        ("pytorch_model.bin", "pickled: load it"),
    ],
)
def test_what_no_conversion_helps_is_not_sent_to_one(tmp_path, file, words):
    (tmp_path / file).touch()
    with pytest.raises(FileNotFoundError, match=words) as error:
        Policy.from_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match=words):
        convert(tmp_path, tmp_path.with_name("out"))
    assert "isentrope convert" not in str(error.value)


def test_the_way_out_of_save_state_leads_to_a_step(tmp_path):
    make_full_checkpoint(tmp_path)
    saved = tmp_path / "step_4"
    for name in ("config.json", "parameter_names.json"):
        (saved / name).unlink()
    (saved / "optimizer.pt").rename(saved / "optimizer.bin")
    with pytest.raises(FileNotFoundError, match=r"optimizer_path to .*optimizer\.bin"):
        Policy.from_checkpoint(saved)
    AutoConfig.from_pretrained(tmp_path / "base").save_pretrained(saved)
    policy = Policy.from_checkpoint(saved, temperature=1.0)
    assert load_optimizer_state(policy, saved / "optimizer.bin").moments


def test_a_model_is_loaded_without_a_word_of_the_libraries(adapter):
    code = "import sys, isentrope as ise; ise.Policy.from_checkpoint(sys.argv[1], eos_token_id=0)"
    done = subprocess.run([sys.executable, "-c", code, adapter[0]], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
