import json

import pytest
import torch

from isentrope.models.trainable import find_model
from isentrope.training.models import load_trainable
from tests.adapters import save_base_model, with_lora
from tests.training.conftest import small_policy


@pytest.fixture
def base(tmp_path):
    return save_base_model(small_policy(), tmp_path / "base")


@pytest.fixture
def adapter(base, tmp_path):
    """An adapter of rank 2 and alpha 4, whose second half is not zero."""
    policy = small_policy()
    policy.model.config.name_or_path = policy.model.name_or_path = str(base)
    model = with_lora(policy, 2, seed=0).model
    torch.nn.init.ones_(next(p for n, p in model.named_parameters() if "lora_B" in n))
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    policy.tokenizer.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def load(path, rank=0, alpha=4, **options):
    return load_trainable(str(path), lora_rank=rank, lora_alpha=alpha, **options)


def trainable(model):
    return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}


def test_rank_zero_trains_every_weight(base):
    model, tokenizer = load(base)
    assert all(p.requires_grad for p in model.parameters())
    assert tokenizer.decode(tokenizer("1+2=")["input_ids"]) == "1+2="


def test_a_fresh_adapter_is_seeded_scaled_and_names_its_base_by_a_whole_path(base, monkeypatch):
    monkeypatch.chdir(base.parent)
    state = torch.get_rng_state()
    first, again, other = (load("base", 2, 6, seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all("lora_" in name for name in trainable(first))
    a, b, c = (
        torch.cat([p.flatten() for p in trainable(m).values()]) for m in (first, again, other)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    settings = first.peft_config["default"]
    assert settings.base_model_name_or_path == str(base)
    assert settings.lora_alpha / settings.r == 3


def test_a_rank_above_that_of_every_matrix_is_refused_before_it_is_allocated(base):
    with pytest.raises(ValueError, match=r"model\.lora_rank=100000 is more than .*matrix"):
        load(base, 100000, 6)


def test_the_base_has_the_type_asked_for_and_a_fresh_adapter_float32(base):
    model, _ = load(base, 2, dtype="bfloat16")
    types = {p.requires_grad: p.dtype for p in model.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}


def test_an_adapter_that_is_found_goes_on(adapter):
    model, _ = load(adapter, 2, 4)
    found = trainable(model)
    assert len(found) == 2 * 7  # A and B of each matrix of the layer
    assert any(bool(p.eq(1).all()) for n, p in found.items() if "lora_B" in n)


@pytest.mark.parametrize(
    ("rank", "alpha", "said"),
    [
        (3, 4, "rank 2, .*model.lora_rank .*3"),
        (0, 4, "rank 2, .*model.lora_rank .*0"),
        (2, 32, "alpha 4, .*model.lora_alpha .*32"),
    ],
)
def test_an_adapter_of_another_size_is_refused(adapter, rank, alpha, said):
    with pytest.raises(ValueError, match=said):
        load(adapter, rank, alpha)


def test_an_adapter_with_dropout_or_without_its_base_is_refused(adapter):
    file = adapter / "adapter_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"lora_dropout": 0.1}))
    with pytest.raises(ValueError, match=r"dropout 0\.1"):
        load(adapter, 2, 4)
    file.write_text(json.dumps(settings | {"base_model_name_or_path": "/absent/base"}))
    with pytest.raises(FileNotFoundError, match=r"base model .*/absent/base"):
        load(adapter, 2, 4)


def test_an_adapter_over_weights_that_are_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"set model\.lora_rank=0"):
        load("toy", 16)


def test_a_path_is_a_folder_or_has_the_form_of_a_name(base, monkeypatch):
    monkeypatch.chdir(base.parent)
    assert find_model("base") == str(base)
    assert [find_model(name) for name in ("toy", "Qwen/Qwen2.5-1.5B", "gpt2")] == [
        "toy",
        "Qwen/Qwen2.5-1.5B",
        "gpt2",
    ]
    for absent in ("runs/toy/model", "./absent", "/absent", "~/absent"):
        with pytest.raises(FileNotFoundError, match="no model folder"):
            find_model(absent)
    (base.parent / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="not a checkpoint"):
        find_model("empty")
