"""docs/from_verl.md, word for word: from a run of verl to a measurement and an attribution."""

import json
import shlex

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from typer.testing import CliRunner

from isentrope.checkpoint.files import VERL_SETTINGS
from isentrope.cli.main import app
from isentrope.config.io import load_config
from isentrope.sampling.tasks.addition import character_tokenizer
from tests.checkpoint.infer.test_verl_settings import settings
from tests.docs.pages import ROOT, blocks
from tests.tiny_checkpoint import PROMPTS, make_full_checkpoint

PAGE = ROOT / "docs" / "from_verl.md"
VERBS = ("check", "measure", "influence")
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "add"
    return float(solution_str == ground_truth)
"""


def parts_of(tensors, mesh):
    """Each as the one process that holds it saves it."""
    return {n: distribute_tensor(x, mesh, [Shard(0)]) for n, x in tensors.items()}


def run(command):
    """A command of the page, which succeeds."""
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output


def write_actor(source, actor):
    """A whole model with its optimizer as verl's only process writes it (FSDP 2)."""
    weights = load_file(source / "model.safetensors")
    optimizer = torch.load(source / "optimizer.pt", weights_only=True)
    order = json.loads((source / "parameter_names.json").read_text())
    actor.mkdir(parents=True)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        torch.save(
            parts_of({n: weights[n] for n in order}, mesh), actor / "model_world_size_1_rank_0.pt"
        )
        for number, of in optimizer["state"].items():
            moments = {name: x for name, x in of.items() if name != "step"}
            optimizer["state"][number] = {"step": of["step"], **parts_of(moments, mesh)}
        torch.save(optimizer, actor / "optim_world_size_1_rank_0.pt")
    finally:
        dist.destroy_process_group()
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    (actor / "huggingface").mkdir()
    (actor / "huggingface" / "config.json").write_text((source / "config.json").read_text())
    tokenizer = character_tokenizer()  # whose template puts tokens that the dump does not show
    tokenizer.chat_template = "{{ messages[0].content }}{{ eos_token }}"
    tokenizer.save_pretrained(actor / "huggingface")


@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_page_run_on_what_verl_leaves(tmp_path, monkeypatch):
    write_actor(make_full_checkpoint(tmp_path) / "step_4", tmp_path / "global_step_20" / "actor")
    (tmp_path / ".hydra").mkdir()
    settings(tmp_path / ".hydra", **{"data.max_response_length": 3})
    (tmp_path / ".hydra" / VERL_SETTINGS).rename(tmp_path / ".hydra" / "config.yaml")
    asked = [[{"role": "user", "content": text}] for text in PROMPTS]
    rewards = [{"ground_truth": str(1 + k % 3)} for k in range(len(PROMPTS))]
    frame = pd.DataFrame({"data_source": "add", "prompt": asked, "reward_model": rewards})
    frame.to_parquet(tmp_path / "train.parquet")
    lines = [
        {"input": PROMPTS[k % 4], "output": str(k % 3 + 1), "score": float(k % 3 == 0), "step": 21}
        for k in range(16)
    ]
    (tmp_path / "21.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "verl.yaml").write_text(blocks(PAGE, "yaml")[0])
    small = " --set estimator.order=1 --set batch_config.B_E=24"
    for command in blocks(PAGE, "")[0].splitlines():
        run(command + (small if ".yaml " in command else ""))
    for verb in VERBS[1:]:
        (results,) = (tmp_path / "runs").rglob(f"*{verb}*/results.json")
        found = json.loads(results.read_text())
        assert (found["batches"]["B_U"], found["batches"]["G"]) == (4, 4)
        assert not [text for text in found["warnings"] if "ASSUMED" in text]
        origin = found["settings"]["keys"]["estimator.objective"]
        assert (origin["value"], origin["from"]) == ("dapo", VERL_SETTINGS)
    run(f"{blocks(PAGE, '')[1].strip()}{small} --set batch_config.B_U=4 --out drawn")


def test_the_settings_shown_are_understood(tmp_path):
    (tmp_path / "verl.yaml").write_text(blocks(PAGE, "yaml")[0])
    assert load_config(tmp_path / "verl.yaml").batch_config.U_file == "21.jsonl"
