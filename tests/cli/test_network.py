"""With local models and data no verb looks up a name, unpickles freely, or starts a program.

What libraries do underneath is watched too, by the events that Python reports of itself.
"""

import pathlib
import pickle
import socket
import sys
from contextlib import contextmanager

import pytest
import torch
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import _telemetry
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from transformers import AutoModelForCausalLM

from tests import command_line
from tests.tiny_checkpoint import settings, tiny
from tests.training import runs
from tests.verbs import evaluating

__all__ = ["tiny"]
PROGRAMS = ("isentrope/run/folder.py",)
"""Start git, to name the commit of the sources."""
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


EVENTS = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}
heard = []
"""Event, what it is about, and who caused it, while `hears` is on."""
hears = [False]


def hear(event, arguments):
    if hears[0] and event in EVENTS:
        frame = sys._getframe(1)
        while frame.f_back and "/lib/python" in frame.f_code.co_filename:
            if "site-packages" in frame.f_code.co_filename:
                break
            frame = frame.f_back
        heard.append((event, str(arguments[:2]), frame.f_code.co_filename))


sys.addaudithook(hear)


@contextmanager
def listening():
    """A block in which events are heard."""
    heard.clear()
    hears[0] = True
    yield
    hears[0] = False


def call(*words):
    with listening():
        command_line.call(*words, status=0)
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
def test_nothing_is_looked_up_unpickled_or_started(verb, tiny, tmp_path, looked_up):
    verb(tmp_path, tiny)
    assert looked_up == []
    assert [x for x in heard if not x[2].endswith(PROGRAMS)] == []


def test_what_a_pickle_imports_is_heard():
    with listening():
        pickle.loads(pickle.dumps(pathlib.Path("x")))
    assert heard[0][0] == "pickle.find_class"
