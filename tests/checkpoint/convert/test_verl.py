"""Checkpoints that verl itself wrote: the next step is the one that training took."""

import json

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from isentrope.checkpoint.convert.write import convert
from isentrope.models.checkpoint import load_tokenizer
from tests.checkpoint.convert.sharded_run import RATE
from tests.checkpoint.convert.verl_run import CASES
from tests.tiny_checkpoint import make_checkpoint, weighted_batch
from tests.torchrun import torchrun
from tests.training import runs

pytest.importorskip("verl", reason="verl is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_next_step_is_the_one_that_training_took(tmp_path, case):
    make_checkpoint(tmp_path)
    tokenizer = load_tokenizer(tmp_path / "base")
    sizes = {"hidden_size": 11, "intermediate_size": 7, "head_dim": 6, "num_hidden_layers": 2}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": "tied" in case,
    }
    torch.manual_seed(0)
    config = Qwen2Config(**sizes, **heads, vocab_size=len(tokenizer), pad_token_id=0)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "base")
    U = weighted_batch(tokenizer)
    U.save(tmp_path / "U.parquet")
    torchrun(2, "tests.checkpoint.convert.verl_run", case, tmp_path)
    written = json.loads((tmp_path / "checkpoint" / "actor" / "fsdp_config.json").read_text())
    assert written["FSDP_version"] == (1 if "flat" in case else 2)
    adapter = tmp_path / "adapter" if "adapter" in case else None
    made = convert(tmp_path / "checkpoint", tmp_path / "out", adapter)
    policy = ise.Policy.from_checkpoint(made.folder, precision="float64", temperature=1.0)
    assert made.tensors == made.parameters == len(policy.theta)
    step = ise.optimizer_step(policy, U, made.folder, objective="recorded", max_grad_norm=None)
    assert step.matched_by == "names"
    whole = torch.load(tmp_path / "whole.pt")
    after, before = whole["after"], whole["before"]
    taken = {n: (after[n].double() - before[n].double()) / RATE for n in step.direction}
    assert runs.relative(step.direction, taken) < 1e-5
