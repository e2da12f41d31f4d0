"""Checkpoints that DeepSpeed itself wrote: what it says is in them, and the step it took next."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from isentrope import Rollouts
from isentrope.checkpoint.convert.write import convert
from isentrope.models.checkpoint import load_tokenizer
from tests.checkpoint.convert.sharded_run import RATE
from tests.checkpoint.convert.zero_run import CASES, CLIP
from tests.tiny_checkpoint import make_checkpoint, weighted_batch
from tests.torchrun import torchrun
from tests.training import runs

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model whose parameters two processes cannot share evenly, and a batch."""
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder)
    sizes = {"hidden_size": 11, "intermediate_size": 7, "head_dim": 6, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    tokenizer = load_tokenizer(folder / "base")
    config = Qwen2Config(**sizes, **heads, vocab_size=len(tokenizer), pad_token_id=0)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder / "base")
    weighted_batch(tokenizer).save(folder / "U.parquet")
    return folder


def trained(base, folder, case):
    """The checkpoint that two processes leave."""
    for name in ("base", "U.parquet"):
        (folder / name).symlink_to(base / name)
    torchrun(2, "tests.checkpoint.convert.zero_run", case, folder)
    return torch.load(folder / "whole.pt")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_weights_moments_and_the_next_step_are_those_of_deepspeed(base, tmp_path, case):
    whole = trained(base, tmp_path, case)
    adapter = "adapter" in case
    model = tmp_path / ("adapter" if adapter else "base")
    made = convert(tmp_path / "checkpoint", tmp_path / "out", model)
    assert ise.Checkpoint(made.folder).settings["estimator.max_grad_norm"].value == CLIP
    weights = load_file(made.folder / f"{'adapter_model' if adapter else 'model'}.safetensors")
    state = torch.load(made.folder / "optimizer.pt")["state"]
    assert len(whole["before"]) == len(state) == made.parameters
    for name, expected in whole["before"].items():
        saved = name.replace(".default", "")
        torch.testing.assert_close(weights[saved], expected["weight"], rtol=0, atol=0)
        for key in expected.keys() - {"weight"}:
            torch.testing.assert_close(state[name][key], expected[key], rtol=0, atol=0)
    if "short" in case:  # training's gradient is rounded
        return
    policy = ise.Policy.from_checkpoint(made.folder, precision="float64", temperature=1.0)
    U = Rollouts.load(base / "U.parquet")
    step = ise.optimizer_step(policy, U, made.folder, objective="recorded", max_grad_norm=CLIP)
    assert step.matched_by == "names"
    after, before = (
        {n: of["weight"].double() for n, of in whole[k].items()} for k in ("after", "before")
    )
    taken = {n: (after[n] - before[n]) / RATE for n in step.direction}
    assert runs.relative(step.direction, taken) < 1e-5
