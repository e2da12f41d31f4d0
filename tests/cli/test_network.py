"""Nobody is called: with local models and data, no verb looks up a name on the network."""

import socket

import pytest
import torch
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import _telemetry
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from isentrope.cli.main import app
from tests.pipelines import evaluating
from tests.tiny_checkpoint import settings, tiny
from tests.training import runs

__all__ = ["tiny"]
SHORT = {"training": {"steps": 2, "save_every": 1}}


@pytest.fixture
def looked_up(monkeypatch):
    """The names that are looked up; the network is not reached."""
    asked = []

    def refused(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(-2, "made to fail")

    for name in ("CI", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setattr(constants, name, False)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    return asked


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    _telemetry._TELEMETRY_QUEUE.join()  # which another thread sends


def written(folder, content):
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def train(folder, _):
    content = runs.settings(folder, **SHORT)
    del content["output"]
    call("train", written(folder, content), "--out", folder / "out")
    call("train", "--resume", folder / "out", "--set", "training.steps=3")


def sft(folder, tiny):
    content = {
        "model": {"path": str(tiny / "base"), "lora_rank": 2, "lora_alpha": 4},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "fine_tuning": {"steps": 2, "batch_size": 6, "warmup_steps": 1},
    }
    content["data"] = {"dataset_name": "addition"}
    call("sft", written(folder, content), "--out", folder / "out")


def measure(folder, tiny):
    call("measure", written(folder, settings(tiny)), "--out", folder / "out")


def evaluate(folder, tiny):
    call("evaluate", written(folder, evaluating.settings(tiny)), "--out", folder / "out")


def check(folder, tiny):
    call("check", written(folder, settings(tiny)))


def convert(folder, tiny):
    weights = AutoModelForCausalLM.from_pretrained(tiny / "base").state_dict()
    torch.save({"model": weights}, folder / "one.pt")
    torch_save_to_dcp(folder / "one.pt", folder / "dcp")
    call("convert", folder / "dcp", "--out", folder / "out", "--model", tiny / "base")


@pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("verb", [train, sft, measure, evaluate, check, convert])
def test_no_name_is_looked_up(verb, tiny, tmp_path, looked_up):
    verb(tmp_path, tiny)
    assert looked_up == []
